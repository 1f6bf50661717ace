"""Random weights in place of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from c2c.models import ModelSpec
from c2c.transformer.layers.layout import layout

__all__ = ["RandomSource"]

# No power of two, so that rows of a matrix start at many different offsets.
_BLOCK = (1 << 22) - 3
_STEP = 1 << 22  # numbers at a time


class RandomSource:
    """Tensors sliced from one random block, as in `random_params`."""

    def __init__(self, spec: ModelSpec, rng: np.random.Generator) -> None:
        self.path = Path(spec.name)
        self.files: tuple[Path, ...] = ()
        self._shapes = {part.tensor: part.shape for s in layout(spec) for part in s.parts}
        self.names = tuple(self._shapes)
        size = min(_BLOCK, max(int(np.prod(shape)) for shape in self._shapes.values()) | 1)
        self._block = rng.standard_normal(size, np.float32)
        places = rng.integers(size, size=len(self.names))
        self._starts = dict(zip(self.names, places.tolist(), strict=True))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._shapes[name]

    def stored(self, name: str) -> None:
        """Return None: tensors are floats."""

    def read(self, name: str, into: np.ndarray) -> None:
        """Write a tensor into an array."""
        for first, part in self.rows(name):
            np.copyto(into[first : first + len(part)], part, casting="unsafe")

    def rows(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a tensor in parts, each with its first row."""
        count, *tail = self._shapes[name]
        width = int(np.prod(tail))
        step = max(1, _STEP // width)
        for first in range(0, count, step):
            rows = min(step, count - first)
            values = self._cut(self._starts[name] + first * width, rows * width)
            yield first, self._scaled(name, values.reshape(rows, *tail))

    def _cut(self, start: int, count: int) -> np.ndarray:
        first = start % len(self._block)
        copies = -(-(first + count) // len(self._block))
        whole = self._block if copies == 1 else np.concatenate([self._block] * copies)
        return whole[first : first + count]

    def _scaled(self, name: str, values: np.ndarray) -> np.ndarray:
        if name.endswith("bias"):
            return values * np.float32(0.3)
        if "norm" in name.split(".")[-2]:
            return np.exp(np.float32(0.2) * values)
        return values * np.float32(values.shape[-1] ** -0.5)
