"""c2c: serve many LLMs on GPUs whose weights live in host memory.

    import c2c
    result = c2c.simulate(c2c.build(c2c.load(["system=c2cserve_plus", "mig=planned"])))
    result.summary["attainment"]

`load` composes a run, `build` checks it, `simulate` simulates it. The packages below are
`c2c.hardware` (chips and MIG layouts), `c2c.models`, `c2c.workloads`, `c2c.cost` (step times),
`c2c.policies`, `c2c.serving` (the loop), `c2c.simulator`, `c2c.metrics`, `c2c.runs`;
`c2c.transformer` runs models for real. Names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from c2c.config.build import RunSetup, build
    from c2c.config.compose import load
    from c2c.config.simulate import SimulationResult, simulate
    from c2c.errors import DataError, SettingError

__all__ = [
    "DataError",
    "RunSetup",
    "SettingError",
    "SimulationResult",
    "build",
    "load",
    "simulate",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "c2c.errors" if name.endswith("Error") else "c2c.config"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
