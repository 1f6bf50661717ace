"""Profiles of AsymGEMM: begin and end of some sections, in a Chrome trace.

jax stores the clock at both ends of each `jax.named_scope` in shared memory, and writes the trace
after the launch. All sections would exceed that memory. So a CTA records its first strip: in each
pass the first tile of each warpgroup, which waits for W, and a few later ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pallas_kernels.counting import ceil_div
from pallas_kernels.gemm.config import Config, o_epilogue, shared_bytes
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.hopper import SHARED_BYTES_LIMIT, expect

_RANGE_BYTES = 16  # begin and end, each a name and a clock of 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Trace of a launch in `folder`, with up to `ranges` for each warpgroup.

    Every `every`-th of a warpgroup's `tiles` in a pass is recorded, from the first on.
    """

    folder: str
    ranges: int
    tiles: int
    every: int


def with_profile(config: Config, gemm: Gemm, folder: str, later: int = 2) -> tuple[Config, Profile]:
    """Return a configuration with room for a profile, at the cost of slots of X, and the profile.

    Args:
      config: configuration with AsymGEMM.
      gemm: sizes and types.
      folder: folder of the trace.
      later: most tiles of a pass to record beside the first.

    Raises:
      ValueError: weights are quantised, the kernel has no AsymGEMM, or two slots of X leave too
        little room.
    """
    expect(gemm.quantised is None, "quantised", gemm.quantised, "None")
    expect(config.kc > 0, "kc", config.kc, "K rows of a pass of AsymGEMM")
    k_steps = ceil_div(gemm.k, config.tk)
    passes = ceil_div(k_steps, config.ring) + 1  # `stagger` adds one
    tiles = ceil_div(ceil_div(gemm.m, config.tm), config.turns)
    every = ceil_div(tiles, later + 1)
    recorded = ceil_div(tiles, every)
    # waits for W and X; products and stores of each section; waits for and loads of sums
    ranges = (1 + recorded) * k_steps + 2 * recorded * passes + passes
    ranges += recorded * o_epilogue(config, gemm).pieces
    ranges += 2  # jax's own, and the header
    need = ranges * _RANGE_BYTES * (config.warpgroups + 1)
    while shared_bytes(config, gemm) + need > SHARED_BYTES_LIMIT:
        slots = config.asym_stages, config.x_stages
        expect(min(slots) > 2, "config", config, f"{need} bytes less of shared memory")
        config = replace(config, asym_stages=slots[0] - 1, x_stages=slots[1] - 1)
    return config, Profile(folder=folder, ranges=ranges, tiles=tiles, every=every)
