"""Live copies, moves and evictions of a model's layers between devices while requests stream.

    c2c try cocoserve model=<checkpoint> devices=4 requests=200 operations=200

Tokens and logits must equal those of one device; prints bytes, pieces and the longest pause.
Devices of a CPU share its cores: they never show a speed.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import jax
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.atomic import write_json
from c2c.errors import SettingError
from c2c.ranges import In
from c2c.runs import progress_bar
from c2c.systems.cocoserve import Operation
from c2c.systems.cocoserve.live.spread import OverDevices
from c2c.systems.cocoserve.moves import after
from c2c.transformer import Executables, load
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from experiments.papers.cocoserve.live import Change, Done, Load, scaled
from experiments.plain_settings import Ran, run_settings

__all__ = ["ScaleSettings", "drawn_on", "main", "operation_on"]

_jax: Any = jax  # parts of it are untyped
_LONG: Final = ("texts", "logits")  # fields left out of the written file


@dataclass
class ScaleSettings(Load):
    """Settings, as key=value on the command line; those of `Load` as well.

    Attributes:
      model: folder of a checkpoint, or a GGUF file; by default SmolLM2.
      linear: reference, or hybrid (weights in host memory).
      devices: number of jax devices; a CPU emulates them.
      executables: folder of compiled stages; by default none.
      write: file for a table of the operations, JSON; null: none.
    """

    model: str = ""
    linear: str = "reference"
    devices: Annotated[int, In("[2, inf)")] = 4
    executables: str = ""
    write: str | None = None


def drawn_on(over: OverDevices, draws: random.Random) -> Change | None:
    """Return a random operation's change, or None if impossible."""
    choice = operation_on(over, draws)
    if choice is None:
        return None
    operation, requests = choice
    paths = {stay.request: record.path for stay, record in over.kept.items()}
    spread, homes = after(operation, over.spread, paths, requests=requests)
    return Change(kind=operation.kind, layers=len(operation.layers), spread=spread, homes=homes)


def operation_on(over: OverDevices, draws: random.Random) -> tuple[Operation, list[int]] | None:
    """Return a random operation and its requests, or None."""
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
            operation = Operation(
                kind="migrate", layers=moved, source=source, device=device, with_kv=True
            )
            return operation, []
    elif kind == "evict":
        several = [n for n in run if len(copies[n]) > 1 and device in copies[n]]
        to = next((d for n in several for d in copies[n] if d != device), None)
        several = [n for n in several if to in copies[n]]
        if several and to is not None:
            return Operation(kind="evict", layers=tuple(several), source=device, device=to), []
    else:
        run_layers = tuple(n for n in run if device in copies[n])
        if run_layers and some:
            return Operation(kind="migrate", layers=run_layers, device=device, with_kv=True), some
    return None


def _print(settings: ScaleSettings, alone: Done, done: Done, console: Console) -> Table:
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
        f"{equal} of {len(done.texts)} answers equal to one device's, logits of {same} of "
        f"{len(alone.logits)} steps equal bit by bit",
        f"{done.steps} steps, {done.counts['changes']} changes of rows' devices, "
        f"{done.counts['transitions']} transitions",
        f"{len(done.operations)} operations done, {done.failed} without memory; "
        f"{done.unequal} with unpredicted memory; {done.left} blocks still held",
        f"after the warm-up: {done.compiled} compiled, {done.loaded} loaded",
    ):
        console.print(line)
    if settings.write is not None:
        counted = {f.name: getattr(done, f.name) for f in fields(done) if f.name not in _LONG}
        counted |= {"equal": equal, "same_logits": same, "requests": len(done.texts)}
        write_json(Path(settings.write), counted)
    return table


def main(arguments: Sequence[str]) -> int:
    """Serve, change and print; return 1 for a wrong answer or count."""

    def work(settings: ScaleSettings) -> Ran:
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
            with progress_bar("operations", settings.operations) as report:
                devices = jax.devices()[: settings.devices]
                alone, done = scaled(model, settings, devices, drawn_on, report=report)
        table = _print(settings, alone, done, Console(highlight=False, width=110))
        is_same = (alone.texts, alone.logits) == (done.texts, done.logits)
        wrong = done.unequal or done.left or done.compiled or done.loaded
        return Ran(table, int(not is_same or bool(wrong)))

    return run_settings(ScaleSettings, arguments, work)
