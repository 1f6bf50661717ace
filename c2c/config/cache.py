"""Settings of overrides, cached until code or `conf/` changes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from c2c.atomic import write_text
from c2c.compiling.cache_folder import user_cache
from c2c.config.plug_ins import plug_ins
from c2c.config.settings import Settings, checked
from c2c.hardware import conf_dir
from c2c.runs import file_key

__all__ = ["composed"]


def composed(overrides: Sequence[str], code: str) -> Settings:
    """Return `load(overrides)`, checked, composed at most once.

    Args:
      code: `source_key` of `c2c`.

    Raises:
      SettingError: as `load` and `checked`.
    """
    # Installed plug-ins have settings of their own, and an interpolation may read the environment.
    if plug_ins() or any("${" in one for one in overrides):
        return _composed(overrides)
    versions = [version(name) for name in ("hydra-core", "hydra-zen", "omegaconf")]
    key = sha256(
        json.dumps([code, file_key(conf_dir()), str(conf_dir()), versions, *overrides]).encode()
    ).hexdigest()
    file = user_cache() / "settings" / f"{key[:3]}.json"  # at most 4096, each of its last user
    if (stored := _read(file, key)) is not None:
        return stored
    settings = _composed(overrides)
    text = json.dumps({"key": key, "settings": settings})
    if json.loads(text)["settings"] == settings:  # not so where a key is a number
        with contextlib.suppress(OSError):  # a full or read-only cache costs time alone
            write_text(file, text)
    return settings


def _read(file: Path, key: str) -> Settings | None:
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        return Settings(entry["settings"]) if entry["key"] == key else None
    except (OSError, ValueError, LookupError, TypeError):  # absent or damaged
        return None


def _composed(overrides: Sequence[str]) -> Settings:
    from c2c.config.compose import load

    return checked(load(overrides))
