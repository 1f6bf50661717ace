"""Check of a run folder for other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from c2c.errors import SettingError
from c2c.runs.content import content_key, plain
from c2c.runs.ownership import OWN, foreign_files, own_files
from c2c.runs.room import check_room

__all__ = ["check_folder"]

_SHOWN = 3


def check_folder(
    root: Path,
    config: Mapping[str, Any],
    *,
    ignore: Sequence[str] = (),
    overwrite: bool = False,
    names: Iterable[str] = (),
    needs_bytes: int = 0,
    field: str = "out",
) -> None:
    """Raise unless a run may use the folder; change nothing.

    It may if the folder is absent, empty, or holds this run. `overwrite` replaces another run's
    results; foreign files stay, and are refused if the run would replace them.

    Args:
      ignore: top-level keys of `config` without effect.
      names: known names of results.
      needs_bytes: estimated bytes.
      field: the folder's setting.

    Raises:
      SettingError: a folder that is not the run's, or without room.
    """
    if root.exists() and not root.is_dir():
        raise SettingError(field, str(root), "a folder")
    check_room(root, needs_bytes, field)
    if not root.is_dir():
        return
    files = own_files(root)
    foreign = foreign_files(root, files)
    if taken := sorted({*OWN, *names}.intersection(foreign)):
        raise SettingError(
            field, str(root), "a folder for a run",
            f"It holds {_few(taken)}, which no run made and this run would replace.",
        )  # fmt: skip
    if overwrite:
        return
    rule = "a new or empty folder, or this run's own"
    if foreign:
        raise SettingError(
            field, str(root), rule,
            f"It holds {_few(foreign)}. overwrite=true keeps that and adds the run's files.",
        )  # fmt: skip
    if any((root / name).exists() for name in files - OWN):
        here, there = _told(plain(config), ignore), _told(_settings(root), ignore)
        if content_key(here) != content_key(there):
            raise SettingError(
                field, str(root), rule,
                f"It holds results of another run ({_difference(here, there)}). "
                "overwrite=true replaces them.",
            )  # fmt: skip


def _told(settings: Mapping[str, Any], ignore: Sequence[str]) -> dict[str, Any]:
    return {k: v for k, v in settings.items() if k not in ignore}


def _settings(root: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load((root / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return document if isinstance(document, dict) else {}


def _difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    ours, theirs = dict(_leaves(here)), dict(_leaves(there))
    keys = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k)]
    return _few([f"{k}={theirs.get(k)}" for k in sorted(keys)])


def _leaves(value: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _few(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
