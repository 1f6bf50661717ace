"""Helpers of all kernels over Pallas Mosaic GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from pallas_kernels.integer_math import Int

plgpu: Any = mosaic_gpu  # its annotations are too incomplete for strict checking

Ref = Any  # Pallas references have no public type


@runtime_checkable
class Specialised(Protocol):
    """A CTA's warpgroups by role: several compute, one loads."""

    @property
    def warpgroups(self) -> int:
        """Number of compute warpgroups."""

    @property
    def compute_registers(self) -> int:
        """Registers per thread of a compute warpgroup."""

    @property
    def load_registers(self) -> int:
        """Registers per thread of the load warpgroup."""


def interpret_params(*, detect_races: bool = False) -> mosaic_gpu.InterpretGPUParams:
    """Return interpret mode's settings: NaN where nothing was written."""
    return mosaic_gpu.InterpretGPUParams(
        detect_races=detect_races, out_of_bounds_reads="uninitialized", uninitialized_memory="nan"
    )


def swizzled(columns: int, dtype: Any) -> tuple[Any, Any]:
    """Return the transforms of a shared-memory tile for TMA and wgmma."""
    bits = 4 if str(dtype) in ("int4", "uint4") else jnp.dtype(dtype).itemsize * 8
    swizzle = plgpu.find_swizzle(columns * bits)  # a row in bits, answer in bytes
    return plgpu.TilingTransform((8, swizzle * 8 // bits)), plgpu.SwizzleTransform(swizzle)


def apart(
    warpgroup: Int, config: Specialised, loads: Callable[[], None], computes: Callable[[], None]
) -> None:
    """Run `loads` in the last warpgroup, `computes` in others; set registers."""

    @pl.when(warpgroup == config.warpgroups)
    def _loads() -> None:
        plgpu.set_max_registers(config.load_registers, action="decrease")
        loads()

    @pl.when(warpgroup < config.warpgroups)
    def _computes() -> None:
        plgpu.set_max_registers(config.compute_registers, action="increase")
        computes()


def drain(barrier: Ref, slots: int, used: Int) -> None:
    """Wait for reads of the last tiles: a CTA must not end before a peer's arrivals.

    Args:
      used: tiles through the ring.
    """

    @pl.loop(jnp.maximum(used - slots, 0), used)
    def _(counter: Int) -> None:
        plgpu.barrier_wait(barrier.at[lax.rem(counter, slots)])


def tma_add(source: Ref, target: Ref) -> None:
    """Add a tile in shared memory to one in global memory, in the memory system."""
    plgpu.copy_smem_to_gmem(source, target, reduction_op="add")


def read_add_write(source: Ref, target: Ref) -> None:
    """Add a tile as `tma_add`, in interpret mode, for a lone CTA."""
    source[...] = source[...] + target[...]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(source, target)


def persistent(
    body: Callable[..., None],
    *,
    out: tuple[tuple[int, ...], str],
    clusters: int,
    cluster: int,
    warpgroups: int,
    scratch: list[Any],
    interpret: mosaic_gpu.InterpretGPUParams | None,
    global_scratch: tuple[tuple[int, ...], str] | None = None,
) -> Callable[..., jax.Array]:
    """Return a kernel of one CTA an SM for `body`, with axes cluster, rank, warpgroup.

    Args:
      body: of operands, output, any global scratch, and scratch.
      global_scratch: shape and dtype of device memory, or None.
    """
    options: dict[str, Any] = {} if interpret is None else {"interpret": interpret}
    if cluster > 1:
        options |= {"cluster": (cluster,), "cluster_names": ("rank",)}
    arrays = [out] if global_scratch is None else [out, global_scratch]
    kernel: Callable[..., Sequence[jax.Array]] = plgpu.kernel(
        body,
        out_type=jax.eval_shape(lambda: [jnp.zeros(*array) for array in arrays]),
        grid=(clusters,),
        grid_names=("cluster",),
        num_threads=warpgroups + 1,
        thread_name="warpgroup",
        scratch_types=scratch,
        **options,
    )
    return lambda *operands: kernel(*operands)[0]
