"""Split K over a cluster, as far as it is known: CTAs add through each other's memory.

Each of c CTAs sums up a c-th of K of one tile, sends every CTA its columns of that (`st.async` into
distributed shared memory) and stores the columns that are its own: no addition in device memory.
Prints what the compiler makes of it for an H200, as JSON lines. Interpret mode cannot run it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.ahead_of_time import TARGETS, Compiler, prepare
from pallas_kernels.mosaic import Ref, plgpu, swizzled
from pallas_kernels.program import Argument, Program

K, TM, TK = 1024, 64, 64
TILES = ((2, 128), (4, 256))
"""CTAs of a cluster and columns of a tile."""


def product(cluster: int, tn: int, interpret: Any = None) -> Callable[..., jax.Array]:
    """Return x[64, K], w[K, tn] -> their product in float32, by one cluster."""
    own, steps = tn // cluster, K // (TK * cluster)
    f32, bf16 = jnp.float32, jnp.bfloat16

    def body(
        x: Ref, w: Ref, o: Ref, x_s: Ref, w_s: Ref, parts: Ref, loaded: Any, sent: Any
    ) -> None:
        rank = lax.axis_index("rank")

        def sums(acc: Ref) -> Any:
            @pl.loop(0, steps)
            def _step(step: Any) -> None:
                at = pl.ds((rank * steps + step) * TK, TK)
                plgpu.copy_gmem_to_smem(x.at[:, at], x_s, loaded)
                plgpu.copy_gmem_to_smem(w.at[at], w_s, loaded)
                plgpu.barrier_wait(loaded)
                plgpu.wgmma(acc, x_s, w_s)
                plgpu.wgmma_wait(0)

            return acc[...]

        total = pl.run_scoped(sums, plgpu.ACC((TM, tn), f32))
        for target in range(cluster):
            part = total[:, target * own : (target + 1) * own]
            plgpu.async_store_smem(
                part, parts.at[rank], sent, cluster_idx=jnp.int32(target), cluster_dim="rank"
            )
        plgpu.barrier_wait(sent)
        out = parts[0]
        for sender in range(1, cluster):
            out = out + parts[sender]
        o[:, pl.ds(rank * own, own)] = out

    kernel: Callable[..., jax.Array] = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((TM, tn), f32),
        grid=(1,),
        grid_names=("tile",),
        cluster=(cluster,),
        cluster_names=("rank",),
        scratch_types=[
            plgpu.SMEM((TM, TK), bf16, transforms=swizzled(TK, bf16)),
            plgpu.SMEM((TK, tn), bf16, transforms=swizzled(TK, bf16)),
            plgpu.SMEM((cluster, TM, own), f32),
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(num_arrivals=cluster),
        ],
        **({} if interpret is None else {"interpret": interpret}),
    )
    return kernel


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        compiler = Compiler(TARGETS["h200"], Path(folder))
        for cluster, tn in TILES:
            shapes = ((TM, K), (K, tn))
            program = Program(
                op="split_k",
                name=f"{TM} x {tn} on {cluster}",
                function=product(cluster, tn),
                arguments=tuple(Argument(shape=shape, dtype="bfloat16") for shape in shapes),
                shared_bytes=0,
                opcodes=frozenset(),
            )
            _, report = compiler.compile(program)
            print(json.dumps({"name": program.name, **asdict(report)}), flush=True)


if __name__ == "__main__":
    main()
