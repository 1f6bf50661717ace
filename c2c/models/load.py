"""Lookup of a config.json, by name or path."""

import os
from functools import cache
from importlib import resources
from pathlib import Path

from c2c.errors import SettingError
from c2c.models.huggingface import from_hf_config
from c2c.models.json_file import json_object
from c2c.models.quantisation import config_files, read_config
from c2c.models.spec import ModelSpec

__all__ = ["catalog_names", "load_spec", "name_of", "spec_files"]


@cache
def catalog_names() -> tuple[str, ...]:
    """Return the names of the shipped model configs."""
    folder = resources.files("c2c.models") / "configs"
    return tuple(
        sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))
    )


def load_spec(name_or_path: str | Path) -> ModelSpec:
    """Return a model's spec.

    Args:
      name_or_path: of `catalog_names()`, or a config's or folder's path.

    Raises:
      SettingError: an unknown name, or an unsupported config.
      DataError: no JSON object.
    """
    text = str(name_or_path)
    if text in catalog_names():
        return _shipped(text)
    path = _file(text)
    if not path.is_file():
        raise SettingError(
            "model", text, f"one of {', '.join(catalog_names())}, or the path of a config.json"
        )
    return from_hf_config(read_config(path), name_of(path))


def spec_files(name_or_path: str | Path) -> tuple[Path, ...]:
    """Return the files of `load_spec`, none for shipped models."""
    text = str(name_or_path)
    return () if text in catalog_names() else config_files(_file(text))


def _file(text: str) -> Path:
    path = Path(text)
    return path / "config.json" if path.is_dir() else path


def name_of(path: Path) -> str:
    """Return the model's name: a config.json has its folder's, another file its own.

    >>> name_of(Path("models/mine/config.json")), name_of(Path("models/mine.json"))
    ('mine', 'mine')
    >>> name_of(Path("hub/models--Qwen--Qwen3-8B/snapshots/b968826/config.json"))
    'Qwen3-8B'
    """
    whole = Path(os.path.abspath(path))  # noqa: PTH100 (resolve() follows links)
    if whole.name != "config.json" and not whole.is_dir():
        return whole.stem if whole.suffix in (".json", ".gguf") else whole.name
    folder = whole if whole.name != "config.json" else whole.parent
    cached = folder.parent.parent.name
    is_cached = folder.parent.name == "snapshots" and cached.startswith("models--")
    return cached.rpartition("--")[2] if is_cached else folder.name


@cache
def _shipped(name: str) -> ModelSpec:
    file = resources.files("c2c.models") / "configs" / f"{name}.json"
    return from_hf_config(json_object(file.read_text(encoding="utf-8"), f"{name}.json"), name)
