"""One CTA's view of the kernel: its position in the launch, its tiles, buffers and barriers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.counting import Int
from pallas_kernels.gemm.config import (
    Config,
    Dataflow,
    Rings,
    accumulator,
    dataflows,
    o_epilogue,
    piece_size,
    ring_turns,
    rings,
    sums_epilogue,
)
from pallas_kernels.gemm.profile import Profile
from pallas_kernels.gemm.rows import Item, OneMatrix
from pallas_kernels.gemm.schedule import Counts, Plan, first_pass
from pallas_kernels.gemm.specs import PACK_MULTIPLE, Gemm
from pallas_kernels.hopper import SWIZZLE_BYTES
from pallas_kernels.mosaic import Ref, plgpu, swizzled

Accumulate = Callable[[Ref, Ref], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Slots in shared memory with their barriers; slot = number of the tile mod size.

    "full" means that a slot's tile has arrived, "empty" that all compute warpgroups have read it.
    If warpgroups take tiles in turn, each has its own "full" (a barrier must be waited for in each
    of its phases), and only the reader of a tile arrives at "empty".
    """

    size: int
    tiles: Ref
    full: Ref
    empty: Ref
    turns: int = 1

    def arrived(self, slot: Int, turn: Int) -> Ref:
        """Return the barrier "full" of a slot for the warpgroup that reads its tile."""
        return self.full.at[slot if self.turns == 1 else turn * self.size + slot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Shared memory of one dataflow; both dataflows use the same bytes."""

    name: Dataflow
    rings: Rings
    x: Ring
    w: Ring
    scales: Ring | None = None  # of quantised weights
    offsets: Ref | None = None  # beside the scales, at their barriers
    sums: Ring | None = None  # of X, where there are offsets

    @property
    def is_sym(self) -> bool:
        """True for SymGEMM: a tile of O stays, and W streams through."""
        return self.name == "sym"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta:
    """One CTA's view: its operands, its share of the work, its buffers."""

    config: Config
    gemm: Gemm
    sizes: Counts
    rows: OneMatrix
    accumulate: Accumulate
    # where this thread stands
    warpgroup: Int
    cluster: Int
    rank: Int  # within the cluster
    # run-time scalars
    plan: Plan
    # global memory, of one layer
    x: Ref
    w: Ref
    scales: Ref | None
    offsets: Ref | None
    x_sums: Ref | None  # float32 [K / sum_size, rows of x]
    o: Ref
    sums: Ref | None  # float32, as `schedule.sums_shape` says
    # shared memory
    staging: Ref  # of pieces of O
    sums_staging: Ref | None  # of pieces of `sums`, in the same bytes
    detour: Ref | None  # interpret mode: converted weights
    profile: Profile | None = None

    def scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return a context whose operations form a range of the profile; without one, no effect."""
        return contextlib.nullcontext() if self.profile is None else jax.named_scope(name)

    @property
    def shared(self) -> dict[str, str]:
        """Options of a copy for a tile that the whole cluster needs: each CTA loads a share."""
        return {"collective_axes": "rank"} if self.config.cluster > 1 else {}

    def w_tile(self, item: Item, k_step: Int, slot: Ref) -> list[tuple[Ref, Ref]]:
        """Pair a tk x tn piece of an item's strip with its slot, in `w_copies` parts."""
        tn, layout, block = self.config.tn, self.gemm.w_layout, PACK_MULTIPLE
        stored, matrix = _stored(self.gemm, self.config.tk), of_expert(self.w, item)
        if layout == "tiles":
            return [
                (
                    matrix.at[item.strip * (tn // block) + at // block, k_step],
                    slot if tn == block else slot.at[pl.ds(at, block)],
                )
                for at in range(0, tn, block)
            ]
        ns, ks = pl.ds(item.strip * tn, tn), pl.ds(k_step * stored, stored)
        return [(matrix.at[(ns, ks) if layout == "nk" else (ks, ns)], slot)]

    def x_tile(self, top: Int, column: Int) -> Ref:
        """Return the piece of X in global memory that begins at this row and column."""
        return self.x.at[pl.ds(top, self.config.tm), pl.ds(column, self.config.x_columns)]

    @property
    def turn(self) -> Int:
        """Share of this warpgroup in tiles that warpgroups take in turn."""
        return self.warpgroup if self.config.ping_pong else 0

    @property
    def own_begin(self) -> Int:
        """First row (for quantised weights, column) of this warpgroup's part of a tile."""
        size = accumulator(self.config, self.gemm)[0]
        return 0 if self.config.ping_pong else self.warpgroup * size

    @property
    def own(self) -> Any:
        """This warpgroup's part of a tile."""
        return pl.ds(self.own_begin, accumulator(self.config, self.gemm)[0])

    @property
    def first(self) -> Int:
        """K steps of the first pass of AsymGEMM, the same in every CTA of a cluster."""
        unit = 1 if self.gemm.groups == 1 else rings(self.config, self.gemm, "asym").scale_steps
        other = self.cluster - self.plan.sym_clusters
        return first_pass(self.config, self.sizes.k_steps, other, unit)

    def pass_steps(self, number: Int) -> tuple[Int, Int]:
        """(First K step, number of K steps) of a pass of AsymGEMM."""
        ring, first = self.config.ring, self.first
        start = jnp.where(number == 0, 0, first + (number - 1) * ring)
        length = jnp.where(number == 0, first, ring)
        return start, jnp.minimum(length, self.sizes.k_steps - start)


def of_expert(array: Ref, item: Item) -> Ref:
    """Return the matrix of an item's expert; the only one without experts."""
    return array if item.expert is None else array.at[item.expert]


def w_copies(config: Config, gemm: Gemm) -> int:
    """Return the number of copies for a tile of W: one, or one per 64 columns if tile-major."""
    return config.tn // PACK_MULTIPLE if gemm.w_layout == "tiles" else 1


def scratch_types(gemm: Gemm, config: Config, *, detour: bool, sums: bool) -> list[Any]:
    """Return shared memory and barriers: tiles, staging, barriers, detour.

    Args:
      gemm: sizes and types.
      config: tiles.
      detour: True to include interpret mode's detour for converted weights.
      sums: True to include slots for partial sums.
    """
    flows = dataflows(config)
    tiles = [_tiles(gemm, config, flow) for flow in flows]
    stored = [_staging(gemm, config)] + ([_sums_staging(gemm, config)] if sums else [])
    scratch = [
        plgpu.RefUnion(*tiles),
        plgpu.RefUnion(*((one,) for one in stored)),
        [_barriers(gemm, config, flow) for flow in flows],
    ]
    if detour and gemm.quantised is not None:
        shape = (config.warpgroups, config.warpgroup_columns, config.tk)
        scratch.append([_swizzled(shape, gemm.dtype, piece_size(config, gemm))])
    else:
        scratch.append([])
    return scratch


def flows_of(gemm: Gemm, config: Config, tiles: Any, barriers: Any) -> list[Flow]:
    """Return the dataflows of a kernel over the buffers of `scratch_types`."""
    return [
        _flow(rings(config, gemm, name), config, name, refs, own)
        for name, refs, own in zip(dataflows(config), tiles, barriers, strict=True)
    ]


def _flow(
    sizes: Rings,
    config: Config,
    name: Dataflow,
    tiles: dict[str, Ref],
    barriers: dict[str, tuple[Ref, Ref]],
) -> Flow:
    made = {
        ring: Ring(
            size=getattr(sizes, ring),
            tiles=tiles[ring],
            full=full,
            empty=empty,
            turns=ring_turns(config, name, ring),
        )
        for ring, (full, empty) in barriers.items()
    }
    return Flow(name=name, rings=sizes, offsets=tiles.get("offsets"), **made)


def _tiles(gemm: Gemm, config: Config, flow: Dataflow) -> dict[str, Any]:
    """Tiles of each ring that there is; offsets are in the slots of the scales."""
    ring, shape = rings(config, gemm, flow), (config.tn, _stored(gemm, config.tk))
    if gemm.w_layout == "kn":
        shape = shape[::-1]
    # what a product takes of a tile of X: whole swizzled rows
    row = min(piece_size(config, gemm), config.x_columns)
    tiles = {
        "x": _swizzled((ring.x, config.tm, config.x_columns), gemm.dtype, row),
        "w": _swizzled((ring.w, *shape), gemm.w_dtype),
    }
    if gemm.quantised is not None:
        rows = (ring.scales, ring.scale_rows, config.tn)
        tiles["scales"] = plgpu.SMEM(rows, jnp.dtype(gemm.quantised.scale_dtype))
        if gemm.quantised.offset_dtype:
            tiles["offsets"] = plgpu.SMEM(rows, jnp.dtype(gemm.quantised.offset_dtype))
            sums = (ring.sums, ring.sum_slot_rows, config.tm)
            tiles["sums"] = plgpu.SMEM(sums, jnp.float32)
    return tiles


def _barriers(gemm: Gemm, config: Config, flow: Dataflow) -> dict[str, tuple[Any, Any]]:
    """Full and empty of each ring that there is."""
    sizes, sym = rings(config, gemm, flow), flow == "sym"

    def ring(name: str, copies: int, *, shared: bool) -> tuple[Any, Any]:
        """Free a multicast tile only when the compute warpgroups of all CTAs have read it."""
        slots, turns = getattr(sizes, name), ring_turns(config, flow, name)
        readers: dict[str, int] = {
            "num_arrivals": config.warpgroups // turns,
            "num_barriers": slots,
        }
        if shared and config.cluster > 1:
            empty = plgpu.ClusterBarrier(collective_axes=("rank",), **readers)
        else:
            empty = plgpu.Barrier(**readers)
        return plgpu.Barrier(num_arrivals=copies, num_barriers=slots * turns), empty

    found = {
        "x": ring("x", 1, shared=not sym),
        "w": ring("w", w_copies(config, gemm), shared=sym),
    }
    if gemm.quantised is not None:
        offsets = gemm.quantised.offset_dtype is not None
        found["scales"] = ring("scales", 1 + offsets, shared=sym and gemm.groups > 1)
        if offsets:
            found["sums"] = ring("sums", 1, shared=False)
    return found


def _stored(gemm: Gemm, k: int) -> int:
    """Stored numbers along K of k weights."""
    return k if gemm.quantised is None else k * gemm.w_bits // 8


def _swizzled(shape: tuple[int, ...], dtype: Any, row: int | None = None) -> Any:
    kind = jnp.dtype(dtype)
    return plgpu.SMEM(shape, kind, transforms=swizzled(row or shape[-1], kind))


def _staging(gemm: Gemm, config: Config) -> Any:
    """Slots for pieces of O, in the layout of O."""
    store, out = o_epilogue(config, gemm), jnp.dtype(gemm.out_dtype)
    piece = (store.columns, store.rows) if gemm.transposed else (store.rows, store.columns)
    transforms = swizzled(piece[1], out)
    if gemm.experts is not None:
        transforms = _any_rows(piece[1], out)
    return plgpu.SMEM((config.warpgroups, store.slots, *piece), out, transforms=transforms)


def _sums_staging(gemm: Gemm, config: Config) -> Any:
    store = sums_epilogue(config, gemm)
    shape = (config.warpgroups, store.slots, store.rows, store.columns)
    return _swizzled(shape, "float32")


def _any_rows(columns: int, out: Any) -> tuple[Any, ...]:
    """Transforms of a staging tile from which TMA can store any rows.

    Tiles of one row are swizzled; layout inference finds no transposed layout for wider ones, which
    stay in plain order.
    """
    if columns * out.itemsize > SWIZZLE_BYTES:
        return ()
    return plgpu.TilingTransform((1, columns)), plgpu.SwizzleTransform(SWIZZLE_BYTES)
