"""Settings of an engine, as one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from c2c.cost import Constants
from c2c.engine.devices import Device
from c2c.engine.fleet import Options
from c2c.errors import SettingError
from c2c.serving import SystemSpec

__all__ = ["EngineSettings"]

_WORKER = "c2c.engine.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of an engine.

    Attributes:
      options: of the workers.
      constants: constants of the cost model, for predictions.
      gpus: devices to bind workers to, in order; (): workers see all.
      executables: folder of compiled code; "auto": the default; None: each process compiles.
      pools: folder of weight files that workers share; None: temporary files.
      max_open: most concurrent requests.
      retries: losses without a token between that a request survives.
      patience: processes without work after which a worker is given up.
      has_spare: whether a standby process replaces a lost worker.
      hang_s: silence after which a computing worker is killed.
      start_s: silence after which a starting worker is killed; it may compile.
      is_recorded: whether all steps and requests are kept, to be written at the end.
      ttft_slo_s: target of TTFT.
      tpot_slo_s: target of TPOT.
      compiled: whether the loop's step runs as machine code; else it is interpreted.
      busy_poll: whether the scheduler polls for due reports while the core is idle.
      worker: module of a worker's process.
      add_from: folder of checkpoints that can be added and removed while serving.
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
    worker: str = _WORKER
    add_from: Path | None = None

    def __post_init__(self) -> None:
        if self.system.layout is not None and self.worker == _WORKER:
            allowed = f"a module of workers over several devices, for {self.system.layout.name}"
            raise SettingError("worker", self.worker, allowed)
        if self.add_from is None:
            return
        if not self.add_from.is_dir():
            raise SettingError("add_from", str(self.add_from), "a folder of checkpoints, or null")
        unlike = {
            "linear=reference": self.options.linear == "reference",
            "a layout over several devices": self.system.layout is not None,
            "system.prefix_cache.hbm, which identifies blocks by model name": (
                self.system.prefix_cache.is_on
            ),
            "out=, as a replay needs the models of the start": self.is_recorded,
        }
        if others := [name for name, holds in unlike.items() if holds]:
            raise SettingError("add_from", str(self.add_from), f"null with {others[0]}")
