"""Frame of every command."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from c2c.errors import DataError, SettingError
from experiments.stop_signals import heeded_signals, told_to_stop

# Import light modules alone, so that Ctrl-C during the other imports is one line as well.
__all__ = ["BAD_SETTINGS", "INTERRUPTED", "PIPE_CLOSED", "command", "in_one_line"]

BAD_SETTINGS = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # a shell's status of a program that SIGPIPE ended

# An error from inside these is about their settings, whatever its type.
_COMPOSERS = ("hydra", "omegaconf", "yaml", "antlr4")


def command(
    run: Callable[[], int],
    arguments: Sequence[str],
    *,
    help_text: str | None = None,
    goes_on: bool = True,
    once: bool = False,
) -> int:
    """Run a command and return its exit status."""
    # Errors pass through Hydra without its own report, so that they have one form.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    warnings.formatwarning = _as_line
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack the characters of a name
            stream.reconfigure(errors="backslashreplace")
    try:
        if help_text is not None and {"-h", "--help"}.intersection(arguments):
            print(help_text)
            return 0
        with heeded_signals(once=once):
            return run()
    except KeyboardInterrupt:
        return _interrupted(goes_on)
    except BrokenPipeError:
        # The reader is gone. Python would report that again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        if told_to_stop():  # an error that a library made of the signal
            return _interrupted(goes_on)
        line = in_one_line(error, arguments)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        return BAD_SETTINGS


def in_one_line(error: BaseException, arguments: Sequence[str] = ()) -> str | None:
    """Return an error's one-line message, or None for a bug."""
    text = _told(error, arguments)
    # A name may have line breaks or a terminal's control characters.
    return (
        None
        if text is None
        else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    )


def _told(error: BaseException, arguments: Sequence[str]) -> str | None:
    if isinstance(error, SettingError | DataError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_with(error.name or "")):
        return (
            f"package={error.name!r}: expected to be installed for this command; "
            f"use pip install 'c2c[{extra}]' (in a checkout: make env)"
        )
    if isinstance(error, MemoryError):
        why = str(error) or "the system refused more"
        return f"memory: not enough ({why}). Choose a smaller workload, catalog or fleet."
    if _is_of_composers(error):
        from c2c.config import as_setting_error

        return str(as_setting_error(error, arguments))
    if isinstance(error, OSError):
        name = error.filename if error.filename is not None else "the system"
        return str(DataError(str(name), f"cannot be used ({error.strerror or error})"))
    if isinstance(error, UnicodeError):
        return str(DataError("text", f"cannot be read or written ({error})", "Use UTF-8."))
    return None


def _extra_with(module: str) -> str | None:
    """Return the first extra of this distribution that installs a module, or None."""
    from importlib.metadata import PackageNotFoundError, requires

    package = module.partition(".")[0].replace("_", "-")
    package = "nvidia-ml-py" if package == "pynvml" else package
    try:
        lines = requires("c2c") or []
    except PackageNotFoundError:
        return None
    matches = (re.match(r"([\w-]+).*extra == ['\"](\w+)['\"]", line) for line in lines)
    return next((m[2] for m in matches if m and m[1].replace("_", "-") == package), None)


def _is_of_composers(error: BaseException) -> bool:
    if type(error).__module__.partition(".")[0] in _COMPOSERS:
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(name in Path(frames[-1].filename).parts for name in _COMPOSERS)


def _as_line(message: object, *_: object, **__: object) -> str:
    return f"warning: {message}\n"


def _interrupted(goes_on: bool) -> int:
    # CPython ends by SIGINT, whatever the exit status, if an interrupt ended the last executed
    # source text (`exec` of a string, as in dataclasses and Numba). This one ends normally.
    exec("")  # noqa: S102 (an empty text)
    hint = "; run the same command again to resume" if goes_on else ""
    print(f"interrupted{hint}", file=sys.stderr)
    return INTERRUPTED
