"""End-of-sequence tokens of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from c2c.errors import DataError
from c2c.models import read_json_object

__all__ = ["eos_ids"]


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Return the end-of-sequence tokens, first of generation_config.json.

    Raises:
      DataError: a damaged file, or an id without token.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_json_object(file).get("eos_token_id") if file.is_file() else None
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if any(type(token) is not int or token < 0 for token in ids):
            raise DataError(
                str(file), f"eos_token_id is {value!r}, expected a token's number or a list of them"
            )
        return tuple(ids)
    return ()
