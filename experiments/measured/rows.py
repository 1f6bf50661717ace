"""Reader of measurement files."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from c2c.errors import DataError, SettingError

__all__ = ["COLUMNS", "OWN", "Rows", "read_folder"]

OWN: Final = Path(__file__).resolve().parent
"""Folder of the project's own rows; constants are fitted to half of them."""

# Columns by file, the measured one last, each with its allowed values.
COLUMNS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "gemm_bf16": (
        ("system", "text"), ("m", "count"), ("n", "count"), ("k", "count"), ("us", "positive"),
    ),
    "attention_bf16": (
        ("system", "text"), ("kind", "context generation"), ("batch", "count"), ("tokens", "count"),
        ("heads", "count"), ("kv_heads", "count"), ("us", "positive"),
    ),
    "moe_bf16": (
        ("system", "text"), ("model", "text"), ("distribution", "text"), ("tokens", "count"),
        ("us", "positive"),
    ),
    "gemm_narrow": (
        ("system", "text"), ("dtype", "text"), ("m", "count"), ("n", "count"), ("k", "count"),
        ("us", "positive"),
    ),
    "moe_narrow": (
        ("system", "text"), ("dtype", "text"), ("hidden", "count"), ("inter", "count"),
        ("topk", "count"), ("experts", "count"), ("distribution", "text"), ("tokens", "count"),
        ("us", "positive"),
    ),
    "vidur_layer_us": (
        ("device", "text"), ("model", "text"), ("tokens", "count"), ("qkv", "positive"),
        ("o", "positive"), ("gate_up", "positive"), ("down", "positive"),
        ("elementwise", "positive"),
    ),
    "engine_runs": (
        ("model", "text"), ("system", "text"), ("backend", "text"), ("version", "text"),
        ("gemm", "text"), ("isl", "count"), ("osl", "count"), ("concurrency", "count"),
        ("tp", "count"), ("ep", "count"), ("ttft_ms", "positive"), ("tpot_ms", "positive"),
    ),
    "open_loop": (
        ("system", "text"), ("engine", "text"), ("like", "text"), ("model", "text"),
        ("rate_rps", "positive"), ("requests", "count"), ("seed", "count"),
        ("prompt_most", "count"), ("output_most", "count"), ("prompt_tokens", "count"),
        ("output_tokens", "count"), ("ttft_p50_ms", "positive"), ("ttft_p99_ms", "positive"),
        ("itl_mean_ms", "positive"), ("e2e_p50_ms", "positive"), ("seconds", "positive"),
    ),
    "model_shapes": (
        ("model", "text"), ("layers", "count"), ("hidden", "count"), ("heads", "count"),
        ("kv_heads", "count"), ("head_dim", "count"), ("intermediate", "count"),
        ("vocab", "count"), ("tied", "0 1"), ("experts", "whole"), ("experts_per_token", "whole"),
        ("moe_intermediate", "whole"), ("shared_intermediate", "whole"),
    ),
    "single_requests": (
        ("model", "text"), ("chip", "text"), ("gpus", "count"), ("transformers", "text"),
        ("engine", "text"), ("tokens_per_s", "positive"),
    ),
    "engine_steps": (
        ("model", "text"), ("chip", "text"), ("prompt_tokens", "count"), ("batch", "count"),
        ("prefill_ms", "positive"), ("decode_ms", "positive"),
    ),
    "streamed_tokens": (("run", "text"), ("model", "text"), ("tbt_ms", "positive")),
}  # fmt: skip

_NUMBERS = ("count", "whole", "positive")
_ALLOWED = {
    "text": "a name",
    "count": "a whole number above 0",
    "whole": "a whole number",
    "positive": "a number above 0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one file: text as `str` objects, numbers as floats."""

    name: str  # name of the file, without .csv
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        """Count rows."""
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column."""
        return self.columns[name]

    def take(self, which: np.ndarray) -> Rows:
        """Return rows selected by a mask or by index."""
        return Rows(name=self.name, columns={k: v[which] for k, v in self.columns.items()})

    def keys(self, names: Sequence[str]) -> list[str]:
        """Return these columns' values, a text a row."""
        return [
            ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in row)
            for row in zip(*(self.columns[n].tolist() for n in names), strict=True)
        ]


def read_folder(folder: Path) -> dict[str, Rows]:
    """Return the rows of known files in a folder."""
    if not folder.is_dir():
        raise SettingError("data", str(folder), "a folder")
    result = {
        name: _read(folder / f"{name}.csv", columns)
        for name, columns in COLUMNS.items()
        if (folder / f"{name}.csv").is_file()
    }
    if not result:
        files = ", ".join(f"{name}.csv" for name in COLUMNS)
        raise SettingError("data", str(folder), f"a folder with some of {files}")
    return result


def _read(path: Path, columns: Sequence[tuple[str, str]]) -> Rows:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"not readable as text: {error}") from error
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1)
             if line.strip() and not line.startswith("#")]  # fmt: skip
    if not lines:
        raise DataError(str(path), "no header")
    header, names = next(csv.reader([lines[0][1]])), [name for name, _ in columns]
    if missing := [name for name in names if name not in header]:
        raise DataError(f"{path}, row {lines[0][0]}", f"no column {', '.join(missing)}")
    values: dict[str, list[Any]] = {name: [] for name in names}
    for number, line in lines[1:]:
        cells = next(csv.reader([line]))
        if len(cells) != len(header):
            raise DataError(
                f"{path}, row {number}", f"{len(cells)} cells; the header has {len(header)}"
            )
        row = dict(zip(header, cells, strict=True))
        for name, kind in columns:
            values[name].append(_value(row[name].strip(), kind, f"{path}, row {number}, {name}"))
    return Rows(
        name=path.stem,
        columns={
            name: np.array(values[name], dtype=float if kind in _NUMBERS else object)
            for name, kind in columns
        },
    )


def _value(text: str, kind: str, where: str) -> str | float:
    if kind == "text":
        if text:
            return text
    elif kind not in _ALLOWED:
        if text in kind.split():
            return text
    else:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        is_enough = number >= 0 if kind == "whole" else number > 0
        if math.isfinite(number) and is_enough and (kind == "positive" or number.is_integer()):
            return number
    allowed = _ALLOWED.get(kind, " or ".join(kind.split()))
    raise DataError(where, f"expected {allowed}, found {text!r}")
