"""Catalogs: folders of checkpoints served under their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from c2c.errors import DataError, SettingError
from c2c.models import ModelSpec
from c2c.transformer import describe
from c2c.transformer.layers.rope import context_tokens, depends_on_length
from c2c.transformer.weights.adapter import CONFIG

__all__ = ["Entry", "find_models"]

_CACHED = "models--"  # prefix of a folder in Hugging Face's cache, with -- for each / of the name
_MOST_SKIPPED = 8  # folders named in the note


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Checkpoint of a catalog; `failed`: reason against it, or ""."""

    name: str
    path: Path
    spec: ModelSpec | None = None
    context: int = 0  # tokens
    failed: str = ""
    base: Path | None = None
    own_parameters: int = 0


# A catalog may be Hugging Face's cache, or have a folder for each organisation.
def find_models(catalog: Path, note: Callable[[str], None] = lambda _: None) -> tuple[Entry, ...]:
    """Return a catalog's models, by name; weights are not read.

    A checkpoint's name is its folder's or file's, or `folder/name`; in Hugging Face's cache
    `org/name`, with the snapshot of `refs/main`, else the newest.

    Args:
      catalog: folder of checkpoints, a checkpoint, or a GGUF file.

    Raises:
      SettingError: no checkpoint, an equal name, or one outside the folder.
    """
    if not catalog.exists():
        raise SettingError("catalog", str(catalog), "a folder of checkpoints, or a checkpoint")
    root = Path(os.path.abspath(catalog))  # noqa: PTH100 (links are not followed: its name counts)
    if root.name == "snapshots" and _is_cached(root.parent):
        root = root.parent
    if root.is_file() or _is_checkpoint(root):
        is_snapshot = _is_cached(root.parent.parent) and root.parent.name == "snapshots"
        return (_entry(_cached_name(root.parent.parent) if is_snapshot else _name(root), root),)
    path_of: dict[str, Path] = {}
    skipped: list[str] = []
    for name, path in _checkpoints(root, skipped):
        if name in path_of:
            raise SettingError(
                "catalog", str(catalog), "different model names; "
                f"{path_of[name].relative_to(root)} and {path.relative_to(root)} are both {name}",
            )  # fmt: skip
        if not path.resolve().is_relative_to(root.resolve()):
            raise SettingError(
                f"catalog.{name}",
                str(path),
                f"a path inside {catalog}; it leads to {path.resolve()}",
            )
        path_of[name] = path
    if skipped:
        rest = len(skipped) - _MOST_SKIPPED
        note(
            f"no usable checkpoint in {', '.join(skipped[:_MOST_SKIPPED])}"
            + (f" and {rest} more" if rest > 0 else "")
        )
    if not path_of:
        raise SettingError(
            "catalog", str(catalog), "a folder with checkpoints (config.json) or GGUF files in it"
        )
    return tuple(_entry(name, path) for name, path in path_of.items())


def _checkpoints(folder: Path, skipped: list[str], within: str = "") -> Iterator[tuple[str, Path]]:
    for path in [folder] if _is_cached(folder) else sorted(folder.iterdir()):
        label = f"{within}{_name(path)}"
        checkpoints: list[tuple[str, Path]] = []
        inner: list[str] = []
        if _is_cached(path):
            checkpoints = [(_cached_name(path), snapshot) for snapshot in _snapshot(path)]
        elif _is_checkpoint(path):
            checkpoints = [(label, path)]
        elif path.is_dir() and not within and not path.name.startswith("."):
            checkpoints = list(_checkpoints(path, inner, f"{path.name}/"))
        elif not path.is_dir() or path.name.startswith("."):
            continue
        named = [(name, location) for name, location in checkpoints if _is_utf8(str(location))]
        skipped += inner if named else [label.encode(errors="backslashreplace").decode()]
        yield from named


def _is_checkpoint(path: Path) -> bool:
    is_folder = any((path / name).is_file() for name in ("config.json", CONFIG))
    return is_folder or (path.is_file() and path.suffix == ".gguf")


def _name(path: Path) -> str:
    return path.stem if path.is_file() else path.name


def _is_cached(path: Path) -> bool:
    return path.name.startswith(_CACHED) and path.is_dir()


def _cached_name(path: Path) -> str:
    return path.name.removeprefix(_CACHED).replace("--", "/", 1)


def _snapshot(cached: Path) -> list[Path]:
    snapshots: dict[str, Path] = {}
    for folder in cached.glob("snapshots/*"):
        files = list(folder.glob("*.gguf"))
        if _is_checkpoint(folder):
            snapshots[folder.name] = folder
        elif len(files) == 1:
            snapshots[folder.name] = files[0]
    if not snapshots:
        return []
    main = cached / "refs" / "main"
    commit = main.read_text("utf-8").strip() if main.is_file() else ""
    newest = max(snapshots, key=lambda name: (cached / "snapshots" / name).stat().st_mtime_ns)
    return [snapshots.get(commit, snapshots[newest])]


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(name: str, path: Path) -> Entry:
    try:
        description = describe(path)
        adapter = description.adapter
        parameters = 0 if adapter is None else adapter.parameters(description.spec)
    except DataError as error:
        return Entry(name=name, path=path, failed=str(error))
    if depends_on_length(description.spec):
        return Entry(
            name=name,
            path=path,
            failed="its rotary frequencies depend on the length, so prompts cannot be chunked",
        )
    return Entry(
        name=name, path=path, spec=description.spec, context=context_tokens(description.spec),
        base=None if adapter is None else adapter.base, own_parameters=parameters,
    )  # fmt: skip
