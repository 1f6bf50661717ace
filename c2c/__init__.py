"""c2c: serve many LLMs on GPUs whose weights live in host memory.

    from c2c import Fleet, Workload, simulate
    result = simulate(Fleet(system="c2cserve_plus", mig="4x24gb"), Workload("poisson", rate_rps=2))
    result.ttft.p99

Names are imported on first use; `c2c.transformer` runs models for real.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from c2c.config.build import RunSetup
    from c2c.config.keywords import Fleet, Workload, simulate
    from c2c.config.simulate import SimulationResult
    from c2c.errors import DataError, SettingError

__all__ = [
    "DataError",
    "Fleet",
    "RunSetup",
    "SettingError",
    "SimulationResult",
    "Workload",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("c2c")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "c2c.errors" if name.endswith("Error") else "c2c.config.keywords"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
