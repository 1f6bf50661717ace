"""Generating text from the command line: settings, prompts, run folders, what is printed.

Only what needs no jax is imported here, so that a wrong setting is said at once.
"""

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
