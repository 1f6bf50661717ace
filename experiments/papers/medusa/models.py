"""Decode steps of Table 1's ten models as launch programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from c2c.errors import SettingError, unknown_name
from c2c.models import ModelSpec, gemms, load_spec
from c2c.systems.program import (
    Access,
    Argument,
    Buffer,
    Entry,
    Kernel,
    Launch,
    ParameterDeclaration,
    Place,
    Program,
    Slice,
    write_image,
)
from experiments.claims import claim

__all__ = [
    "BATCH_SIZES",
    "MODELS",
    "OUTSIDE",
    "TableModel",
    "nodes_a_layer",
    "step_program",
    "table_models",
]

# vLLM's list in the paper's time: 1, 2, 4 and multiples of 8 up to 256.
BATCH_SIZES: Final = (1, 2, 4, *range(8, 257, 8))
OUTSIDE: Final = 2  # nodes outside the layers: embedding, last norm

_VISIBLE: Final = "libengine.so"
_HIDDEN: Final = "libgemm.so"
_SEEN: Final = 64  # bytes of each buffer that a kernel reads or writes


@dataclass(frozen=True, slots=True)
class TableModel:
    """A row of Table 1: claim's suffix, model, printed numbers."""

    row: str
    spec: str

    @property
    def nodes(self) -> int:
        """Printed number of nodes over all batch sizes: an input."""
        return int(claim(f"medusa.table1.{self.row}").value["graph_nodes"])

    def load(self) -> ModelSpec:
        """Return the model's spec."""
        return load_spec(self.spec)


MODELS: Final = (
    TableModel("falcon_7b", "falcon-7b"),
    TableModel("llama2_7b", "llama-2-7b"),
    TableModel("llama2_13b", "llama-2-13b"),
    TableModel("qwen15_0p5b", "qwen1.5-0.5b"),
    TableModel("qwen15_1p8b", "qwen1.5-1.8b"),
    TableModel("qwen15_4b", "qwen1.5-4b"),
    TableModel("qwen15_7b", "qwen1.5-7b"),
    TableModel("qwen15_14b", "qwen1.5-14b"),
    TableModel("yi_6b", "yi-6b"),
    TableModel("yi_9b", "yi-9b"),
)


def table_models(rows: Sequence[str]) -> tuple[TableModel, ...]:
    """Return the named models of Table 1."""
    model_of = {model.row: model for model in MODELS}
    if not rows:
        raise SettingError("experiment.models", rows, "at least one model")
    for row in rows:
        if row not in model_of:
            raise unknown_name("experiment.models", row, model_of)
    return tuple(model_of[row] for row in rows)


