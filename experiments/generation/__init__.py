"""Text generation from the command line."""

from experiments.generation.overrides import protected
from experiments.generation.schema import GenerateConf, register
from experiments.generation.screen import Display, note
from experiments.generation.settings import Settings, settings_of

__all__ = [
    "Display",
    "GenerateConf",
    "Settings",
    "note",
    "protected",
    "register",
    "settings_of",
]

# This package imports no jax, so that an invalid setting is reported at once.
