"""From a checkpoint's tensors to parameters, each tensor straight into its place.

An array of parameters is filled where it stays: in pages that jax uses as they are on a CPU, in a
pool that many processes map, or (on a GPU without a pool) in pages that are copied once and freed.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np

from c2c.errors import DataError, SettingError
from c2c.models import ModelSpec
from c2c.transformer.layout import Part, Stack, check_supported, layout
from c2c.transformer.params import Params, Placement
from pallas_kernels.counting import round_up
from pallas_kernels.host_memory import HostArray, SharedPool, TensorSpec
from pallas_kernels.hybrid_gemm import PackedWeights

__all__ = ["DTYPES", "Leaf", "Source", "abstract_params", "leaves", "load_params", "random_params"]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_NAMED_AT_ONCE = 5
_HOST_KIND, _DEVICE_KIND = "pinned_host", "device"


class Source(Protocol):
    """Tensors by the names of Hugging Face checkpoints."""

    @property
    def path(self) -> Path:
        """Where they come from, for errors."""

    @property
    def files(self) -> Sequence[Path]:
        """The files that hold them."""

    @property
    def names(self) -> Sequence[str]:
        """All of them."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one."""

    def read(self, name: str, into: np.ndarray) -> None:
        """Write the values of one into an array of its shape, converting the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array to fill: a stack, or one layer of it."""

    name: str
    stack: Stack
    layer: int | None
    shape: tuple[int, ...]  # with padding
    parts: tuple[Part, ...]

    def fill(self, into: np.ndarray, source: Source, done: Callable[[int], None]) -> None:
        """Read all parts into `into`, which holds zeros or anything where no part goes.

        Args:
          into: of `shape`.
          source: of the tensors.
          done: is told the bytes of each part, in the type of `into`.
        """
        if into.shape != self.stack.shape[-into.ndim :]:
            into[...] = 0
        for part in self.parts:
            target = into[part.at][part.first : part.first + part.shape[0]]
            source.read(part.tensor, target[..., : part.shape[-1]] if target.ndim > 1 else target)
            done(math.prod(part.shape) * into.dtype.itemsize)


def leaves(spec: ModelSpec, placement: Placement) -> tuple[Leaf, ...]:
    """Return the arrays that a placement makes of a model's parameters."""
    made: list[Leaf] = []
    for stack in layout(spec):
        if not stack.projection:
            made.append(_leaf(stack, stack.shape, None))
            continue
        shape = list(stack.shape)
        shape[-2:] = [round_up(size, placement.multiple) for size in shape[-2:]]
        if stack.name == "head" or not placement.by_layer:
            made.append(_leaf(stack, tuple(shape), None))
        else:
            made.extend(_leaf(stack, tuple(shape[1:]), i) for i in range(stack.shape[0]))
    if spec.tie_embeddings and placement.memory == "host":
        # The embedding's rows are looked up on the device, the head's are multiplied by.
        embed = layout(spec)[0]
        head = replace(embed, name="head", projection=True)
        shape = [round_up(size, placement.multiple) for size in embed.shape]
        made.append(_leaf(head, tuple(shape), None))
    return tuple(made)


def load_params(
    source: Source,
    spec: ModelSpec,
    *,
    dtype: str,
    placement: Placement,
    pool: Path | str | None = None,
    progress: bool = False,
) -> Params:
    """Read a checkpoint into parameters.

    Args:
      source: of the tensors.
      spec: the model they belong to.
      dtype: of the parameters, one of `DTYPES`.
      placement: of the projections.
      pool: file for the projections in host memory, which processes that name the same one share;
        made by the first of them. It knows the checkpoint's files by name, size and time.
      progress: whether to draw a bar.

    Raises:
      SettingError: `dtype` or the model is not supported, or `pool` is given for weights that
        are not in host memory.
      DataError: tensors are missing, superfluous, of other shapes or damaged.
    """
    if dtype not in DTYPES:
        raise SettingError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    if pool is not None and placement.memory != "host":
        raise SettingError("pool", str(pool), "None, since these weights go to device memory")
    check_supported(spec)
    check_tensors(source, spec)
    wanted = leaves(spec, placement)
    kind = DTYPES[dtype]
    total = sum(math.prod(p.shape) for leaf in wanted for p in leaf.parts) * kind.itemsize
    with _bar(total, source.path.name, shown=progress) as done:
        arrays: dict[str, Any] = {}
        pooled = [leaf for leaf in wanted if leaf.stack.projection] if pool is not None else []
        if pool is not None:
            arrays |= _in_pool(pool, pooled, source, kind, done)
        for leaf in wanted:
            if leaf.name not in arrays:
                buffer = _pages(leaf.shape, kind)
                leaf.fill(buffer, source, done)
                arrays[leaf.name] = _placed(buffer, leaf, placement)
    return _assemble(arrays, wanted, placement)


