"""`--config-dir mydir`: the user's own settings and policies."""

from __future__ import annotations

from collections.abc import Sequence

from c2c.config import code_in, load_code, register, settings_folder
from c2c.errors import SettingError

__all__ = ["with_own_settings"]

_FLAGS = ("--config-dir", "-cd")


def with_own_settings(arguments: Sequence[str]) -> list[str]:
    """Register `--config-dir`; return the command line for Hydra."""
    rest: list[str] = []
    folder: str | None = None
    words = iter(arguments)
    for argument in words:
        flag, is_joined, value = argument.partition("=")
        if flag not in _FLAGS:
            rest.append(argument)
            continue
        folder = value if is_joined else next(words, None)
        if folder is None:
            raise SettingError(flag, "", "a folder of settings")
    if folder is None:
        register(())
        return rest
    path = settings_folder(folder, "config-dir")
    code = code_in(path)
    load_code(code)
    register(code, path)
    # One argument, since a sweep takes every argument without a dash for an override.
    return [f"--config-dir={path}", *rest]
