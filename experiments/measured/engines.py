"""Public runs of whole engines in closed loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from c2c.cost import Engine, load_engine
from c2c.errors import SettingError
from c2c.models import ModelSpec, at_precision
from experiments.measured.chips import chip_of
from experiments.measured.ops import is_held_out
from experiments.measured.predict import spec_of
from experiments.measured.rows import Rows
from experiments.plain_engine import Figures, Group, Load, figures_of, served

__all__ = ["EngineRun", "engine_of", "run_figures", "runs_of"]

SETTING: Final = ("model", "system", "backend", "gemm", "isl", "osl", "tp", "ep")
QUEUED: Final = 0.5  # TTFT above this share of the decoding time: clients wait for a place
_LOADS: Final = {8: "1 to 8", 32: "9 to 32", 128: "33 to 128"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """A row: an engine's run on known chips with a known model."""

    platform: str
    backend: str
    version: str
    model: str
    spec: ModelSpec
    precision: str
    isl: int
    osl: int
    concurrency: int
    tp: int
    ep: int
    measured: Figures
    held_out: bool

    @property
    def kind(self) -> str:
        """Return "dense" or "mixture"."""
        return "mixture" if self.spec.experts else "dense"

    @property
    def load(self) -> str:
        """Return the load's class; `queued`: some requests wait."""
        figures = self.measured
        if figures.ttft_s > QUEUED * self.osl * figures.tpot_s:
            return "queued"
        return next((n for most, n in _LOADS.items() if self.concurrency <= most), "above 128")


def runs_of(rows: Rows) -> Iterator[tuple[EngineRun | None, str]]:
    """Yield each row as a run and "", or None and the unknown name."""
    for i, key in enumerate(rows.keys(SETTING)):
        row = {name: rows[name][i] for name in rows.columns}
        platform, spec = chip_of(row["system"]), spec_of(row["model"])
        if platform is None or spec is None:
            yield None, row["system"] if platform is None else row["model"]
            continue
        try:
            spec = at_precision(spec, row["gemm"])
        except SettingError:
            yield None, row["gemm"]
            continue
        isl, osl, clients = int(row["isl"]), int(row["osl"]), int(row["concurrency"])
        yield EngineRun(
            platform=platform, backend=row["backend"], version=row["version"], model=row["model"],
            spec=replace(spec, max_position=max(spec.max_position, isl + osl)),
            precision=row["gemm"], isl=isl, osl=osl, concurrency=clients, tp=int(row["tp"]),
            ep=int(row["ep"]), held_out=is_held_out(key),
            measured=figures_of(row["ttft_ms"] / 1e3, row["tpot_ms"] / 1e3, osl, clients),
        ), ""  # fmt: skip


def engine_of(run: EngineRun) -> Engine:
    """Return the nearest engine of `conf/engines`."""
    return load_engine(f"{run.backend}-{run.version}")


def run_figures(run: EngineRun, engine: Engine | None = None) -> Figures | None:
    """Return a run's simulated figures, or None."""
    group = Group(platform=run.platform, tp=run.tp, apart=run.ep > 1)
    load = Load(isl=run.isl, osl=run.osl, clients=run.concurrency)
    try:
        return served(group, run.spec, engine or engine_of(run), load)[0]
    except SettingError:
        return None
