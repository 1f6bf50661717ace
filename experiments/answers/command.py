"""The command lines of questions: settings of `experiments.simulate`, and a few of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError
from yaml import YAMLError

from c2c.config import SWEEP, as_setting_error
from c2c.errors import SettingError
from experiments.command import command
from experiments.simulation.own_settings import with_own_settings
from experiments.sweeping import check_arguments, is_sweep

__all__ = ["answering", "own_settings"]

CONFIG_DIR = "--config-dir="


def answering(
    work: Callable[[list[str], str | None], int],
    arguments: Sequence[str],
    help_text: str,
    *,
    sweep: str = SWEEP,
) -> int:
    """Run a command and return its exit status, 2 for settings that cannot work.

    Args:
      work: takes the settings and the folder of the user's own ones (`--config-dir`), if any.
      arguments: of the command line.
      help_text: for `--help`.
      sweep: what to write before `group=a,b` for a run of each choice.
    """
    if {"-h", "--help"}.intersection(arguments):
        print(help_text)
        return 0

    def run() -> int:
        given = with_own_settings(arguments)
        folder = next((a.removeprefix(CONFIG_DIR) for a in given if a.startswith(CONFIG_DIR)), None)
        settings = [a for a in given if not a.startswith(CONFIG_DIR)]
        if is_sweep(settings):
            raise SettingError("option", "-m", "no sweep: this command chooses its points itself")
        check_arguments(settings, sweep=sweep)
        return work(settings, folder)

    return command(run, arguments=arguments)


def own_settings(schema: type, group: str, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the command's own settings, `<group>.<key>=<value>`, and the other arguments.

    Raises:
      SettingError: an unknown key or a value of the wrong type.
    """
    own = [a for a in arguments if a.startswith(f"{group}.")]
    merged: Any = OmegaConf.create({group: OmegaConf.structured(schema)})
    for argument in own:
        key, _, value = argument.partition("=")
        try:
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([argument]))
        except ValidationError as error:
            kind = get_type_hints(schema)[key.partition(".")[2]]
            told = getattr(kind, "__name__", str(kind))
            raise SettingError(key, value, f"a value of type {told}") from error
        except OmegaConfBaseException as error:
            raise as_setting_error(error, [argument]) from error
        except YAMLError as error:
            raise SettingError(key, value, "a value that YAML understands") from error
    return OmegaConf.to_object(merged[group]), [a for a in arguments if a not in own]
