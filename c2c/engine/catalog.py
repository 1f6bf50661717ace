"""The checkpoints of a folder: a folder or GGUF file each, served under its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from c2c.errors import DataError, SettingError
from c2c.models import ModelSpec
from c2c.transformer import describe
from c2c.transformer.rope import context_tokens, depends_on_length

__all__ = ["Entry", "find_models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A checkpoint that was found; one that cannot be served says why."""

    name: str
    path: Path
    spec: ModelSpec | None = None
    context: int = 0  # tokens
    failed: str = ""


def find_models(catalog: Path) -> tuple[Entry, ...]:
    """Return the models of a catalog, by name; weights are not read.

    Args:
      catalog: a folder of checkpoints, one checkpoint's folder, or a GGUF file.

    Raises:
      SettingError: there are none, two have one name, or one lies outside the folder.
    """
    if not catalog.exists():
        raise SettingError("catalog", str(catalog), "a folder of checkpoints, or a checkpoint")
    if catalog.is_file() or (catalog / "config.json").is_file():
        return (_entry(catalog),)
    found: dict[str, Path] = {}
    for path in sorted(p for p in catalog.iterdir() if _is_checkpoint(p)):
        name = _name(path)
        if name in found:
            raise SettingError(
                "catalog", str(catalog), f"models of different names; {found[name].name} and "
                f"{path.name} are both {name}",
            )  # fmt: skip
        if not path.resolve().is_relative_to(catalog.resolve()):
            raise SettingError(
                f"catalog.{name}", str(path), f"inside {catalog}; it leads to {path.resolve()}"
            )
        found[name] = path
    if not found:
        raise SettingError(
            "catalog", str(catalog), "a folder with checkpoints (config.json) or GGUF files in it"
        )
    return tuple(_entry(path) for path in found.values())


def _is_checkpoint(path: Path) -> bool:
    return (path / "config.json").is_file() or (path.is_file() and path.suffix == ".gguf")


def _name(path: Path) -> str:
    return path.stem if path.is_file() else path.name


def _entry(path: Path) -> Entry:
    name = _name(path.resolve())
    try:
        found = describe(path)
    except DataError as error:
        return Entry(name=name, path=path, failed=str(error))
    if depends_on_length(found.spec):
        return Entry(
            name=name,
            path=path,
            failed="its rotary frequencies depend on the length, so that prompts cannot be cut",
        )
    return Entry(name=name, path=path, spec=found.spec, context=context_tokens(found.spec))