def random_params(
    spec: ModelSpec, rng: np.random.Generator, *, dtype: str, placement: Placement
) -> Params:
    """Return parameters drawn at random, for tests and benchmarks without a checkpoint.

    Matrices are normal, scaled by 1 / sqrt(K); norms are near 1, biases clearly not 0.
    """

    def draw(shape: tuple[int, ...], name: str) -> np.ndarray:
        values = rng.standard_normal(shape, np.float32)
        if name.endswith("norm"):
            return np.exp(0.2 * values)
        return values * np.float32(0.3 if name.endswith("_bias") else shape[-1] ** -0.5)

    check_supported(spec)
    wanted = leaves(spec, placement)
    arrays = {}
    for leaf in wanted:
        if leaf.name == "head" and spec.tie_embeddings:
            continue
        buffer = _pages(leaf.shape, DTYPES[dtype])
        real = leaf.stack.shape if leaf.layer is None else leaf.stack.shape[1:]
        buffer[tuple(map(slice, real))] = draw(real, leaf.stack.name)
        arrays[leaf.name] = _placed(buffer, leaf, placement)
    if spec.tie_embeddings and placement.memory == "host":
        leaf = wanted[-1]
        buffer = _pages(leaf.shape, DTYPES[dtype])
        embed = np.asarray(arrays["embed"])
        buffer[: embed.shape[0], : embed.shape[1]] = embed
        arrays["head"] = _placed(buffer, leaf, placement)
    return _assemble(arrays, wanted, placement)


def abstract_params(
    spec: ModelSpec,
    *,
    dtype: str,
    placement: Placement,
    make: Callable[[tuple[int, ...], Any], Any] = jax.ShapeDtypeStruct,
) -> Params:
    """Return the parameters as shapes and types, for compiling without weights.

    Args:
      spec: the model.
      dtype: of the parameters.
      placement: of the projections.
      make: (shape, dtype) -> what stands for an array.
    """
    check_supported(spec)
    wanted = leaves(spec, placement)
    arrays: dict[str, Any] = {}
    for leaf in wanted:
        array = make(leaf.shape, DTYPES[dtype])
        host = leaf.stack.projection and placement.memory == "host"
        arrays[leaf.name] = HostArray(array) if host else array
    return _assemble(arrays, wanted, placement)


def check_tensors(source: Source, spec: ModelSpec) -> None:
    """Return if a checkpoint has exactly the tensors that the model needs.

    Left aside: rotary frequencies that old checkpoints store, and the head where it is tied.

    Raises:
      DataError: some are missing, superfluous or of other shapes; names the first few.
    """
    wanted = {part.tensor: part.shape for stack in layout(spec) for part in stack.parts}
    found = set(source.names)
    ignored = {name for name in found if name.endswith("rotary_emb.inv_freq")}
    if spec.tie_embeddings:
        ignored.add("lm_head.weight")
    where = str(source.path)
    if missing := [name for name in wanted if name not in found]:
        raise DataError(
            where, f"missing {_some(missing)}, which a {spec.family} of {spec.layers} layers has"
        )
    if extra := sorted(found - set(wanted) - ignored):
        raise DataError(
            where, f"{_some(extra)}: in no {spec.family} of this config",
            "Is it the config of these weights?",
        )  # fmt: skip
    wrong = [
        f"{name} {list(source.shape(name))} instead of {list(shape)}"
        for name, shape in wanted.items()
        if tuple(source.shape(name)) != shape
    ]
    if wrong:
        raise DataError(where, f"shapes that the config does not give: {_some(wrong)}")


