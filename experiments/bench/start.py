"""Time to first token in a fresh process, with and without stored executables. Takes two minutes.

    python -m experiments.bench.start linear=[reference,staged] repeats=5

Each start is a process of its own. Three kinds take turns: executables compiled, loaded from the
store, and loaded from it while weights are read, as in `experiments.generate`. The page cache is
warm; every part is reported. The first start of a kind fills the store and is not counted. Writes
JSON with provenance to a folder in runs/bench.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from c2c.engine.others import CpuSeconds, cpu_seconds, share_of_others
from c2c.errors import DataError, SettingError
from c2c.runs import RunDir
from experiments.benchmark import MeasurementSettings, benchmark
from experiments.children import answer_of

__all__ = ["Start", "StartSettings", "main", "measure"]

TARGET = 5.0
"""Planned ratio of the time to the first token after weights are mapped, compiled over stored."""


@dataclass
class StartSettings(MeasurementSettings):
    """Settings of the benchmark, as key=value on the command line.

    Attributes:
      checkpoint: folder or GGUF file; by default SmolLM2, downloaded if missing.
      dtype: type of parameters and activations.
      linear: strategies of linear layers to measure.
      prompt: tokens of the prompt.
      repeats: counted starts of each kind.
      seed: seed of the prompt.
    """

    checkpoint: str = ""
    dtype: str = "float32"
    linear: list[str] = field(default_factory=lambda: ["reference", "staged"])
    prompt: int = 16
    repeats: int = 5
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Parts of one start, in seconds: imports, mapped weights and first token, one after another.

    Attributes:
      import_s: from the start of the process to the end of imports, with those of the file format.
      map_s: reading the checkpoint into memory, with jax's own start and all parallel work.
      weights_s: part of `map_s` that reads the weights.
      beside_s: part of `map_s` in another thread: tokenizer, and executables made ready.
      first_token_s: from mapped weights to the first token.
      again_s: a second run of the same prompt: the computing part of `first_token_s`.
      compiles: executables that XLA compiled up to the first token.
      loaded: executables loaded from the store.
      token: the first token, the same in every start.
    """

    import_s: float
    map_s: float
    weights_s: float
    beside_s: float
    first_token_s: float
    again_s: float
    compiles: int
    loaded: int
    token: int

    @property
    def ready_s(self) -> float:
        """Seconds to make executables ready: tracing and compiling, or loading."""
        return self.first_token_s - self.again_s

    @property
    def whole_s(self) -> float:
        """Seconds from the start of the process to the first token."""
        return self.import_s + self.map_s + self.first_token_s

    @property
    def bound_s(self) -> float:
        """Lower bound of `whole_s`: weights are read in parallel with tokenizer and executables."""
        others_s = self.map_s - self.weights_s + self.ready_s
        return self.import_s + max(self.weights_s, others_s) + self.again_s

    @property
    def own_bound_s(self) -> float:
        """Lower bound of `whole_s` from this start's own parts, which ran in parallel.

        The parts include their slowdown of each other if cores are short.
        """
        return self.import_s + max(self.weights_s, self.beside_s) + self.again_s


_CHILD = """
import json, sys, time
settings = json.loads(sys.argv[1])
import jax
import numpy as np
from c2c.transformer import Wanted, buckets_of, load
if settings["checkpoint"].endswith(".gguf"):
    import gguf  # as `load` does for such a file
imported = time.time()
took = {}
wanted = Wanted(buckets=buckets_of(settings["prompt"], 1), draws=(False,), scores=False)
compiles = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _s, **_i: compiles.append(event) if "backend_compile" in event else None
)
model = load(
    settings["checkpoint"],
    settings["dtype"],
    linear=settings["linear"],
    executables=settings["executables"],
    progress=False,
    ahead=(lambda spec, tokenizer: wanted) if settings["ahead"] else None,
    took=took.__setitem__,
)
rng = np.random.default_rng(settings["seed"])
ids = rng.integers(0, model.spec.vocab, settings["prompt"]).tolist()
mapped = time.time()
(token,) = model.generate(ids, 1)
first, count = time.time(), len(compiles)
again_s = []
for _ in range(3):
    start = time.time()
    assert model.generate(ids, 1) == [token]
    again_s.append(time.time() - start)
print(json.dumps({
    "import_s": imported - settings["started"], "map_s": mapped - imported,
    "weights_s": took["weights"], "beside_s": took["tokenizer"] + took.get("executables", 0.0),
    "first_token_s": first - mapped, "again_s": min(again_s),
    "compiles": count, "token": token,
    "loaded": model.executables.loaded if model.executables else 0,
}))
"""


def measure(
    settings: StartSettings, linear: str, executables: str | None, *, ahead: bool = False
) -> Start:
    """Start a process, generate one token in it and return the time of each part.

    Raises:
      SettingError: the process does not run.
    """
    given = asdict(settings) | {
        "linear": linear,
        "executables": executables,
        "ahead": ahead,
        "started": time.time(),
    }
    line = [sys.executable, "-c", _CHILD, json.dumps(given)]
    return Start(
        **answer_of(
            line,
            lambda why: SettingError("linear", linear, f"a start that works ({why})"),
            apart=False,
        )
    )


