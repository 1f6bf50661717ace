"""Lookup of a model's config.json, by shipped name or by path."""

from functools import cache
from importlib import resources
from pathlib import Path

from c2c.errors import SettingError
from c2c.models.huggingface import from_hf_config
from c2c.models.json_file import json_object, read_text
from c2c.models.spec import ModelSpec

__all__ = ["catalog_names", "load_spec"]


def catalog_names() -> tuple[str, ...]:
    """Return the names of the shipped model configs."""
    folder = resources.files("c2c.models") / "configs"
    return tuple(
        sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))
    )


def load_spec(name_or_path: str | Path) -> ModelSpec:
    """Return a model's spec.

    Args:
      name_or_path: one of `catalog_names()`, or the path of a config.json or its folder; the spec
        then has the folder's name.

    Raises:
      SettingError: the argument is neither a known name nor a path, or the config is not supported.
      DataError: the file is not JSON, or not an object.
    """
    text = str(name_or_path)
    if text in catalog_names():
        return _shipped(text)
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise SettingError(
            "model", text, f"one of {', '.join(catalog_names())}, or the path of a config.json"
        )
    return from_hf_config(json_object(read_text(path), str(path)), path.resolve().parent.name)


@cache
def _shipped(name: str) -> ModelSpec:
    file = resources.files("c2c.models") / "configs" / f"{name}.json"
    return from_hf_config(json_object(file.read_text(encoding="utf-8"), f"{name}.json"), name)
