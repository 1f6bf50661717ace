"""Models for workers and front, with weight files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from c2c.engine.catalog import Entry
from c2c.engine.fleet import Pool, context_of, kept_at_start, shapes_of
from c2c.engine.messages import Item, ModelInfo, Setup
from c2c.engine.settings import EngineSettings
from c2c.engine.variants import told_of
from c2c.serving import Prepared

__all__ = ["infos_of", "items_of", "setup_of"]


def items_of(
    entries: Sequence[Entry], settings: EngineSettings, temporary: Path
) -> tuple[Item, ...]:
    """Return the workers' models; adapters map the base's file. The folder is created."""
    options = settings.options
    has_files = options.linear != "reference"
    folder = settings.pools or temporary
    if has_files:
        folder.mkdir(parents=True, exist_ok=True)
    residents = kept_at_start(entries, options)
    names = {entry.path.resolve(): entry.name for entry in entries}
    files = {e.name: names.get(e.base, e.name) if e.base else e.name for e in entries}
    return tuple(
        Item(
            name=entry.name,
            path=str(entry.path),
            pool=str(folder / _file(files[entry.name], options.dtype)) if has_files else None,
            is_kept=entry.name in residents,
        )
        for entry in entries
    )


def _file(name: str, dtype: str) -> str:
    return f"{quote(name, safe='')}.{dtype}.pool"  # names may have a / in them


def setup_of(items: tuple[Item, ...], settings: EngineSettings, pool: Pool, folder: Path) -> Setup:
    """Return the first message to each worker."""
    options, shapes = settings.options, shapes_of(settings.options)
    return Setup(
        models=items,
        dtype=options.dtype,
        linear=options.linear,
        executables=settings.executables,
        rows=shapes.rows,
        budgets=shapes.budgets,
        width=shapes.width,
        superblocks=pool.superblocks,
        superblock=pool.superblock,
        ahead=options.ahead,
        owns_files=settings.pools is None,
        folder=str(folder),
        **told_of(settings.system.layout),
    )


def infos_of(
    entries: Sequence[Entry],
    models: Mapping[str, int],
    failed: Mapping[str, str],
    prepared: Prepared,
) -> tuple[ModelInfo, ...]:
    """Return the models for the front, failed ones included."""
    return tuple(
        ModelInfo(
            name=entry.name,
            path=str(entry.path),
            context=context_of(prepared, models[entry.name]) if entry.name in models else 0,
            vocab=0 if entry.spec is None else entry.spec.vocab,
            failed=failed.get(entry.name, ""),
        )
        for entry in entries
    )
