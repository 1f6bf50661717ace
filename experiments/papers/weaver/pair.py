"""A hot and a cold model in two processes; the cold one computes a part of the hot one's attention.

    c2c try weaver hot=<checkpoint> cold=<checkpoint> ratio=0.45 requests=200
    c2c try weaver ratio=1 cold_requests=0 write=pair.json

A share of the hot requests has its KV cache in the cold process, which computes their attention
when it polls. Tokens must equal those of each model alone. Both processes share one machine's
cores: they never show a speed.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.atomic import write_json
from c2c.errors import SettingError
from c2c.ranges import Count, In, Index, Share, check_fields
from c2c.systems.weaver.live.links import slot_shape
from c2c.systems.weaver.live.polling_model import check_columns
from c2c.transformer import Shapes, describe, superblock_elements, superblocks_for
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from experiments.papers.weaver.workers import Ended, Side, Together, cold_process, hot_process
from experiments.plain_settings import Ran, run_settings
from experiments.random_requests import random_requests
from pallas_kernels.woven import Slot

__all__ = ["PairSettings", "Waits", "main", "paired", "waits_of"]


@dataclass
class PairSettings:
    """Settings as key=value on the command line.

    Attributes:
      hot: folder of a checkpoint, or a GGUF file; by default SmolLM2.
      cold: as `hot`.
      ratio: share of the hot requests with their KV cache in the cold process.
      requests: requests of the hot model, random.
      cold_requests: requests of the cold model, in rounds; 0: it is idle.
      rows: most requests in a step of either model.
      prompt: most tokens of a prompt.
      new: most tokens of an answer.
      superblocks: superblocks of each pool; null: enough.
      reserve: superblocks that hot requests never take; null: the cold model's need.
      limit_s: seconds within which the cold process must answer.
      columns: columns of the cold model's pieces, multiples of 64, one value a round; 0: whole
        products; empty: whole layers.
      dtype: type of weights, keys and values.
      seed: of prompts, lengths and homes.
      executables: folder of compiled stages; by default none.
      write: file for all numbers, JSON; null: none.
    """

    hot: str = ""
    cold: str = ""
    ratio: Share = 0.45
    requests: Count = 200
    cold_requests: Index = 8
    rows: Count = 8
    prompt: Count = 96
    new: Count = 48
    superblocks: Count | None = None
    reserve: Index | None = None
    limit_s: Annotated[float, In("(0, inf]")] = 10.0
    columns: list[int] = field(default_factory=list)
    dtype: str = "float32"
    seed: int = 0
    executables: str = ""
    write: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Times of tasks that were sent and done, in seconds.

    Attributes:
      waits: from a task's writing to its poll.
      stalls: from the end of the sender's attention to the result.
      late: tasks of a later poll.
      longest: upper bound of a wait: piece + poll + attention.
      uniform: mean wait at uniform times: E[T^2] / (2 E[T]) of pieces T.
    """

    waits: np.ndarray
    stalls: np.ndarray
    late: int
    longest: float
    uniform: float


