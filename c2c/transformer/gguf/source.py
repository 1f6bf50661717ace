"""GGUF file as a source of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from c2c.errors import DataError
from c2c.transformer.gguf.blocks import QUANTIZED_KINDS, QuantizedTensor
from c2c.transformer.gguf.file import GgufCheckpoint

__all__ = ["GgufSource"]


class GgufSource:
    """Reader of tensors into the caller's memory."""

    def __init__(self, checkpoint: GgufCheckpoint) -> None:
        self.checkpoint = checkpoint
        self.path: Path = checkpoint.path
        self.names = checkpoint.names

    @property
    def files(self) -> tuple[Path, ...]:
        """Path of the file, as a tuple."""
        return (self.path,)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.checkpoint.shape(name)

    def stored(self, name: str) -> str | None:
        """Return a tensor's quantised format in ggml's spelling, if any."""
        kind = self.checkpoint.kind(name)
        return kind if kind in QUANTIZED_KINDS else None

    def read(self, name: str, into: np.ndarray) -> None:
        """Write a tensor into `into`, converted."""
        for first, part in self.rows(name):
            np.copyto(into[first : first + len(part)], part, casting="unsafe")

    def rows(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a tensor as floats in parts, each with its first row."""
        for first, part in self.checkpoint.rows(name):
            self._check_finite(name, part)
            yield first, part
        self.checkpoint.release()

    def integers(self, name: str) -> Iterator[tuple[int, QuantizedTensor]]:
        """Yield a quantised tensor in parts, each with its first row."""
        for first, part in self.checkpoint.integers(name):
            self._check_finite(name, part.scales)
            if part.minima is not None:
                self._check_finite(name, part.minima)
            yield first, part
        self.checkpoint.release()

    def _check_finite(self, name: str, values: np.ndarray) -> None:
        # One sum checks all values: sums of finite float64 values do not overflow here.
        if not np.isfinite(values.sum(dtype=np.float64)):
            raise DataError(str(self.path), f"{name} holds NaN or infinity: corrupt")
