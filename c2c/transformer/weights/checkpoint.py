"""Loader of checkpoint tensors."""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from c2c.errors import DataError, SettingError
from c2c.models import ModelSpec
from c2c.transformer.layers.embedding import Table
from c2c.transformer.layers.layout import HEAD, check_supported, layout
from c2c.transformer.layers.params import Params, Placement, Transposed
from c2c.transformer.weights.formats import Quantization
from c2c.transformer.weights.leaves import Leaf, Source, leaves
from c2c.transformer.weights.random_source import RandomSource
from pallas_kernels.host_memory import HostArray, SharedPool, TensorSpec
from pallas_kernels.hybrid_gemm import PackedWeights

__all__ = ["DTYPES", "abstract_params", "expected_params", "load_params", "random_params"]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_NAMED_AT_ONCE = 5
_HOST_KIND, _DEVICE_KIND = "pinned_host", "device"


def load_params(
    source: Source,
    spec: ModelSpec,
    *,
    dtype: str,
    placement: Placement,
    quantization: Quantization | None = None,
    pool: Path | str | None = None,
    progress: bool = False,
    between: Callable[[], None] = lambda: None,
    device: Any = None,
) -> Params:
    """Read a checkpoint into parameters.

    Args:
      dtype: of unquantised parameters, one of `DTYPES`.
      pool: file for shared host weights, made by the first process; it knows the checkpoint's files
        by name, size and time.
      between: callback before each array; may raise.
      device: also for host memory; by default the first.

    Raises:
      SettingError: an unsupported `dtype`, model or quantisation, or `pool` without host weights.
      DataError: missing, unexpected, misshapen or damaged tensors.
    """
    if dtype not in DTYPES:
        raise SettingError("dtype", dtype, f"one of {', '.join(DTYPES)}")
    if pool is not None and placement.memory != "host":
        raise SettingError("pool", str(pool), "None for weights in device memory")
    check_supported(spec)
    check_tensors(source, spec)
    kind = DTYPES[dtype]
    if quantization and any(part.transposed for stack in layout(spec) for part in stack.parts):
        allowed = f"None: the experts of a {spec.family} are stored as one transposed tensor"
        raise SettingError("quantize", quantization.kind, allowed)
    model_leaves = leaves(spec, placement, dtype=kind, source=source, quantization=quantization)
    if quantization is not None and not any(leaf.format.kind for leaf in model_leaves):
        raise SettingError(
            "quantize", "stored", "another value: the checkpoint has no quantised projection"
        )
    with _bar(
        sum(leaf.nbytes(kind) for leaf in model_leaves), source.path.name, shown=progress
    ) as done:
        arrays: dict[str, dict[str, Any]] = {}
        if pool is not None:
            pooled = [leaf for leaf in model_leaves if leaf.in_host_memory]
            arrays |= _in_pool(pool, pooled, source, kind, done, device)
        for leaf in model_leaves:
            if leaf.name not in arrays:
                between()
                buffers = {end: _pages(spec) for end, spec in leaf.arrays(kind).items()}
                leaf.fill(buffers, source, done)
                arrays[leaf.name] = {
                    end: _placed(buffers.pop(end), leaf, device) for end in tuple(buffers)
                }
    return _assemble(arrays, model_leaves, placement, spec)


def random_params(
    spec: ModelSpec,
    rng: np.random.Generator,
    *,
    dtype: str,
    placement: Placement,
    quantization: Quantization | None = None,
) -> Params:
    """Return random parameters, for tests and benchmarks.

    Matrices are normal, by 1 / sqrt(K); norms are near 1, biases not 0.
    """
    return load_params(
        RandomSource(spec, rng), spec, dtype=dtype, placement=placement, quantization=quantization
    )