def nodes_a_layer(nodes: int, layers: int, batch_sizes: tuple[int, ...] = BATCH_SIZES) -> list[int]:
    """Return a layer's nodes at each batch size, so that the sum over all is `nodes`.

    >>> sum(OUTSIDE + 32 * n for n in nodes_a_layer(12518, 32))
    12518
    """
    count = len(batch_sizes)
    total = (nodes - OUTSIDE * count) // layers
    return [total // count + (k < total % count) for k in range(count)]


@dataclass(frozen=True, slots=True)
class _Op:
    """A kernel of a layer: buffers read and written; True: a GEMM library's."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_gemm: bool = False


# Kernels by importance: a layer of n nodes has the first n, launched in the order of `_ORDER`.
_LAYER: Final = (
    _Op("rms_norm", ("x", "norm"), ("h",)),
    _Op("qkv_gemm", ("h", "qkv"), ("q",), True),
    _Op("rotary", ("positions", "q"), ("q",)),
    _Op("cache_write", ("slots", "q"), ("keys", "values")),
    _Op("attention", ("q", "keys", "values", "tables", "lengths"), ("a",)),
    _Op("o_gemm", ("a", "o"), ("b",), True),
    _Op("add_rms_norm", ("b", "norm"), ("x", "h")),
    _Op("up_gemm", ("h", "up"), ("m",), True),
    _Op("silu_mul", ("m",), ("n",)),
    _Op("down_gemm", ("n", "down"), ("b",), True),
    _Op("add", ("b",), ("x",)),
    _Op("qkv_reduce", ("q",), ("q",), True),
    _Op("o_reduce", ("b",), ("b",), True),
    _Op("down_reduce", ("b",), ("b",), True),
)
_ORDER: Final = {
    name: k
    for k, name in enumerate(
        ("rms_norm", "qkv_gemm", "qkv_reduce", "rotary", "cache_write", "attention", "o_gemm",
         "o_reduce", "add_rms_norm", "up_gemm", "silu_mul", "down_gemm", "down_reduce", "add")
    )
}  # fmt: skip
_FIRST: Final = _Op("embedding", ("tokens", "table"), ("x",))
_LAST: Final = _Op("last_norm", ("x", "norm"), ("out",))
_BEFORE: Final = ("tokens", "positions", "slots", "tables", "lengths")
_WEIGHTS: Final = ("norm", "qkv", "o", "up", "down")
_PASSING: Final = ("h", "q", "a", "b", "m", "n")


def step_program(spec: ModelSpec, batch: int, layer_nodes: int) -> Program:
    """Return a decode step: embedding, layers of `layer_nodes` kernels, last norm."""
    if layer_nodes > len(_LAYER):
        raise ValueError(f"layer_nodes={layer_nodes}: expected at most {len(_LAYER)}")
    ops = sorted(_LAYER[:layer_nodes], key=lambda op: _ORDER[op.name])
    buffers, standing = _standing(spec)
    builder = _Builder(spec, batch, buffers, standing)
    builder.launch(_FIRST, {})
    for layer in range(spec.layers):
        builder.layer(layer, ops)
    builder.launch(_LAST, {"norm": standing["norm", 0]})
    indexes = [standing[name, -1] for name in _BEFORE]
    indexes += [standing[name, k] for k in range(spec.layers) for name in ("keys", "values")]
    inputs = tuple(Slice(k, 0, _SEEN) for k in indexes)
    return Program(
        tuple(builder.buffers),
        _kernels(),
        tuple(builder.launches),
        inputs=inputs,
        outputs=(*inputs, Slice(builder.out, 0, _SEEN)),
    )


@cache
def _standing(spec: ModelSpec) -> tuple[tuple[Buffer, ...], dict[tuple[str, int], int]]:
    size_of = {g.name: 2 * g.k * g.n for g in gemms(spec)}
    sizes = dict(zip(_WEIGHTS, (2 * spec.hidden, *_layer_weights(size_of)), strict=True))
    index_of: dict[tuple[str, int], int] = {}
    buffers: list[Buffer] = []

    def add(name: str, layer: int, nbytes: int, thread: str) -> None:
        index_of[name, layer] = len(buffers)
        content = f"{name} {layer}".ljust(_SEEN).encode()[: min(_SEEN, nbytes)]
        buffers.append(Buffer(nbytes, thread=thread, content=content))

    add("table", -1, 2 * spec.vocab * spec.hidden, "loader")
    for layer in range(spec.layers):
        for name in _WEIGHTS:
            add(name, layer, sizes[name], "loader")
    for layer in range(spec.layers):
        for name in ("keys", "values"):
            add(name, layer, 16 << 20, "main")
    for name in _BEFORE:
        add(name, -1, 4096, "main")
    return tuple(buffers), index_of


def _layer_weights(weights: dict[str, int]) -> tuple[int, int, int, int]:
    up = weights["gate_up"] if "gate_up" in weights else weights["up"]
    return weights["qkv"], weights["o"], up, weights["down"]


@cache
def _kernels() -> tuple[Kernel, ...]:
    pointer = ParameterDeclaration(8, 8, is_pointer=True)
    integer, number = ParameterDeclaration(4, 4), ParameterDeclaration(8, 8)
    plain: list[Entry] = []
    products: dict[int, list[Entry]] = {}
    for op in (_FIRST, *_LAYER, _LAST):
        accesses = tuple(
            Access(k, 0, "pointer", "r" if k < len(op.reads) else "w", _SEEN)
            for k in range(len(op.reads) + len(op.writes))
        )
        parameters = (*(pointer for _ in accesses), integer, integer, number)
        if not op.is_gemm:
            plain.append(Entry(op.name, parameters, accesses, allocates=False))
            continue
        for group in range(len(_GROUPS)):
            entry = Entry(f"{op.name}_{_GROUPS[group]}", parameters, accesses, allocates=False)
            products.setdefault(group, []).append(entry)
    image = write_image(plain)
    kernels = [Kernel(entry.name, image, _VISIBLE) for entry in plain]
    for entries in products.values():
        image = write_image(entries)
        kernels += [Kernel(entry.name, image, _HIDDEN, is_hidden=True) for entry in entries]
    return tuple(kernels)


_GROUPS: Final = (16, 64, 128, 256)  # largest batch size of each tile


@cache
def _numbers() -> dict[str, int]:
    return {kernel.entry: k for k, kernel in enumerate(_kernels())}


class _Builder:
    def __init__(
        self,
        spec: ModelSpec,
        batch: int,
        buffers: tuple[Buffer, ...],
        standing: dict[tuple[str, int], int],
    ) -> None:
        self.spec, self.batch = spec, batch
        self.buffers = list(buffers)
        self.standing = standing
        self.launches: list[Launch] = []
        row = 2 * batch * spec.hidden
        self.x = self._stays(row)
        self.out = self._stays(row)

    def _stays(self, nbytes: int) -> int:
        self.buffers.append(Buffer(max(nbytes, _SEEN), first=0))
        return len(self.buffers) - 1

    def layer(self, layer: int, ops: list[_Op]) -> None:
        first, last = len(self.launches), len(self.launches) + len(ops) - 1
        names: dict[str, int] = {}
        for op in ops:
            for name in (*op.reads, *op.writes):
                if name in _PASSING and name not in names:
                    names[name] = len(self.buffers)
                    width = 4 * self.spec.hidden if name in "mn" else 2 * self.spec.hidden
                    self.buffers.append(Buffer(max(width * self.batch, _SEEN), first, last))
        for name in (*_WEIGHTS, "keys", "values"):
            names[name] = self.standing[name, layer]
        for op in ops:
            self.launch(op, names)

    def launch(self, op: _Op, names: dict[str, int]) -> None:
        index_of = {"x": self.x, "out": self.out}
        arguments = []
        for name in (*op.reads, *op.writes):
            buffer = index_of.get(name, names.get(name, self.standing.get((name, -1), -1)))
            arguments.append(Argument(bytes(8), (Place(0, Slice(buffer, 0, _SEEN)),)))
        for value, nbytes in ((self.batch, 4), (self.spec.hidden, 4), (self.batch * 4096, 8)):
            arguments.append(Argument(value.to_bytes(nbytes, "little")))
        name = op.name
        if op.is_gemm:
            name += f"_{next(g for g in _GROUPS if self.batch <= g)}"
        grid = (self.batch, max(self.spec.hidden // 1024, 1), 1)
        self.launches.append(Launch(_numbers()[name], tuple(arguments), grid=grid))
