"""A live engine: the serving loop on the clock, over workers that compute; OpenAI's API in front.

What is here needs the extra `serve`; only the worker's modules import jax.
"""

from c2c.engine.catalog import find_models
from c2c.engine.fleet import Options, fleet_of
from c2c.engine.scheduler import Engine, EngineSettings

__all__ = ["Engine", "EngineSettings", "Options", "find_models", "fleet_of"]
