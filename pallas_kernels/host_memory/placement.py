"""Placement of arrays in host memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from pallas_kernels.host_memory.arrays import HostArray
from pallas_kernels.host_memory.errors import HostMemoryError

HOST = "pinned_host"

_UNITS = ("B", "kB", "MB", "GB", "TB")


def to_host(
    tree: Any, *, where: Callable[[str, Any], bool] | None = None, device: jax.Device | None = None
) -> Any:
    """Return `tree` with its arrays copied to pinned host memory, each as a `HostArray`.

    The device's copy is freed with its last reference.

    On a GPU, jax pins at most 64 GB unless `XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB` is set before its
    start; `SharedPool`s do not count.

    Args:
      tree: a pytree of NumPy, jax or `HostArray`s.
      where: predicate of a leaf's path, like "layers/0/w", and the leaf; None: all.
      device: of the host memory; None: an array's, or jax's first.

    Raises:
      HostMemoryError: no concrete array, a change of type, or no pinned host memory.
    """

    def place(path: Any, leaf: Any) -> Any:
        name = _name(path)
        if where is not None and not where(name, leaf):
            return leaf
        return HostArray(jax.device_put(*_source_and_target(name, leaf, device)))

    return jax.tree_util.tree_map_with_path(place, tree, is_leaf=_is_host_array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Memory and size of one leaf of a tree."""

    path: str  # like "layers/0/w"
    shape: tuple[int, ...]
    dtype: str
    memory_kind: str  # jax's word; "numpy" for a NumPy array, "deleted" for a deleted jax array
    devices: tuple[str, ...]  # those that hold it, or whose host memory does; none for NumPy
    nbytes: int  # in this process, replicas counted each
    same_as: str = ""  # path of an earlier leaf with the same buffer; bytes are counted there

    @property
    def bytes_text(self) -> str:
        """Bytes as text, or the leaf with the same buffer."""
        return f"as {self.same_as}" if self.same_as else _bytes_text(self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReport:
    """Memory and sizes of a tree's leaves; `str()`: a table."""

    leaves: tuple[Placed, ...]

    @property
    def bytes_by_kind(self) -> MappingProxyType[str, int]:
        """Bytes by memory kind; a shared buffer counts once."""
        total: Counter[str] = Counter()
        for leaf in self.leaves:
            total[leaf.memory_kind] += 0 if leaf.same_as else leaf.nbytes
        return MappingProxyType(dict(sorted(total.items())))

    def __str__(self) -> str:
        rows = [("path", "type", "memory", "device", "bytes")]
        rows += [
            (
                leaf.path or "(the array)",
                f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]",
                leaf.memory_kind,
                ",".join(leaf.devices) or "-",
                leaf.bytes_text,
            )
            for leaf in self.leaves
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        total = (f"{kind} {_bytes_text(n)}" for kind, n in self.bytes_by_kind.items())
        return "\n".join([*lines, "total: " + (", ".join(total) or "no arrays")])


def placement_report(tree: Any) -> PlacementReport:
    """Report the memory and bytes of every leaf of `tree`.

    Raises:
      HostMemoryError: no concrete array.
    """
    leaves, seen = [], dict[object, str]()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_host_array):
        placed, buffer = _placed(_name(path), leaf)
        first = seen.setdefault(buffer, placed.path)
        if first != placed.path:
            placed = replace(placed, same_as=first or "(the array)")
        leaves.append(placed)
    return PlacementReport(leaves=tuple(leaves))


def _placed(name: str, leaf: Any) -> tuple[Placed, object]:
    array = leaf.data if _is_host_array(leaf) else leaf
    _refuse_other(name, array)
    kind, devices, nbytes, buffer = "numpy", tuple[str, ...](), array.nbytes, object()
    if isinstance(array, np.ndarray):
        # Zero bytes share an address with anything; views may overlap without being the same.
        buffer = (array.ctypes.data, array.nbytes) if array.nbytes else object()
    elif array.is_deleted():
        kind, nbytes = "deleted", 0
    else:
        kind = str(array.sharding.memory_kind)
        devices = tuple(sorted(str(d) for d in array.sharding.addressable_devices))
        shards = [shard.data for shard in array.addressable_shards]
        nbytes = sum(shard.nbytes for shard in shards)
        if nbytes:
            buffer = tuple(shard.unsafe_buffer_pointer() for shard in shards), nbytes
    placed = Placed(
        path=name,
        shape=tuple(array.shape),
        dtype=str(array.dtype),
        memory_kind=kind,
        devices=devices,
        nbytes=int(nbytes),
    )
    return placed, buffer


def _source_and_target(name: str, leaf: Any, device: jax.Device | None) -> tuple[Any, Any]:
    array = leaf.data if _is_host_array(leaf) else leaf
    _refuse_other(name, array)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if dtype != array.dtype:
        raise HostMemoryError(
            f"{_leaf(name)} of dtype {array.dtype}: expected a type that jax keeps; it would be "
            f"stored as {dtype}. Convert it first, or set jax_enable_x64."
        )
    if isinstance(array, jax.Array) and device is None:
        if array.is_deleted():
            raise HostMemoryError(f"{_leaf(name)} is deleted: expected an array with a buffer")
        devices, sharding = array.sharding.device_set, array.sharding
    else:
        device = jax.devices()[0] if device is None else device
        devices, sharding = {device}, jax.sharding.SingleDeviceSharding(device)
    target: Any
    for target in devices:
        kinds = sorted(m.kind for m in target.addressable_memories())
        if HOST not in kinds:
            raise HostMemoryError(
                f"device={target}: expected one with {HOST} memory; it has {', '.join(kinds)}"
            )
    return array, sharding.with_memory_kind(HOST)


def _refuse_other(name: str, array: Any) -> None:
    if isinstance(array, jax.core.Tracer):
        raise HostMemoryError(f"{_leaf(name)} is traced: expected a concrete array, outside jit")
    if not isinstance(array, jax.Array | np.ndarray):
        raise HostMemoryError(
            f"{_leaf(name)} of type {type(array).__name__}: expected a NumPy or jax array"
        )


def _is_host_array(leaf: Any) -> bool:
    return isinstance(leaf, HostArray)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _leaf(name: str) -> str:
    return f"leaf {name}" if name else "the array"


def _bytes_text(nbytes: int) -> str:
    """Format a number of bytes with about four digits.

    >>> _bytes_text(999), _bytes_text(134_217_728)
    ('999 B', '134.2 MB')
    """
    value, unit = float(nbytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"