def _medians(starts: Sequence[Start]) -> dict[str, float]:
    parts = (
        "import_s", "map_s", "weights_s", "beside_s", "ready_s", "again_s", "first_token_s",
        "whole_s", "bound_s", "own_bound_s", "compiles", "loaded",
    )  # fmt: skip
    return {part: statistics.median(getattr(s, part) for s in starts) for part in parts}


def run(settings: StartSettings, out: Console) -> list[dict[str, Any]]:
    """Measure all strategies with and without a store, print a table and return its rows."""
    rows: list[dict[str, Any]] = []
    for linear in settings.linear:
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "repository")
            measure(settings, linear, store)
            starts: dict[str, list[Start]] = {"compiled": [], "stored": [], "beside": []}
            before = cpu_seconds()
            for _ in range(settings.repeats):
                starts["compiled"].append(measure(settings, linear, None))
                starts["stored"].append(measure(settings, linear, store))
                starts["beside"].append(measure(settings, linear, store, ahead=True))
            others = _others_share(before)
            stored_bytes = sum(path.stat().st_size for path in Path(store).iterdir())
        if len({start.token for each in starts.values() for start in each}) != 1:
            raise DataError(linear, "first tokens differ between starts")
        medians = {kind: _medians(each) for kind, each in starts.items()}
        first = {kind: each["first_token_s"] for kind, each in medians.items()}
        for kind, each in medians.items():
            rows.append(
                {
                    "linear": linear,
                    "executables": kind,
                    **each,
                    "times_less": first["compiled"] / each["first_token_s"],
                    "ready_times_less": medians["compiled"]["ready_s"] / each["ready_s"],
                    "over_bound": _over_bound(starts[kind], starts["stored"]),
                    "over_own_bound": statistics.median(
                        s.whole_s / s.own_bound_s for s in starts[kind]
                    ),
                    "others_share": others,
                    "stored_bytes": 0 if kind == "compiled" else stored_bytes,
                    "starts": [asdict(start) for start in starts[kind]],
                }
            )
    out.print(_table(rows, settings))
    return rows


def _over_bound(starts: Sequence[Start], stored: Sequence[Start]) -> float:
    """Return the median ratio of starts to the bound of the stored start in the same turn.

    The ratio is taken turn by turn, since the load of a shared machine changes within minutes.
    """
    return statistics.median(
        one.whole_s / parts.bound_s for one, parts in zip(starts, stored, strict=True)
    )


def _others_share(before: CpuSeconds | None) -> float | None:
    """Return the share of the cores that other processes used since `before`; None if unknown."""
    now = cpu_seconds()
    return None if before is None or now is None else share_of_others(before, now)


def _table(rows: Sequence[dict[str, Any]], settings: StartSettings) -> Table:
    title = (
        f"start to first token, prompt of {settings.prompt}, seconds, median of "
        f"{settings.repeats}; goal: {TARGET:.0f} times less after weights are mapped"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    heads = ("linear", "executables", "import", "map", "weights", "ready", "compute", "first",
             "less", "whole", "of bound", "own", "compiled", "loaded", "MB")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head in heads[:2] else "right", no_wrap=True)
    for row in rows:
        parts = ("import_s", "map_s", "weights_s", "ready_s", "again_s", "first_token_s")
        table.add_row(
            row["linear"],
            row["executables"],
            *(f"{row[part]:.3f}" for part in parts),
            f"{row['times_less']:.1f}",
            f"{row['whole_s']:.3f}",
            f"{row['over_bound']:.2f}",
            f"{row['over_own_bound']:.2f}",
            f"{row['compiles']:.0f}",
            f"{row['loaded']:.0f}",
            f"{row['stored_bytes'] / 1e6:.1f}",
        )
    table.caption = (
        "map: weights and parallel work. ready: trace and compile, or load. first: from mapped "
        "weights to the first token. less: compiled over this start's first. whole: from the "
        "process's start. of bound: whole over imports + max(weights, tokenizer and executables) "
        "+ first computation, by parts of the `stored` start just before; goal 1.05 at most. own: "
        "by this start's own parts."
        + "".join(
            f" Other processes: {row['others_share']:.0%} of the cores ({row['linear']})."
            for row in rows
            if row["executables"] == "beside" and row["others_share"] is not None
        )
    )
    return table


def _check(settings: StartSettings) -> None:
    for name in ("prompt", "repeats"):
        if getattr(settings, name) < 1:
            raise SettingError(name, getattr(settings, name), "a whole number above 0")
    if not settings.linear:
        raise SettingError("linear", [], "at least one strategy")
    if settings.seed < 0:
        raise SettingError("seed", settings.seed, "a whole number, at least 0")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the command line asks for; return the exit status."""

    def completed(settings: StartSettings) -> None:
        _check(settings)
        if not settings.checkpoint:
            from c2c.transformer.weights.default_checkpoint import default_checkpoint

            settings.checkpoint = str(default_checkpoint())

    def work(settings: StartSettings, folder: RunDir, out: Console) -> None:
        folder.write_json("start", {"target_times_less": TARGET, "rows": run(settings, out)})

    packages = ("c2c", "pallas_kernels")
    return benchmark(
        StartSettings, arguments, work, check=completed, packages=packages, name="start"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