def abstract_params(
    spec: ModelSpec,
    *,
    dtype: str,
    placement: Placement,
    quantization: Quantization | None = None,
    make: Callable[[tuple[int, ...], Any], Any] = jax.ShapeDtypeStruct,
) -> Params:
    """Return parameters' shapes and types, to compile without weights.

    Args:
      make: (shape, dtype) -> abstract array.
    """
    check_supported(spec)
    kind = DTYPES[dtype]
    source = RandomSource(spec, np.random.default_rng(0))
    model_leaves = leaves(spec, placement, dtype=kind, source=source, quantization=quantization)
    return _abstract(model_leaves, placement, spec, kind, lambda _, *array: make(*array))


def expected_params(
    source: Source,
    spec: ModelSpec,
    *,
    dtype: str,
    placement: Placement,
    quantization: Quantization | None = None,
    device: Any = None,
) -> Params:
    """Return shapes, types and placements of `load_params`."""
    kind = DTYPES[dtype]
    model_leaves = leaves(spec, placement, dtype=kind, source=source, quantization=quantization)
    struct: Any = jax.ShapeDtypeStruct  # jax leaves it untyped
    return _abstract(
        model_leaves, placement, spec, kind,
        lambda leaf, *array: struct(*array, sharding=_sharding(leaf, device)),
    )  # fmt: skip


def _abstract(
    leaves: Sequence[Leaf],
    placement: Placement,
    spec: ModelSpec,
    kind: np.dtype[Any],
    make: Callable[[Leaf, tuple[int, ...], Any], Any],
) -> Params:
    arrays: dict[str, dict[str, Any]] = {}
    for leaf in leaves:
        parts = {
            end: make(leaf, array.shape, jnp.dtype(array.dtype))
            for end, array in leaf.arrays(kind).items()
        }
        if leaf.in_host_memory:
            parts = {end: HostArray(array) for end, array in parts.items()}
        arrays[leaf.name] = parts
    return _assemble(arrays, leaves, placement, spec)


def check_tensors(source: Source, spec: ModelSpec) -> None:
    """Check for exactly the needed tensors, but old rotary frequencies and a tied head."""
    most = len(source.names)  # avoids making the layout of an absurd config
    sparse = spec.layers - len(spec.dense_layers)
    if spec.layers > most or sparse * spec.experts > most:
        raise DataError(
            str(source.path), f"{most} tensors, too few for the {spec.layers} layers of "
            f"{spec.experts} experts" if spec.experts else f"{most} tensors, too few for the "
            f"{spec.layers} layers", "Is it the config of these weights?",
        )  # fmt: skip
    shape_of = {part.tensor: part.shape for stack in layout(spec) for part in stack.parts}
    names = set(source.names)
    ignored = {name for name in names if name.endswith("rotary_emb.inv_freq")}
    if spec.tie_embeddings:
        ignored.add(HEAD)
    where = str(source.path)
    if missing := [name for name in shape_of if name not in names]:
        raise DataError(
            where, f"missing {_some(missing)}, which a {spec.family} of {spec.layers} layers has"
        )
    if extra := sorted(names - set(shape_of) - ignored):
        raise DataError(
            where, f"{_some(extra)}: in no {spec.family} of this config",
            "Is it the config of these weights?",
        )  # fmt: skip
    wrong = [
        f"{name} {list(source.shape(name))} instead of {list(shape)}"
        for name, shape in shape_of.items()
        if tuple(source.shape(name)) != shape
    ]
    if wrong:
        raise DataError(where, f"shapes that differ from the config's: {_some(wrong)}")


def _name(leaf: Leaf, end: str) -> str:
    return f"{leaf.name}.{end}" if end else leaf.name


# An array is filled in place: on a CPU in pages that jax uses directly, in a pool mapped by many
# processes, or (on a GPU without a pool) in pages that are copied once and freed.
def _pages(array: TensorSpec) -> np.ndarray:
    kind, size = jnp.dtype(array.dtype), math.prod(array.shape)
    pages = mmap.mmap(-1, max(1, size * kind.itemsize))
    return np.frombuffer(pages, kind, size).reshape(array.shape)


def _placed(buffer: np.ndarray, leaf: Leaf, device: Any) -> Any:
    array = jax.device_put(buffer, _sharding(leaf, device), may_alias=True)
    array.block_until_ready()
    return HostArray(array) if leaf.in_host_memory else array


