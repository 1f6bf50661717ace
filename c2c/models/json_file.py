"""JSON reader for untrusted files; errors name the file."""

import json
from pathlib import Path
from typing import Any

from c2c.errors import DataError

__all__ = ["json_object", "read_json_object", "read_text"]

_MOST_BYTES = 1 << 27  # limit of a file; the largest tokenizers and indices have some ten megabytes


def read_text(path: Path) -> str:
    """Return a UTF-8 file's text.

    Raises:
      DataError: unreadable, too large, or not UTF-8.
    """
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise DataError(str(path), f"{size} bytes, expected at most {_MOST_BYTES}")
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(str(path), f"not UTF-8: {error.reason} at byte {error.start}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Return a JSON file's object.

    Raises:
      DataError: it is no readable JSON object.
    """
    return json_object(read_text(path), str(path))


def json_object(text: str | bytes, where: str, *, is_unique: bool = False) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
      where: file, for errors.
      is_unique: whether a repeated name is an error; else its last value counts.

    Raises:
      DataError: no JSON object, or too deep nesting.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(where, f"{twice} appears twice")
        return result

    try:
        document = json.loads(text, object_pairs_hook=unique if is_unique else None)
    except RecursionError:
        raise DataError(where, "not readable as JSON: nested too deeply") from None
    except DataError:
        raise
    except ValueError as error:  # decoding errors and JSON errors
        raise DataError(where, f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError(where, "expected a JSON object")
    return document
