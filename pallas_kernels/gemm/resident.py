"""Argument `resident` of the GEMM ops: a cache of W in device memory, and its fill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import Number, concrete
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.schedule import Plan, counts
from pallas_kernels.gemm.specs import PACK_MULTIPLE, Gemm
from pallas_kernels.host_memory import in_host_memory


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """First columns of a matrix in device memory, as a copy of those in host memory.

    Numbers are run-time scalars: changing them does not recompile. Columns include the padding
    of packed weights; a launch uses whole strips of its tiles, or all of N.

    Attributes:
      cache: array in the layout of w without the axis of layers, with any multiple of 64 columns:
        [C, K] for W[N, K] and quantised weights, [K, C] for W[K, N], [C / 64, K / 64, 64, 64]
        tile-major; [E, ...] with experts. In device memory; a `jax.new_ref` if launches fill it.
      columns: number of leading columns of the matrix in the cache.
      begin: first column in the cache, a multiple of 64. One cache can hold columns
        of several layers.
      fill: number of columns in the cache after the launch, which stores the missing ones; None
        to store none. Needs a reference as cache.
    """

    cache: Any
    columns: Number
    begin: Number = 0
    fill: Number | None = None


def with_cache(gemm: Gemm, resident: Resident | None) -> Gemm:
    """Return the description of a GEMM with its cache, if it has one.

    Raises:
      ValueError: the cache does not fit the weights, or is not in device memory.
    """
    if resident is None:
        return gemm
    if not isinstance(resident, Resident):
        raise ValueError(f"resident of type {type(resident).__name__}: expected Resident or None")
    cache = resident.cache
    try:
        kind = jax.typeof(cache)
    except TypeError:
        what = type(cache).__name__
        raise ValueError(f"resident.cache of type {what}: expected an array") from None
    shape = tuple(kind.shape)
    columns_axis = 1 if gemm.w_layout == "kn" else 0
    blocks = PACK_MULTIPLE if gemm.w_layout == "tiles" else 1
    stacked = gemm.experts is not None
    wanted = replace(gemm, resident=PACK_MULTIPLE).resident_shape
    size = shape[stacked + columns_axis] * blocks if len(shape) == len(wanted) else 0
    fits = size > 0 and size % PACK_MULTIPLE == 0
    found = replace(gemm, resident=size, fills=is_reference(cache)) if fits else gemm
    if not fits or shape != found.resident_shape or str(kind.dtype) != gemm.w_dtype:
        axes = ["C" if i == stacked + columns_axis else str(s) for i, s in enumerate(wanted)]
        raise ValueError(
            f"resident.cache of shape {'x'.join(map(str, shape))} and dtype {kind.dtype}: expected "
            f"{'x'.join(axes)} and {gemm.w_dtype} as in w, with C columns, a multiple of "
            f"{PACK_MULTIPLE}" + (" / 64" if blocks > 1 else "")
        )
    if not found.fills and in_host_memory(cache):
        raise ValueError("resident.cache in host memory: expected device memory")
    if not found.fills and resident.fill is not None:
        raise ValueError(
            f"resident.fill={resident.fill}: expected None, since the cache is no reference that a "
            f"launch could write to (jax.new_ref)"
        )
    return found


def is_reference(cache: Any) -> bool:
    """Return True for a mutable array of jax, concrete or traced."""
    return isinstance(jax.typeof(cache), jax.ref.AbstractRef)


def with_residency(plan: Plan, gemm: Gemm, config: Config, resident: Resident | None) -> Plan:
    """Return the plan of a launch with a cache; traced numbers are clamped to their range.

    Raises:
      ValueError: a concrete number is outside its range.
    """
    if resident is None:
        return plan
    end = 0 if resident.fill is None else resident.fill
    given = {"columns": resident.columns, "begin": resident.begin, "fill": end}
    known = {name: concrete(f"resident.{name}", value, int) for name, value in given.items()}
    begin, size = known["begin"], gemm.resident
    if begin is not None and (not 0 <= begin <= size or begin % PACK_MULTIPLE):
        raise ValueError(
            f"resident.begin={begin}: expected a multiple of {PACK_MULTIPLE} from 0 to the "
            f"{size} columns of the cache"
        )
    for name in ("columns", "fill"):
        top = gemm.n if begin is None else min(gemm.n, size - begin)
        value = known[name]
        if value is not None and not 0 <= value <= top:
            raise ValueError(
                f"resident.{name}={value}: expected from 0 to {top}, the columns of w that the "
                f"cache has room for"
            )
    xp: Any = jnp if any(value is None for value in known.values()) else np
    block = xp.clip(xp.asarray(resident.begin, np.int32) // PACK_MULTIPLE, 0, size // PACK_MULTIPLE)
    room = xp.minimum(size - block * PACK_MULTIPLE, gemm.n)
    strips = counts(config, gemm).strips

    def whole(columns: Any) -> Any:
        inside = xp.clip(xp.asarray(columns, np.int32), 0, room)
        return xp.where(inside >= gemm.n, strips, inside // config.tn).astype(np.int32)

    there = whole(resident.columns)
    made = (there, block.astype(np.int32), xp.maximum(there, whole(end)))
    fields: tuple[Any, ...] = tuple(int(field) for field in made) if xp is np else made
    return replace(plan, resident_strips=fields[0], resident_begin=fields[1], fill_end=fields[2])


def fill(gemm: Gemm, config: Config, w: Any, plan: Plan, cache: Any) -> None:
    """Store strips in the cache as a launch does, in jax.numpy."""
    matrix = w if gemm.layers is None else w[plan.layer]
    axis = 1 if gemm.w_layout == "kn" else 0
    each = 1 if gemm.w_layout == "tiles" else PACK_MULTIPLE  # columns' places in a block
    scale = PACK_MULTIPLE // each
    begin = plan.resident_begin * each
    column = jnp.arange(cache.shape[axis]) - begin
    first, end = (strips * config.tn // scale for strips in (plan.resident_strips, plan.fill_end))
    inside = (column >= first) & (column < end) & (column < matrix.shape[axis])
    source = jnp.take(matrix, jnp.clip(column, 0, matrix.shape[axis] - 1), axis=axis)
    shape = [1] * matrix.ndim
    shape[axis] = len(column)
    cache[...] = jnp.where(inside.reshape(shape), source, cache[...])
