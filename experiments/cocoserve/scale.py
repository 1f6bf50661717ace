"""Layers of a model are copied, moved and taken back over devices while requests stream, live.

    python -m experiments.cocoserve.scale model=<checkpoint> devices=4 requests=200 operations=200

Requests are served twice: by the model on one device, and while operations drawn at random change
where its layers and their keys and values are. Tokens and the bits of logits must be equal. Each
operation has its bytes, its pieces and its longest pause; memory of each device is compared to the
prediction after each. Devices of a CPU share its cores: they show tokens, bytes and compilations,
never a speed.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.atomic import write_json
from c2c.errors import SettingError
from c2c.runs import progress_bar
from c2c.systems.cocoserve.moves import after
from c2c.systems.cocoserve.operations import Operation
from c2c.transformer import (
    Executables,
    KvPool,
    Model,
    OnDevice,
    Runner,
    Sampling,
    Shapes,
    Step,
    block_elements,
    load,
)  # fmt: skip
from c2c.transformer.executables import in_host_memory
from c2c.transformer.pages import PAGE_TOKENS, OutOfPages
from c2c.transformer.relayout import Moved, Relayout, ready_to_move
from c2c.transformer.spread import OverDevices, layer_bytes
from c2c.transformer.stays import Laid
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from experiments.command import command
from experiments.plain_settings import read_settings

__all__ = ["Asked", "Done", "ScaleSettings", "main", "scaled", "serve"]

_jax: Any = jax  # parts of it are untyped
_LONG: Final = ("texts", "logits")  # of what is written, left out


@dataclass
class ScaleSettings:
    """Settings, as key=value on the command line.

    Attributes:
      model: folder of a checkpoint, or a GGUF file; by default one that is fetched if it is not
        there.
      linear: how projections are multiplied: reference, or hybrid (weights in host memory, which
        copies of a layer share).
      devices: of this process; a CPU is told to have so many.
      requests: prompts of random tokens and lengths.
      operations: at least so many are begun, one after another, while requests last.
      rows: requests in a step at most.
      prompt: tokens of a prompt at most.
      new: tokens of an answer at most.
      piece_bytes: that an operation copies between two steps.
      seed: of prompts, lengths and operations.
      executables: folder of compiled stages; by default they are compiled for this run.
      write: file for a table of the operations, JSON; null: none.
    """

    model: str = ""
    linear: str = "reference"
    devices: int = 4
    requests: int = 48
    operations: int = 60
    rows: int = 16
    prompt: int = 96
    new: int = 48
    piece_bytes: int = 1 << 16
    seed: int = 0
    executables: str = ""
    write: str | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("devices", 2), ("requests", 1), ("operations", 0), ("rows", 2), ("prompt", 1),
            ("new", 1), ("piece_bytes", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                allowed = f"a whole number, at least {least}"
                raise SettingError(name, getattr(self, name), allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: its prompt and the tokens of its answer."""

    ids: tuple[int, ...]
    new: int


@dataclass(slots=True)
class Done:
    """What a run of requests gave, and its operations.

    Attributes:
      texts: tokens of each request.
      logits: a digest of each step's logits.
      steps: calls.
      operations: a row each, of those that ended.
      failed: those that found no room.
      compiled: executables that were compiled after all was ready.
      loaded: executables that were loaded after all was ready.
      counts: steps, changes of rows' devices and transitions.
      unequal: operations after which a device's memory was not as predicted.
      left: blocks that are still held at the end.
    """

    texts: list[list[int]]
    logits: list[str] = field(default_factory=list)
    steps: int = 0
    operations: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    compiled: int = 0
    loaded: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    unequal: int = 0
    left: int = 0


def asked_by(settings: ScaleSettings, vocab: int) -> list[Asked]:
    """Return the requests."""
    g = np.random.default_rng(settings.seed)
    return [
        Asked(
            ids=tuple(g.integers(0, vocab, int(g.integers(1, settings.prompt + 1))).tolist()),
            new=int(g.integers(1, settings.new + 1)),
        )
        for _ in range(settings.requests)
    ]


