"""A GGUF file as a source of parameters: quantised weights are widened on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from c2c.errors import DataError
from c2c.transformer.gguf_file import GgufCheckpoint

__all__ = ["GgufSource"]


class GgufSource:
    """Reads tensors of a GGUF file into memory that the caller owns."""

    def __init__(self, checkpoint: GgufCheckpoint) -> None:
        self.checkpoint = checkpoint
        self.path: Path = checkpoint.path
        self.names = checkpoint.names

    @property
    def files(self) -> tuple[Path, ...]:
        """The one file."""
        return (self.path,)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.checkpoint.shape(name)

    def read(self, name: str, into: np.ndarray) -> None:
        """Write a tensor into `into`, converting it to its type.

        Raises:
          DataError: it holds a value that is not finite.
        """
        values = self.checkpoint.tensor(name)
        np.copyto(into, values, casting="unsafe")
        # One number says it for all: sums of finite float64 values do not overflow here.
        if not np.isfinite(values.sum(dtype=np.float64)):
            raise DataError(str(self.path), f"{name} holds NaN or infinity: corrupt")
        self.checkpoint.release()