def together_of(settings: PairSettings, folder: Path) -> Together:
    """Return the state that both processes share; create nothing."""
    paths = [path or str(default_checkpoint()) for path in (settings.hot, settings.cold)]
    hot, cold = (describe(path).spec for path in paths)
    for columns in settings.columns:
        check_columns(columns, cold)
    width = -(-(settings.prompt + settings.new) // PAGE_TOKENS)
    rows = tuple(sorted({max(1, settings.rows // 2), settings.rows}))
    shapes = Shapes(rows=rows, budgets=(64,), width=width, mixes=False)
    needed = superblocks_for(settings.rows * width)
    superblocks = settings.superblocks or 2 * needed
    reserve = settings.reserve
    if reserve is None:
        reserve = min(needed, superblocks) if settings.cold_requests else 0
    if reserve > superblocks:
        raise SettingError("reserve", reserve, f"at most the {superblocks} superblocks of a pool")
    if superblocks < (least := superblocks_for(width)):
        allowed = f"at least {least}, for one request of {settings.prompt} + {settings.new} tokens"
        raise SettingError("superblocks", superblocks, allowed)

    def side(path: str, vocab: int, count: int) -> Side:
        lengths = {"prompt": settings.prompt, "new": settings.new}
        requests = random_requests(count, **lengths, vocab=vocab, seed=settings.seed)
        return Side(checkpoint=path, asked=requests, shapes=shapes)

    return Together(
        hot=side(paths[0], hot.vocab, settings.requests),
        cold=side(paths[1], cold.vocab, settings.cold_requests),
        hot_spec=hot, dtype=settings.dtype, ratio=settings.ratio, seed=settings.seed,
        superblocks=superblocks, superblock=superblock_elements((hot, cold)), reserve=reserve,
        slot=folder / "slot", slot_shape=slot_shape(hot, shapes, settings.dtype),
        limit_s=settings.limit_s,
        columns=tuple(settings.columns),
        executables=Path(settings.executables or folder / "store"),
    )  # fmt: skip


def paired(
    settings: PairSettings, during: Callable[[int, int, int], None] = lambda *_: None
) -> tuple[Ended | None, Ended | None]:
    """Run both processes; return last reports, None of a dead one."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        together = together_of(settings, Path(name))
        with Slot.create(together.slot, together.slot_shape):
            pass
        controls = context.Pipe()
        pipes, processes = [], []
        try:
            for target, control in zip((hot_process, cold_process), controls, strict=True):
                here, there = context.Pipe()
                process = context.Process(
                    target=target, args=(together, control, there), daemon=True,
                    name=target.__name__.split("_")[0],
                )  # fmt: skip
                process.start()
                pipes.append(here)
                processes.append(process)
                for passed in (control, there):  # an open copy would hide the process's end
                    passed.close()
            return _ends(pipes, processes, during)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _ends(
    pipes: list[Any], processes: Sequence[Any], during: Callable[[int, int, int], None]
) -> tuple[Ended | None, Ended | None]:
    ends: list[Ended | None] = [None, None]
    is_ready, open_ = [False, False], list(pipes)
    while open_:
        for ready in wait(open_):
            pipe: Any = ready
            which = pipes.index(pipe)
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                open_.remove(pipe)
                continue
            if isinstance(message, Ended):
                ends[which] = message
                pipe.send("over")
                open_.remove(pipe)
            elif message == "ready":
                is_ready[which] = True
                if all(is_ready):
                    for peer in pipes:
                        peer.send("go")
            else:
                during(message, *(process.pid for process in processes))
        if not all(is_ready) and len(open_) < len(pipes):
            break  # one died at start: the other would wait for ever
    return ends[0], ends[1]


def waits_of(hot: Ended, cold: Ended) -> Waits:
    """Return waits and stalls from both processes' times of tasks."""
    polls = cold.polls
    both = list(zip(hot.times, polls.tasks or [], strict=False))
    return Waits(
        waits=np.array([max(0.0, taken - sent) for (sent, *_), (_, taken, _) in both]),
        stalls=np.array([max(0.0, result - end_s) for _, end_s, result in hot.times]),
        late=sum(before > sent for (sent, *_), (before, *_) in both),
        longest=polls.piece_s + polls.poll_s + polls.task_s,
        uniform=polls.squares_s / (2 * polls.pieces_s) if polls.pieces_s else 0.0,
    )


def _print(settings: PairSettings, hot: Ended, cold: Ended, console: Console) -> Ran:
    waits, table = waits_of(hot, cold), Table(box=SIMPLE_HEAD)
    for name in ("ms", "mean", "median", "99 %", "longest"):
        table.add_column(name, justify="left" if name == "ms" else "right")
    step_columns = np.array(cold.columns)
    for columns in (None, *dict.fromkeys(cold.columns)):
        which = "" if columns is None else f", columns {columns}"
        for name, all_of in (("wait W", waits.waits), ("stall", waits.stalls)):
            values = all_of if columns is None else all_of[step_columns[: len(all_of)] == columns]
            if len(values):
                shown = values.mean(), *np.quantile(values, (0.5, 0.99)), values.max()
                table.add_row(name + which, *(f"{1e3 * value:.2f}" for value in shown))
    console.print(table)
    polls, fell = cold.polls, sum(hot.fallbacks.values())
    within = not len(waits.waits) or bool(waits.waits.max() <= waits.longest)
    reasons = ", ".join(f"{n} by {why}" for why, n in hot.fallbacks.items()) or "none"
    for line in (
        f"{hot.equal} of {hot.answers} hot answers and {cold.equal} of {cold.answers} cold answers "
        "equal to those of each model alone",
        f"{hot.brought} remote requests; {hot.tasks} tasks sent, {cold.tasks} done, in {hot.steps} "
        "steps with remote rows",
        f"fallbacks: {reasons}",
        f"longest piece {polls.piece_s * 1e3:.2f} ms, poll {polls.poll_s * 1e3:.2f} ms, attention "
        f"{polls.task_s * 1e3:.2f} ms: waits {'within' if within else 'BEYOND'} their sum; "
        f"{waits.late} tasks missed by a poll; {polls.count} polls",
        f"mean W of tasks at uniform times {waits.uniform * 1e3:.2f} ms",
        f"still held: {hot.left} and {cold.left} superblocks; stages made after the warm-up: "
        f"{hot.compiled + cold.compiled}",
    ):
        console.print(line)
    if settings.write is not None:
        numbers = {"hot": asdict(hot), "cold": asdict(cold), "late": waits.late}
        write_json(Path(settings.write), numbers)
    counts = hot.left or cold.left or hot.compiled or cold.compiled or waits.late
    same = hot.equal == hot.answers and cold.equal == cold.answers and hot.once and cold.once
    is_right = same and not counts and within and (hot.tasks == cold.tasks or fell)
    return Ran(table, int(not is_right))


def main(arguments: Sequence[str]) -> int:
    """Serve and print; return 1 for a wrong answer or count."""

    def work(settings: PairSettings) -> Ran:
        hot, cold = paired(settings)
        console = Console(highlight=False, width=110)
        for name, end in (("hot", hot), ("cold", cold)):
            if end is None:
                console.print(f"the {name} process ended early")
        if hot is None or cold is None:
            return Ran(status=1)
        return _print(settings, hot, cold, console)

    return run_settings(PairSettings, arguments, work)