def _leaf(stack: Stack, shape: tuple[int, ...], layer: int | None) -> Leaf:
    if layer is None:
        return Leaf(name=stack.name, stack=stack, layer=None, shape=shape, parts=stack.parts)
    parts = tuple(replace(p, at=p.at[1:]) for p in stack.parts if p.at[0] == layer)
    return Leaf(name=f"{stack.name}/{layer}", stack=stack, layer=layer, shape=shape, parts=parts)


def _pages(shape: tuple[int, ...], kind: np.dtype[Any]) -> np.ndarray:
    """Return zeros in pages of their own: jax on a CPU takes these as they are, aligned."""
    nbytes = math.prod(shape) * kind.itemsize
    return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), kind, math.prod(shape)).reshape(shape)


def _placed(buffer: np.ndarray, leaf: Leaf, placement: Placement) -> Any:
    """Hand a filled buffer to jax: no copy on a CPU, one on a GPU, where the buffer is freed."""
    host = leaf.stack.projection and placement.memory == "host"
    sharding = jax.sharding.SingleDeviceSharding(
        jax.devices()[0], memory_kind=_HOST_KIND if host else _DEVICE_KIND
    )
    array = jax.device_put(buffer, sharding, may_alias=True)
    array.block_until_ready()
    return HostArray(array) if host else array


def _in_pool(
    path: Path | str,
    wanted: Iterable[Leaf],
    source: Source,
    kind: np.dtype[Any],
    done: Callable[[int], None],
) -> dict[str, Any]:
    by_name = {leaf.name: leaf for leaf in wanted}
    specs = {name: TensorSpec(shape=leaf.shape, dtype=str(kind)) for name, leaf in by_name.items()}
    pool = SharedPool.open_or_create(
        path,
        specs,
        lambda name, into: by_name[name].fill(into, source, done),
        metadata={"checkpoint": _identity(source.files)},
    )
    return dict(pool.arrays())


def _identity(files: Iterable[Path]) -> str:
    """Return what tells these files from others, and from what they were before a change."""
    stats = ((file.name, file.stat()) for file in files)
    text = repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats])
    return hashlib.sha256(text.encode()).hexdigest()


def _assemble(arrays: Mapping[str, Any], wanted: Iterable[Leaf], placement: Placement) -> Params:
    layers: dict[str, Any] = {}
    projections: dict[str, Any] = {}
    for leaf in wanted:
        array = arrays[leaf.name]
        if not leaf.stack.projection:
            layers[leaf.name] = array
            continue
        if placement.multiple > 1:
            n, k = leaf.stack.shape[-2:]
            array = PackedWeights(data=array, k=k, n=n, w_layout="nk")
        if leaf.layer is None:
            projections[leaf.name] = array
        else:
            projections[leaf.stack.name] = (*projections.get(leaf.stack.name, ()), array)
    return Params(
        embed=layers.pop("embed"),
        final_norm=layers.pop("final_norm"),
        layers=layers,
        projections=projections,
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_AT_ONCE])
    more = len(names) - _NAMED_AT_ONCE
    return f"{shown} and {more} more" if more > 0 else shown


class _bar:  # noqa: N801 - a context manager, read as a function
    """A bar of bytes on the terminal, or nothing."""

    def __init__(self, total: int, what: str, *, shown: bool) -> None:
        self._total, self._what, self._shown = total, what, shown
        self._progress: Any = None

    def __enter__(self) -> Callable[[int], None]:
        if not self._shown:
            return lambda _nbytes: None
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._progress.start()
        task = self._progress.add_task(f"loading {self._what}", total=self._total)
        return lambda nbytes: self._progress.advance(task, nbytes)

    def __exit__(self, *_error: object) -> None:
        if self._progress is not None:
            self._progress.stop()