def _sharding(leaf: Leaf, device: Any = None) -> jax.sharding.Sharding:
    kind = _HOST_KIND if leaf.in_host_memory else _DEVICE_KIND
    on = jax.devices()[0] if device is None else device
    return jax.sharding.SingleDeviceSharding(on, memory_kind=kind)


def _in_pool(
    path: Path | str,
    leaves: Iterable[Leaf],
    source: Source,
    kind: np.dtype[Any],
    done: Callable[[int], None],
    device: Any,
) -> dict[str, dict[str, Any]]:
    owners = {_name(leaf, end): (leaf, end) for leaf in leaves for end in leaf.arrays(kind)}
    specs = {name: leaf.arrays(kind)[end] for name, (leaf, end) in owners.items()}
    waiting: dict[str, np.ndarray] = {}

    def fill(name: str, into: np.ndarray) -> None:
        if name in waiting:
            np.copyto(into, waiting.pop(name))
            return
        leaf, first = owners[name]
        others = {end: _pages(a) for end, a in leaf.arrays(kind).items() if end != first}
        leaf.fill({first: into, **others}, source, done)
        waiting.update({_name(leaf, end): array for end, array in others.items()})

    pool = SharedPool.open_or_create(
        path, specs, fill, metadata={"checkpoint": _identity(source.files)}
    )
    placed = pool.arrays(device=device)
    return {
        leaf.name: {end: placed[_name(leaf, end)] for end in leaf.arrays(kind)} for leaf in leaves
    }


def _identity(files: Iterable[Path]) -> str:
    stats = ((file.name, file.stat()) for file in files)
    text = repr([(name, s.st_size, s.st_mtime_ns) for name, s in stats])
    return hashlib.sha256(text.encode()).hexdigest()


def _assemble(
    arrays: Mapping[str, Mapping[str, Any]],
    leaves: Iterable[Leaf],
    placement: Placement,
    spec: ModelSpec,
) -> Params:
    layers: dict[str, Any] = {}
    projections: dict[str, Any] = {}
    embed: Table | None = None
    for leaf in leaves:
        mine = arrays[leaf.name]
        weights: Any = mine[""] if leaf.format.kind is None else leaf.weights(mine)
        if leaf.table:
            embed = _table(leaf, mine, spec)
        if not leaf.stack.projection:
            if not leaf.table:
                layers[leaf.name] = weights
            continue
        if leaf.format.kind is None and placement.multiple > 1:
            n, k = leaf.stack.shape[-2:]
            weights = PackedWeights(data=weights, k=k, n=n, w_layout="nk")
        if leaf.transposed:
            weights = Transposed(weights)
        if leaf.layer is None:
            projections[leaf.name] = weights
        else:
            projections[leaf.stack.name] = (*projections.get(leaf.stack.name, ()), weights)
    assert embed is not None  # every layout has one
    return Params(
        embed=embed,
        final_norm=layers.pop("final_norm"),
        layers=layers,
        projections=projections,
    )


def _table(leaf: Leaf, arrays: Mapping[str, Any], spec: ModelSpec) -> Table:
    if leaf.format.kind is None:
        return Table(data=arrays[""], columns=spec.hidden)
    return Table(
        data=arrays["data"],
        scales=arrays["row_scales"],
        offsets=arrays.get("row_offsets"),
        columns=spec.hidden,
        kind=leaf.format.kind,
        group=leaf.format.group,
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_AT_ONCE])
    more = len(names) - _NAMED_AT_ONCE
    return f"{shown} and {more} more" if more > 0 else shown


class _bar:  # noqa: N801 - a context manager, read as a function
    def __init__(self, total: int, label: str, *, shown: bool) -> None:
        self._total, self._label, self._shown = total, label, shown
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
        task = self._progress.add_task(f"loading {self._label}", total=self._total)
        return lambda nbytes: self._progress.advance(task, nbytes)

    def __exit__(self, *_error: object) -> None:
        if self._progress is not None:
            self._progress.stop()
