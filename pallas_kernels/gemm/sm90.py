"""The Hopper kernel: two dataflows in one persistent launch (Mosaic GPU, wgmma and TMA)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.gemm.compute import compute
from pallas_kernels.gemm.config import Config, check_fits
from pallas_kernels.gemm.cta import Cta, rings_of, scratch_types
from pallas_kernels.gemm.epilogue import store_zeros
from pallas_kernels.gemm.load import load
from pallas_kernels.gemm.rows import OfExperts, OneMatrix, Place
from pallas_kernels.gemm.schedule import PLAN_FIELDS, Plan, capacity, counts, sums_shape
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.mosaic import Ref, apart, persistent, read_add_write, tma_add


# Each CTA has `warpgroups` compute warpgroups and one that issues the loads; only barriers
# synchronise them. A barrier "full" means that a tile has arrived, "empty" that all compute
# warpgroups have read it. Every ring is addressed by a running counter: slot = counter mod size.
#
# SymGEMM (output-stationary): a cluster owns `cluster` output tiles along M and walks over K. With
# a cluster above 1 each CTA loads its share of the W tile and multicasts it to the others.
#
# AsymGEMM (weight-stationary): a CTA owns a column strip for all of K. It pins kc rows of W, walks
# over all M tiles, stores partial sums in the first pass and adds them (TMA reduction) in the later
# ones, always in float32: in O if it is float32, else in separate memory, and the last pass reads
# the sums, adds its own and rounds once. So alpha changes only the order of additions. The CTAs of
# a cluster have neighbouring strips and walk together: each multicasts its share of the X tile.
#
# Interpret mode lacks the TMA reduction (`accumulate`), register operands of wgmma (`detour`) and
# multicast: each CTA of a cluster loads the whole tile. Nothing else differs between CPU and GPU.
def build(
    gemm: Gemm, config: Config, *, interpret: mosaic_gpu.InterpretGPUParams | None = None
) -> Callable[..., jax.Array]:
    """Return `kernel(x, w, [scales, [offsets, x_sums]], [table], scalars) -> o`.

    Returns:
      A function of x[gemm.x_rows, k], w of `gemm.w_shape`; if quantised, scales of
      `gemm.scales_shape`, with offsets those and `reference.sums_of(x, sum_size)`; for experts the
      tables of `launch.tables_of`; and int32 `Plan.scalars`, for experts followed by three counts.
      Columns without cluster are unwritten.

    Raises:
      ValueError: a configuration unfit for GEMM or hardware.

    Source: C2CServe, Algorithm 1 (the two dataflows). Ours: multicast, column ownership, run-time
    split, shortened first pass, conversion in registers, experts.
    """
    check_fits(config, gemm)
    sizes, sums = counts(config, gemm), sums_shape(config, gemm)

    def body(*refs: Ref) -> None:
        x, w, scales, offsets, x_sums, table, scalars, o, *scratch = _named(gemm, refs)
        *global_scratch, tiles, staging, barriers, detour = scratch
        plan = Plan(**{name: scalars[place] for place, name in enumerate(PLAN_FIELDS)})
        position = Place(
            config=config,
            sizes=sizes,
            plan=plan,
            cluster=lax.axis_index("cluster"),
            rank=lax.axis_index("rank") if config.cluster > 1 else 0,
        )

        def of_layer(stack: Ref | None) -> Ref | None:
            return stack if gemm.layers is None or stack is None else stack.at[plan.layer]

        (o_staging,), *others = staging
        cta = Cta(
            config=config,
            gemm=gemm,
            sizes=sizes,
            rows=_rows(gemm, position, table, scalars),
            accumulate=tma_add if interpret is None else read_add_write,
            warpgroup=lax.axis_index("warpgroup"),
            x=x,
            w=of_layer(w),
            scales=of_layer(scales),
            offsets=of_layer(offsets),
            x_sums=x_sums,
            o=o,
            sums=global_scratch[0] if global_scratch else None,
            staging=o_staging,
            sums_staging=others[0][0] if others else None,
            detour=detour[0] if detour else None,
            **rings_of(config, gemm, tiles, barriers, position.is_sym),
        )

        def compute_all() -> None:
            compute(cta)
            if gemm.experts is not None:
                store_zeros(cta)

        apart(cta.warpgroup, config, lambda: load(cta), compute_all)

    return persistent(
        body,
        out=((gemm.m, gemm.n), gemm.out_dtype),
        clusters=config.clusters,
        cluster=config.cluster,
        warpgroups=config.warpgroups,
        scratch=scratch_types(gemm, config, detour=interpret is not None, sums=sums is not None),
        interpret=interpret,
        global_scratch=None if sums is None else (sums, "float32"),
    )


def _named(gemm: Gemm, refs: tuple[Ref, ...]) -> list[Any]:
    rest = list(refs)
    x, w = rest.pop(0), rest.pop(0)
    scales = rest.pop(0) if gemm.quantised is not None else None
    shifted = gemm.quantised is not None and gemm.quantised.offset_dtype is not None
    offsets, x_sums = (rest.pop(0), rest.pop(0)) if shifted else (None, None)
    table = rest.pop(0) if gemm.experts is not None else None
    return [x, w, scales, offsets, x_sums, table, *rest]


def _rows(gemm: Gemm, place: Place, table: Ref | None, scalars: Ref) -> OneMatrix:
    if gemm.experts is None:
        return OneMatrix(at=place)
    counted = len(PLAN_FIELDS)
    return OfExperts(
        at=place,
        table=table,
        whole=capacity(gemm.m, gemm.experts, place.config.block_rows),
        expert_blocks=scalars[counted],
        all_blocks=scalars[counted + 1],
        experts=scalars[counted + 2],
    )