def shapes_of(settings: ScaleSettings) -> Shapes:
    """Return the shapes of both runs, in which a group of rows is as large as all of them.

    Products of other sizes add up in another order, so that logits would differ in their last bits.
    """
    width = -(-(settings.prompt + settings.new) // PAGE_TOKENS)
    return Shapes(rows=(settings.rows,), budgets=(64,), width=width, mixes=False)


def serve(runner: Runner, asked: Sequence[Asked]) -> Iterator[Done]:
    """Serve all requests, a prompt's piece by turns with all decodes; yield at step boundaries.

    Args:
      runner: with no request.
      asked: the requests; new ones come as seats are free.
    """
    done = Done(texts=[[] for _ in asked])
    _record(runner, done.logits)
    waiting, number, filling = list(range(len(asked))), -1, 0
    decoding: dict[int, None] = {}
    while waiting or runner.requests:
        if number < 0 and waiting and len(runner.requests) < runner.seats:
            number = waiting.pop(0)
            runner.submit(number, asked[number].ids, new=asked[number].new, sampling=Sampling())
            filling = len(asked[number].ids)
        steps = [Step(decode=tuple(decoding))] if decoding else []
        if number >= 0:
            piece = min(filling, runner.shapes.budgets[-1])
            steps.insert(0, Step(fill=(number, piece)))
            filling -= piece
            number = number if filling else -1
        for step in steps:
            for request, token, ended in runner.finish(runner.start(step)).tokens:
                done.texts[request].append(token)
                decoding[request] = None
                if ended is not None:
                    del decoding[request]
            done.steps += 1
            yield done


def _record(runner: Runner, logits: list[str]) -> None:
    """Have digests of the logits that a runner draws from noted."""
    executor: Any = runner.executor
    compute = executor.compute

    def noted(laid: Laid, tokens: Any, wanted: Any, *, has_logits: bool = True) -> Any:
        found = compute(laid, tokens, wanted, has_logits=has_logits)
        if has_logits:
            rows = [row for row, stay in enumerate(laid.drawing) if stay is not None]
            logits.append(hashlib.sha256(np.asarray(found)[rows].tobytes()).hexdigest())
        return found

    executor.compute = noted


def operations_on(over: OverDevices, draws: random.Random) -> tuple[Operation, list[int]] | None:
    """Return an operation drawn among those that are possible, and the requests that it names."""
    copies, layers = over.spread.copies, len(over.spread.copies)
    first = draws.randrange(layers)
    run = range(first, draws.randrange(first, layers) + 1)
    device = draws.randrange(len(over.pools))
    here = [stay.request for stay in over.kept]
    some = draws.sample(here, draws.randint(0, len(here)))
    kind = draws.choice(("replicate", "migrate", "evict", "kv"))
    if kind == "replicate":
        free = tuple(n for n in run if device not in copies[n])
        if free:
            return Operation(kind="replicate", layers=free, device=device), some
    elif kind == "migrate":
        source = draws.choice(copies[first])
        moved = tuple(n for n in run if source in copies[n] and device not in copies[n])
        if moved:
            each = Operation(
                kind="migrate", layers=moved, source=source, device=device, with_kv=True
            )
            return each, []
    elif kind == "evict":
        several = [n for n in run if len(copies[n]) > 1 and device in copies[n]]
        to = next((d for n in several for d in copies[n] if d != device), None)
        several = [n for n in several if to in copies[n]]
        if several and to is not None:
            return Operation(kind="evict", layers=tuple(several), source=device, device=to), []
    else:
        held = tuple(n for n in run if device in copies[n])
        if held and some:
            return Operation(kind="migrate", layers=held, device=device, with_kv=True), some
    return None


def scaled(model: Model, settings: ScaleSettings) -> tuple[Done, Done]:
    """Serve requests on one device, then while operations change the layout; return both."""
    executables = model.executables
    assert executables is not None
    spec, shapes, dtype = model.spec, shapes_of(settings), model.params.dtype
    asked = asked_by(settings, spec.vocab)
    blocks = (settings.rows + 2) * shapes.width
    devices = jax.devices()[: settings.devices]

    def pool(device: Any) -> KvPool:
        return KvPool(
            blocks, block_elements(spec), dtype=dtype, executables=executables, device=device
        )

    plain = OnDevice(model.params, spec, model.linear, pool(devices[0]), executables=executables)
    runner = Runner(plain, shapes)
    runner.warm(draws=(False,), scores=False)
    *_, alone = serve(runner, asked)
    over = OverDevices(
        model.params, spec, model.linear, tuple(map(pool, devices)), shapes,
        executables=executables,
    )  # fmt: skip
    runner = Runner(over, shapes)
    runner.warm(draws=(False,), scores=False)
    ready_to_move(over)
    for device in devices[1:]:  # placing an array on a device for the first time is no step
        _jax.block_until_ready(jax.device_put(np.zeros(1, np.float32), device))
    sizes = [layer_bytes(over.weights[n, 0]) for n in range(spec.layers)]
    draws = random.Random(settings.seed)  # noqa: S311
    before = executables.compiled, executables.loaded
    change, began = None, {}
    done = alone
    with progress_bar("operations", settings.operations) as report:
        for done in serve(runner, asked):
            if change is None and len(done.operations) + done.failed < settings.operations:
                drawn = operations_on(over, draws)
                if drawn is not None:
                    change = _begun(over, *drawn, settings.piece_bytes)
                    began = {"kind": drawn[0].kind, "layers": len(drawn[0].layers), "pause_s": 0.0}
                    done.failed += change is None
            if change is None:
                continue
            begun_s = time.perf_counter()
            try:
                moved = change.advance()
            except OutOfPages:
                change, done.failed = None, done.failed + 1
                continue
            began["pause_s"] = max(began["pause_s"], time.perf_counter() - begun_s)
            if moved is not None:
                change = None
                done.unequal += not _as_predicted(over, sizes)
                done.operations.append(began | _row(moved))
                report(len(done.operations) + done.failed)
    if change is not None:
        change.cancel()
    done.compiled, done.loaded = executables.compiled - before[0], executables.loaded - before[1]
    done.counts = over.counts
    done.left = sum(lease.held for lease in over.leases)
    return alone, done


def _begun(
    over: OverDevices, operation: Operation, requests: list[int], piece_bytes: int
) -> Relayout | None:
    paths = {stay.request: kept.path for stay, kept in over.kept.items()}
    spread, homes = after(operation, over.spread, paths, requests=requests)
    try:
        return Relayout(over, spread, homes, piece_bytes=piece_bytes)
    except SettingError as error:
        if "blocks" in str(error):  # for keys and values: an operation that has to wait
            return None
        raise


def _row(moved: Moved) -> dict[str, Any]:
    return {
        "weight_bytes": moved.weight_bytes, "kv_bytes": moved.kv_bytes, "pieces": moved.pieces,
        "requests": moved.requests,
    }  # fmt: skip


def _as_predicted(over: OverDevices, sizes: Sequence[int]) -> bool:
    """Return whether each device beside the first holds its pool and its layers, to the byte."""
    held: Counter[Any] = Counter()
    for array in _jax.live_arrays():
        if len(array.devices()) == 1 and not in_host_memory(array):
            held[next(iter(array.devices()))] += array.nbytes
    return all(
        held[pool.device]
        == over.held_bytes(d)
        == pool.nbytes + sum(sizes[n] for n, on in enumerate(over.spread.copies) if d in on)
        for d, pool in enumerate(over.pools)
        if d
    )


def _print(settings: ScaleSettings, alone: Done, done: Done, console: Console) -> None:
    table = Table(box=SIMPLE_HEAD)
    for name in ("operation", "times", "layers", "MB weights", "MB KV", "pieces", "longest ms"):
        table.add_column(name, justify="left" if name == "operation" else "right")
    for kind in dict.fromkeys(str(row["kind"]) for row in done.operations):
        rows = [row for row in done.operations if row["kind"] == kind]
        total = {name: sum(row[name] for row in rows) for name in rows[0] if name != "kind"}
        table.add_row(
            kind, str(len(rows)), str(total["layers"]), f"{total['weight_bytes'] / 1e6:.1f}",
            f"{total['kv_bytes'] / 1e6:.1f}", str(total["pieces"]),
            f"{max(row['pause_s'] for row in rows) * 1e3:.1f}",
        )  # fmt: skip
    console.print(table)
    equal = sum(a == b for a, b in zip(alone.texts, done.texts, strict=True))
    same = sum(a == b for a, b in zip(alone.logits, done.logits, strict=True))
    for line in (
        f"{equal} of {len(done.texts)} answers equal to those of one device, "
        f"logits of {same} of {len(alone.logits)} steps to the bit",
        f"{done.steps} steps, {done.counts['changes']} changes of rows' devices, "
        f"{done.counts['transitions']} transitions",
        f"{len(done.operations)} operations done, {done.failed} found no room; "
        f"{done.unequal} left memory other than predicted; {done.left} blocks left",
        f"after all was ready: {done.compiled} compiled, {done.loaded} loaded",
    ):
        console.print(line)
    if settings.write is not None:
        counted = {f.name: getattr(done, f.name) for f in fields(done) if f.name not in _LONG}
        counted |= {"equal": equal, "same_logits": same, "requests": len(done.texts)}
        write_json(Path(settings.write), counted)


def main(arguments: Sequence[str]) -> int:
    """Serve, change and print; return the exit status, 1 if an answer or a count is wrong."""

    def run() -> int:
        settings = read_settings(ScaleSettings, arguments)
        if jax.config.jax_platforms in ("cpu", None):
            _jax.config.update("jax_num_cpu_devices", settings.devices)
        if len(jax.devices()) < settings.devices:
            raise SettingError("devices", settings.devices, f"at most {len(jax.devices())}")
        with tempfile.TemporaryDirectory() as folder:
            model = load(
                settings.model or default_checkpoint(),
                "float32" if settings.linear == "reference" else "bfloat16",
                linear=settings.linear,
                executables=Executables(settings.executables or folder),
            )  # fmt: skip
            alone, done = scaled(model, settings)
        _print(settings, alone, done, Console(highlight=False, width=110))
        is_same = (alone.texts, alone.logits) == (done.texts, done.logits)
        return int(not is_same or bool(done.unequal or done.left or done.compiled or done.loaded))

    return command(run, arguments=arguments, goes_on=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
