"""Arrays of parameters, and how each is filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from c2c.models import ModelSpec
from c2c.transformer.layers.layout import Part, Stack, layout
from c2c.transformer.layers.params import Placement
from c2c.transformer.weights.formats import Format, Quantization, Stored, format_of, is_exact
from pallas_kernels.host_memory import TensorSpec
from pallas_kernels.integer_math import round_up
from pallas_kernels.quantized_gemm import (
    QuantizedWeights,
    bits,
    integer_rows,
    matrix_of,
    quantize_rows,
    storage_shapes,
)

__all__ = ["Leaf", "Source", "leaves"]

_ROW_BYTES = 16  # row alignment for single-row reads, in bytes


class Source(Stored, Protocol):
    """Tensors by Hugging Face name."""

    @property
    def path(self) -> Path:
        """Path of the source, for errors."""

    @property
    def files(self) -> Sequence[Path]:
        """Paths of the source's files."""

    @property
    def names(self) -> Sequence[str]:
        """Names of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""

    def read(self, name: str, into: np.ndarray) -> None:
        """Read a tensor into an array, converted."""

    def rows(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield a matrix as floats in parts, each with its first row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Parameters to fill: a stack, or a layer of it.

    Floats are "". Integers are "data", "scales" and perhaps "offsets"; tables also "row_scales" and
    "row_offsets".
    """

    name: str
    stack: Stack
    layer: int | None
    shape: tuple[int, ...]  # of floats, with padding
    parts: tuple[Part, ...]
    format: Format
    in_host_memory: bool
    table: bool = False  # rows are looked up in this array
    transposed: bool = False  # the array is that of `shape` transposed

    def arrays(self, dtype: np.dtype[Any]) -> dict[str, TensorSpec]:
        """Return the arrays by name suffix."""
        form = self.format
        if form.kind is None:
            shape = self.shape[::-1] if self.transposed else self.shape
            return {"": TensorSpec(shape=shape, dtype=str(dtype))}
        *stack, n, k = self._sizes
        specs = storage_shapes(
            k,
            n,
            form.kind,
            form.group,
            stack=tuple(stack),
            scale_dtype=form.scale_dtype,
            offset_dtype="float32" if form.offsets else None,
        )
        if self.table:
            for name in ("scales", "offsets")[: len(specs) - 1]:
                groups, rows = specs[name].shape
                columns = round_up(groups, _ROW_BYTES // np.dtype(specs[name].dtype).itemsize)
                specs[f"row_{name}"] = TensorSpec(shape=(rows, columns), dtype=specs[name].dtype)
        return specs

    def weights(self, arrays: Mapping[str, Any]) -> QuantizedWeights:
        """Return the quantised weights of these arrays."""
        n, k = self._sizes[-2:]
        kind = self.format.kind
        assert kind is not None  # of a quantised leaf
        return QuantizedWeights(
            data=arrays["data"],
            scales=arrays["scales"],
            offsets=arrays.get("offsets"),
            k=k,
            n=n,
            kind=kind,
            group=self.format.group,
        )

    def fill(
        self, into: Mapping[str, np.ndarray], source: Source, done: Callable[[int], None]
    ) -> None:
        """Read all parts into arrays."""
        if self.format.kind is None:
            self._fill_floats(into[""], source, done)
            return
        whole = self.weights(into)
        for part in self.parts:
            self._fill_integers(matrix_of(whole, *part.at), part, source)
            done(math.prod(part.shape) * bits(self.format.kind) // 8)
        for name in into:
            if name.startswith("row_"):
                groups = into[name.removeprefix("row_")]
                into[name][:, len(groups) :] = 0
                into[name][:, : len(groups)] = groups.T

    def nbytes(self, dtype: np.dtype[Any]) -> int:
        """Return the total bytes that `fill` reports."""
        size = sum(math.prod(part.shape) for part in self.parts)
        if self.format.kind is None:
            return size * dtype.itemsize
        return sum(math.prod(p.shape) * bits(self.format.kind) // 8 for p in self.parts)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.stack.shape if self.layer is None else self.stack.shape[1:]

    def _fill_floats(self, into: np.ndarray, source: Source, done: Callable[[int], None]) -> None:
        into = into.T if self.transposed else into
        if into.shape != self._sizes:
            into[...] = 0
        for part in self.parts:
            if part.transposed:
                columns, rows = part.shape[-2:]
                target = into[part.at][:, :rows, :columns].swapaxes(1, 2)
            else:
                target = into[part.at][part.first : part.first + part.shape[0]]
                target = target[..., : part.shape[-1]] if target.ndim > 1 else target
            source.read(part.tensor, target)
            done(math.prod(part.shape) * into.dtype.itemsize)

    def _fill_integers(self, target: QuantizedWeights, part: Part, source: Source) -> None:
        if self.format.stored and is_exact(source.stored(part.tensor)):
            from c2c.transformer.gguf.blocks import centred

            integers: Any = getattr(source, "integers")  # noqa: B009 - of GGUF files only
            for first, chunk in integers(part.tensor):
                tensor = centred(chunk)
                minima = tensor.minima
                if minima is None and target.offsets is not None:
                    minima = np.zeros_like(tensor.scales)
                integer_rows(target, part.first + first, tensor.values, tensor.scales, minima)
            return
        for first, rows in source.rows(part.tensor):
            quantize_rows(target, part.first + first, rows)


def leaves(
    spec: ModelSpec,
    placement: Placement,
    *,
    dtype: np.dtype[Any],
    source: Stored,
    quantization: Quantization | None = None,
) -> tuple[Leaf, ...]:
    """Return a model's parameter parts under a placement, embedding first."""
    result: list[Leaf] = []
    host = placement.memory == "host"

    def add(stack: Stack, shape: Sequence[int], layer: int | None, **settings: Any) -> None:
        parts = stack.parts
        name = stack.name
        if layer is not None:
            parts = tuple(replace(p, at=p.at[1:]) for p in parts if p.at[0] == layer)
            name = f"{stack.name}/{layer}"
        is_matrix = stack.projection and len(shape) == 2 and not settings.get("table")
        turned = placement.transposed and is_matrix and settings["format"].kind is None
        result.append(
            Leaf(
                name=name, stack=stack, layer=layer, shape=tuple(shape), parts=parts,
                transposed=turned, **settings,
            )
        )  # fmt: skip

    for stack in layout(spec):
        chosen = format_of(stack, source, quantization, tied=spec.tie_embeddings)
        if stack.name == "embed":
            shape = list(stack.shape)
            if host:
                shape[-1] = round_up(shape[-1], _ROW_BYTES // dtype.itemsize)
            if spec.tie_embeddings and (host or chosen.kind):
                shape = [round_up(size, placement.multiple) for size in shape]
                stack = replace(stack, name="head", projection=True)  # noqa: PLW2901 - one array
            add(stack, shape, None, format=chosen, in_host_memory=host, table=True)
        elif not stack.projection:
            add(stack, stack.shape, None, format=chosen, in_host_memory=False)
        else:
            shape = list(stack.shape)
            shape[-2:] = [round_up(size, placement.multiple) for size in shape[-2:]]
            if stack.name == "head" or not placement.by_layer:
                add(stack, shape, None, format=chosen, in_host_memory=host)
            else:
                for layer in range(stack.shape[0]):
                    add(stack, shape[1:], layer, format=chosen, in_host_memory=host)
    return tuple(result)
