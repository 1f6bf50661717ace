"""Live engine: the serving loop in real time, workers, an OpenAI-compatible API."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from c2c.engine.catalog import find_models
    from c2c.engine.fleet import Options, fleet_of
    from c2c.engine.process import run_in_loop, settle_memory
    from c2c.engine.scheduler import Engine
    from c2c.engine.settings import EngineSettings

__all__ = [
    "Engine",
    "EngineSettings",
    "Options",
    "find_models",
    "fleet_of",
    "run_in_loop",
    "settle_memory",
]

_HOMES = {
    "EngineSettings": "settings",
    "find_models": "catalog",
    "Options": "fleet",
    "fleet_of": "fleet",
    "run_in_loop": "process",
    "settle_memory": "process",
}


# Lazy imports: only modules of the worker import jax, and a replacement worker starts sooner.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'scheduler')}"), name)
