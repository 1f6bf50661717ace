"""Models as workers are told of them, with the files that workers map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from c2c.engine.catalog import Entry
from c2c.engine.fleet import kept_at_start
from c2c.engine.messages import Item
from c2c.engine.settings import EngineSettings

__all__ = ["items_of"]


def items_of(
    entries: Sequence[Entry], settings: EngineSettings, temporary: Path
) -> tuple[Item, ...]:
    """Return the models for workers; the folder of their files is made.

    Args:
      entries: the models.
      settings: of the engine; without a folder for weights they end with it.
      temporary: a folder that does so.
    """
    options = settings.options
    has_files = options.linear != "reference"
    folder = settings.pools or temporary
    if has_files:
        folder.mkdir(parents=True, exist_ok=True)
    kept = kept_at_start(entries, options)
    return tuple(
        Item(
            name=entry.name,
            path=str(entry.path),
            pool=str(folder / _file(entry.name, options.dtype)) if has_files else None,
            is_kept=entry.name in kept,
        )
        for entry in entries
    )


def _file(name: str, dtype: str) -> str:
    return f"{quote(name, safe='')}.{dtype}.pool"  # names may have a / in them
