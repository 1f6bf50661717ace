"""AWQ's and GPTQ's checkpoints: packed integers in groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from c2c.errors import DataError
from c2c.models import WeightFormat
from c2c.transformer.weights.safetensors_file import SafetensorsCheckpoint

__all__ = ["GroupedCheckpoint", "check_packing"]

_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # output of each four bits, from the lowest
_BESIDE: Final = ("qweight", "qzeros", "scales", "g_idx")
_COLUMNS: Final = 1024  # outputs that are widened at once


def check_packing(config: Mapping[str, Any], file: Path) -> None:
    """Raise DataError for an unusual packing."""
    settings = config.get("quantization_config")
    for field, usual in (("version", "gemm"), ("checkpoint_format", "gptq")):
        value = str(settings.get(field, usual)).lower() if isinstance(settings, Mapping) else usual
        if value != usual:
            raise DataError(str(file), f"quantization_config.{field}={value!r}: expected {usual!r}")


# `x.qweight` has inputs as rows: AWQ packs outputs, in an order of its own; GPTQ packs inputs,
# whose groups `x.g_idx` has, and zero points less one. Widened as the reference does: the code less
# its zero point, times the scale, rounded to the type of the scales. Source: AutoAWQ,
# `WQLinear_GEMM`; AutoGPTQ, `QuantLinear`.
class GroupedCheckpoint(SafetensorsCheckpoint):
    """A checkpoint with `x.weight` for each packed matrix."""

    def __init__(self, path: Path, form: WeightFormat) -> None:
        """Read the headers and check the shapes."""
        super().__init__(path)
        self._kind, self._bits = form.kind, form.bits
        self._each = 32 // form.bits  # codes of an int32
        self._matrices: dict[str, tuple[int, int]] = {}
        for name in self.names:
            start, _, end = name.rpartition(".")
            if end == "qweight":
                self._matrices[f"{start}.weight"] = self._checked(start)
        self.names = (
            *(name for name in self.names if name.rpartition(".")[2] not in _BESIDE),
            *self._matrices,
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; packed: [N, K]."""
        return self._matrices[name] if name in self._matrices else super().shape(name)

    def read(self, name: str, into: np.ndarray) -> None:
        """Read a tensor into `into`, converted."""
        if name not in self._matrices:
            super().read(name, into)
            return
        for first, chunk in self.rows(name):
            np.copyto(into[first : first + len(chunk)], chunk, casting="unsafe")

    def rows(self, name: str, into: np.ndarray | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a tensor (packed: float32) in parts, each with its first row."""
        if name not in self._matrices:
            yield from super().rows(name, into)
            return
        start, (n, k) = name.removesuffix(".weight"), self._matrices[name]
        packed, scales = self._whole(f"{start}.qweight"), self._whole(f"{start}.scales")
        zeros = self._unpacked(self._whole(f"{start}.qzeros"))
        if self._kind == "awq":
            codes, group = self._unpacked(packed), np.arange(k) // (k // len(scales))
        else:
            codes = self._unpacked(packed.T).T
            zeros = (zeros + 1) & ((1 << self._bits) - 1)
            group = self._groups(start, len(scales))
        for first in range(0, n, _COLUMNS):
            some = np.s_[first : first + _COLUMNS]
            offsets = codes[:, some].astype(np.int16) - zeros[group][:, some]
            wide = offsets.astype(np.float32) * scales[group][:, some].astype(np.float32)
            yield first, wide.astype(scales.dtype).astype(np.float32).T

    def _checked(self, start: str) -> tuple[int, int]:
        shapes = {}
        for end in _BESIDE[: 4 if self._kind == "gptq" else 3]:
            if f"{start}.{end}" not in self.names:
                raise DataError(str(self.path), f"{start}.qweight without {start}.{end}")
            shapes[end] = super().shape(f"{start}.{end}")
        per_word, sizes = self._each, shapes["qweight"]
        k, n = (
            (sizes[0], sizes[1] * per_word)
            if self._kind == "awq"
            else (sizes[0] * per_word, sizes[1])
        )
        groups = shapes["scales"][0]
        shape_of = {"scales": (groups, n), "qzeros": (groups, n // per_word), "g_idx": (k,)}
        for end, shape in shapes.items():
            if (
                (end in shape_of and shape != shape_of[end])
                or not groups
                or k % groups
                or n % per_word
            ):
                raise DataError(
                    str(self.path), f"{start}.{end} {list(shape)} does not fit qweight "
                    f"{list(sizes)} of {self._bits} bits in {groups} groups",
                )  # fmt: skip
        return n, k

    def _whole(self, name: str) -> np.ndarray:
        return np.concatenate([chunk for _, chunk in super().rows(name)])

    def _unpacked(self, packed: np.ndarray) -> np.ndarray:
        order = _AWQ_ORDER if self._kind == "awq" else range(self._each)
        words = packed.view(np.uint32)
        codes = np.empty((*packed.shape, self._each), np.uint8)
        for place, column in enumerate(order):
            codes[..., column] = (words >> np.uint32(place * self._bits)) & ((1 << self._bits) - 1)
        return codes.reshape(len(packed), -1)

    def _groups(self, start: str, groups: int) -> np.ndarray:
        result = self._whole(f"{start}.g_idx")
        if result.min() < 0 or result.max() >= groups:
            raise DataError(str(self.path), f"{start}.g_idx has a group outside 0 to {groups - 1}")
        return result
