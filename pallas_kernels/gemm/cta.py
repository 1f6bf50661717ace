"""One CTA's view of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gemm.config import (
    Config,
    Rings,
    accumulator,
    o_epilogue,
    piece_size,
    rings,
    sums_epilogue,
)
from pallas_kernels.gemm.rows import Item, OneMatrix
from pallas_kernels.gemm.schedule import Counts, first_pass, passes
from pallas_kernels.gemm.specs import PACK_MULTIPLE, Gemm
from pallas_kernels.hopper import SWIZZLE_BYTES
from pallas_kernels.integer_math import Int, rem, where
from pallas_kernels.mosaic import Ref, plgpu, swizzled

Accumulate = Callable[[Ref, Ref], None]


def by_flow(is_sym: Any, sym: Callable[[], None], asym: Callable[[], None]) -> None:
    """Run what differs by dataflow; without AsymGEMM `is_sym` is True."""
    if is_sym is True:
        sym()
    else:
        lax.cond(is_sym, sym, asym)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Slots in shared memory with barriers; slot = tile number mod size.

    "full": arrived; "empty": read by all compute warpgroups (of the cluster).
    """

    size: int
    tiles: Ref
    full: Ref
    empty: tuple[Ref, ...]  # one, or one for each dataflow
    is_sym: Any
    turns: int = 1

    def slot(self, number: Int) -> Int:
        """Slot of tile `number`."""
        return rem(number, self.size)

    def arrived(self, slot: Int, turn: Int = 0) -> Ref:
        """Return a slot's barrier "full" for the reading warpgroup."""
        return self.full.at[slot if self.turns == 1 else turn * self.size + slot]

    def free(self, slot: Int) -> None:
        """Report that this warpgroup has read a slot."""
        self._at_empty(plgpu.barrier_arrive, slot)

    def await_free(self, number: Int) -> None:
        """Wait until the slot of tile `number` is free."""
        pl.when(number >= self.size)(lambda: self._at_empty(plgpu.barrier_wait, self.slot(number)))

    def drain(self, used: Int) -> None:
        """Wait until the last of `used` tiles were read."""

        @pl.loop(jnp.maximum(used - self.size, 0), used)
        def _(number: Int) -> None:
            self._at_empty(plgpu.barrier_wait, self.slot(number))

    def _at_empty(self, use: Callable[[Ref], None], slot: Int) -> None:
        if len(self.empty) == 1:
            use(self.empty[0].at[slot])
        else:
            sym, asym = self.empty
            by_flow(self.is_sym, lambda: use(sym.at[slot]), lambda: use(asym.at[slot]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cta:
    """A CTA's view: operands, share of work, buffers."""

    config: Config
    gemm: Gemm
    sizes: Counts
    rows: OneMatrix
    accumulate: Accumulate
    warpgroup: Int
    # global memory, of one layer
    x: Ref
    w: Ref
    scales: Ref | None
    offsets: Ref | None
    x_sums: Ref | None  # float32 [K / sum_size, rows of x]
    o: Ref
    sums: Ref | None  # float32, as `schedule.sums_shape` says
    # shared memory
    rings: Rings
    x_ring: Ring
    w_ring: Ring
    scale_ring: Ring | None  # of quantised weights
    offset_tiles: Ref | None  # beside the scales, at their barriers
    sum_ring: Ring | None  # of sums of X, where there are offsets
    staging: Ref  # of pieces of O
    sums_staging: Ref | None  # of pieces of `sums`, in the same bytes
    detour: Ref | None  # interpret mode: converted weights

    @property
    def is_sym(self) -> Any:
        """Mark of a SymGEMM CTA: True if all are."""
        return self.rows.at.is_sym

    def copy(self, source: Ref, target: Ref, arrived: Ref, shared_in: str | None) -> None:
        """Load a tile, multicast in parts if shared."""

        def one(**options: str) -> Callable[[], None]:
            return lambda: plgpu.copy_gmem_to_smem(source, target, arrived, **options)

        if shared_in is None or self.config.cluster == 1:
            one()()
            return
        multicast = one(collective_axes="rank")
        if shared_in == "sym":
            by_flow(self.is_sym, multicast, one())
        else:
            by_flow(self.is_sym, one(), multicast)

    def w_tile(self, item: Item, k_step: Int, slot: Ref) -> list[tuple[Ref, Ref]]:
        """Pair a tk x tn piece of a strip with its slot."""
        tn, layout, block = self.config.tn, self.gemm.w_layout, PACK_MULTIPLE
        stored, matrix = _stored(self.gemm, self.config.tk), of_expert(self.w, item)
        if layout == "tiles":
            return [
                (
                    matrix.at[item.strip * (tn // block) + column // block, k_step],
                    slot if tn == block else slot.at[pl.ds(column, block)],
                )
                for column in range(0, tn, block)
            ]
        ns, ks = pl.ds(item.strip * tn, tn), pl.ds(k_step * stored, stored)
        return [(matrix.at[(ns, ks) if layout == "nk" else (ks, ns)], slot)]

    def x_tile(self, top: Int, column: Int) -> Ref:
        """Return the piece of X in global memory at a row and column."""
        return self.x.at[pl.ds(top, self.config.tm), pl.ds(column, self.config.x_columns)]

    @property
    def turn(self) -> Int:
        """This warpgroup's share in tiles taken in turn."""
        return self.warpgroup if self.config.ping_pong else 0

    @property
    def w_turn(self) -> Int:
        """The same in W's tiles, which all warpgroups read in AsymGEMM."""
        return where(self.is_sym, self.turn, 0)

    @property
    def own_begin(self) -> Int:
        """First row (quantised: column) of this warpgroup's part of a tile."""
        size = accumulator(self.config, self.gemm)[0]
        return 0 if self.config.ping_pong else self.warpgroup * size

    @property
    def own(self) -> Any:
        """This warpgroup's part of a tile."""
        return pl.ds(self.own_begin, accumulator(self.config, self.gemm)[0])

    @property
    def passes(self) -> Int:
        """K passes of an item; SymGEMM has one."""
        k_steps = self.sizes.k_steps
        if not self.config.asym or k_steps <= self.config.w_stages:
            return 1
        return where(self.is_sym, 1, passes(self.config, k_steps, self._first))

    def pass_steps(self, number: Int) -> tuple[Int, Int]:
        """(First K step, number of K steps) of a pass."""
        k_steps, slots = self.sizes.k_steps, self.config.w_stages
        if isinstance(self.passes, int):
            return 0, k_steps
        start = jnp.where(number == 0, 0, self._first + (number - 1) * slots)
        length = jnp.where(number == 0, self._first, slots)
        whole = where(self.is_sym, k_steps, jnp.minimum(length, k_steps - start))
        return start, whole

    @property
    def _first(self) -> Int:
        unit = 1 if self.gemm.groups == 1 else self.rings.scale_steps
        return first_pass(self.config, self.sizes.k_steps, self.rows.at.player, unit)


def of_expert(array: Ref, item: Item) -> Ref:
    """Return the matrix of an item's expert, or the only one."""
    return array if item.expert is None else array.at[item.expert]


def w_copies(config: Config, gemm: Gemm) -> int:
    """Return the copies of a tile of W: one, or one per 64 columns if tile-major."""
    return config.tn // PACK_MULTIPLE if gemm.w_layout == "tiles" else 1


def scratch_types(gemm: Gemm, config: Config, *, detour: bool, sums: bool) -> list[Any]:
    """Return shared memory and barriers: tiles, staging, barriers, detour."""
    stored = [_staging(gemm, config)] + ([_sums_staging(gemm, config)] if sums else [])
    scratch = [
        _tiles(gemm, config),
        plgpu.RefUnion(*((one,) for one in stored)),
        _barriers(gemm, config),
    ]
    if detour and gemm.quantised is not None:
        shape = (config.warpgroups, config.warpgroup_columns, config.tk)
        scratch.append([_swizzled(shape, gemm.dtype, piece_size(config, gemm))])
    else:
        scratch.append([])
    return scratch


def rings_of(
    config: Config, gemm: Gemm, tiles: dict[str, Ref], barriers: dict[str, Any], is_sym: Any
) -> dict[str, Any]:
    """Return the rings over `scratch_types`' buffers, for `Cta`."""
    sizes = rings(config, gemm)

    def ring(name: str) -> Ring | None:
        if name not in barriers:
            return None
        full, empty = barriers[name]
        return Ring(
            size=getattr(sizes, name),
            tiles=tiles[name],
            full=full,
            empty=tuple(empty),
            is_sym=is_sym,
            turns=config.turns if name in ("x", "w") else 1,
        )

    return {
        "rings": sizes,
        "x_ring": ring("x"),
        "w_ring": ring("w"),
        "scale_ring": ring("scales"),
        "offset_tiles": tiles.get("offsets"),
        "sum_ring": ring("sums"),
    }


def _tiles(gemm: Gemm, config: Config) -> dict[str, Any]:
    ring, shape = rings(config, gemm), (config.tn, _stored(gemm, config.tk))
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


def _barriers(gemm: Gemm, config: Config) -> dict[str, tuple[Any, list[Any]]]:
    """Return full and empty of each ring; all CTAs free a multicast tile."""
    sizes = rings(config, gemm)

    def ring(name: str, copies: int, *, readers: tuple[int, int], shared: bool) -> Any:
        slots, several = getattr(sizes, name), shared and config.cluster > 1
        turns = config.turns if name in ("x", "w") else 1
        counts = dict.fromkeys(readers[: 1 + config.asym])
        empty = [_empty(slots, number, several) for number in counts]
        return plgpu.Barrier(num_arrivals=copies, num_barriers=slots * turns), empty

    all_, slot_readers = config.warpgroups, config.warpgroups // config.turns
    result = {
        "x": ring("x", 1, readers=(slot_readers, slot_readers), shared=config.asym),
        "w": ring("w", w_copies(config, gemm), readers=(slot_readers, all_), shared=True),
    }
    if gemm.quantised is not None:
        offsets = gemm.quantised.offset_dtype is not None
        shared = gemm.groups > 1
        result["scales"] = ring(
            "scales", 1 + offsets, readers=(slot_readers, slot_readers), shared=shared
        )
        if offsets:
            result["sums"] = ring("sums", 1, readers=(slot_readers, slot_readers), shared=False)
    return result


def _empty(slots: int, readers: int, shared: bool) -> Any:
    if shared:
        return plgpu.ClusterBarrier(
            collective_axes=("rank",), num_arrivals=readers, num_barriers=slots
        )
    return plgpu.Barrier(num_arrivals=readers, num_barriers=slots)


def _stored(gemm: Gemm, k: int) -> int:
    return k if gemm.quantised is None else k * gemm.w_bits // 8


def _swizzled(shape: tuple[int, ...], dtype: Any, row: int | None = None) -> Any:
    kind = jnp.dtype(dtype)
    return plgpu.SMEM(shape, kind, transforms=swizzled(row or shape[-1], kind))


def _staging(gemm: Gemm, config: Config) -> Any:
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
    if columns * out.itemsize > SWIZZLE_BYTES:
        return ()
    return plgpu.TilingTransform((1, columns)), plgpu.SwizzleTransform(SWIZZLE_BYTES)
