"""Settings of an engine, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from c2c.cost import Constants
from c2c.engine.devices import Device
from c2c.engine.fleet import Options
from c2c.errors import SettingError
from c2c.serving import SystemSpec

__all__ = ["EngineSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of an engine.

    Attributes:
      options: of the workers.
      system: who decides.
      constants: of the cost model, by which policies predict.
      gpus: devices that workers are bound to, one worker's after the other's; none: they see what
        there is.
      executables: folder of compiled code; None: each process compiles its own.
      pools: folder of weights that workers share; None: one that ends with the engine.
      max_open: requests at the same time; further ones are turned away.
      retries: losses of workers in a row, without a token between, that a request survives.
      patience: processes in a row that did nothing after which a worker is given up.
      has_spare: whether a process stands by to take the place of a lost one.
      hang_s: silence after which a worker that computes is killed.
      start_s: silence after which a worker that is not ready yet is killed; it may compile.
      is_recorded: whether every step and request is kept, to be written at the end.
      ttft_slo_s: target that policies see.
      tpot_slo_s: likewise.
      compiled: whether the loop's step is run as machine code, which is made in the background
        where there is none yet; else interpreted.
      busy_poll: whether the scheduler looks for reports that are due, in place of sleeping, as long
        as nobody else wants the core.
      worker: module that a worker's process runs.
      add_from: folder of checkpoints that may be added while the engine serves; None: models are
        neither added nor removed.
    """

    options: Options
    system: SystemSpec
    constants: Constants
    gpus: tuple[Device, ...] = ()
    executables: str | None = "auto"
    pools: Path | None = None
    max_open: int = 1024
    retries: int = 3
    patience: int = 20
    has_spare: bool = True
    hang_s: float = 60.0
    start_s: float = 600.0
    is_recorded: bool = False
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.2
    compiled: bool = False
    busy_poll: bool = True
    worker: str = "c2c.engine.worker"
    add_from: Path | None = None

    def __post_init__(self) -> None:
        if self.add_from is None:
            return
        if not self.add_from.is_dir():
            raise SettingError("add_from", str(self.add_from), "a folder of checkpoints, or null")
        unlike = {
            "linear=reference": self.options.linear == "reference",
            "a layout over several devices": self.system.layout is not None,
            "system.prefix_cache.hbm, whose blocks are a model's by its name": (
                self.system.prefix_cache.is_on
            ),
            "out=, as a run is replayed with the models that it began with": self.is_recorded,
        }
        if others := [name for name, holds in unlike.items() if holds]:
            raise SettingError("add_from", str(self.add_from), f"null with {others[0]}")
