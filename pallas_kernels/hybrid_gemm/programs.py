"""The configurations in use, to be compiled ahead of time.

Machine code depends on the tiles, the cluster and the types, and on sizes only through constants.
So each member of the family is compiled once at a size that reaches all of its code, with
two clusters and types of output, and the other variants once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pallas_kernels.counting import round_up
from pallas_kernels.hopper import CLUSTERS
from pallas_kernels.hybrid_gemm.api import launch
from pallas_kernels.hybrid_gemm.config import Config, shared_bytes
from pallas_kernels.hybrid_gemm.heuristics import FAMILY
from pallas_kernels.hybrid_gemm.specs import ROW_MULTIPLE, Gemm
from pallas_kernels.program import Argument, Program

_OPCODES = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "USETMAXREG"})
_REDUCTION = frozenset({"UTMAREDG"})
_SIZES: dict[str, Any] = {"k": 4096, "n": 16384}  # several K passes in every member of the family


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs of the family for a GPU or slice of `sm_count` SMs."""
    return tuple(_programs(sm_count))


def program(
    name: str, gemm: Gemm, config: Config, *, rows: int | None = None, columns: int | None = None
) -> Program:
    """Return one launch as a program: x, w and the run-time scalars in, the product out.

    Args:
      name: of the program.
      gemm: packed sizes and types.
      config: tiles and grid.
      rows: of x and of the result, if fewer than those of `gemm`.
      columns: of the result, if fewer.
    """
    rows, columns = rows or gemm.m, columns or gemm.n
    adds = gemm.k > config.kc  # one K pass has nothing to add to, and no code for it
    function: Any = functools.partial(
        launch, gemm=gemm, config=config, interpret=None, columns=columns
    )
    return Program(
        op="hybrid_gemm",
        name=name,
        function=function,
        arguments=(
            Argument(shape=(rows, gemm.k), dtype=gemm.dtype),
            Argument(shape=gemm.w_shape, dtype=gemm.dtype, host=True),
            Argument(shape=(4,), dtype="int32"),
        ),
        shared_bytes=shared_bytes(config, gemm),
        opcodes=_OPCODES | _REDUCTION if adds else _OPCODES,
        absent=frozenset() if adds else _REDUCTION,
        multicast=config.cluster > 1,
        key=(
            ("dtype", gemm.dtype),
            ("shape", f"{rows}x{gemm.k}x{columns}"),
            ("out", gemm.out_dtype),
            ("w", f"{gemm.w_layout}, {gemm.layers or 'no'} layers"),
            ("config", str(config)),
        ),
    )


def _programs(sm_count: int) -> Iterator[Program]:
    for name, config in FAMILY.items():
        for cluster, out_dtype in ((CLUSTERS[0], "bfloat16"), (CLUSTERS[-1], "float32")):
            yield program(
                f"{name}, cluster of {cluster}, {out_dtype} out",
                Gemm(m=8 * config.tm, out_dtype=out_dtype, **_SIZES),
                replace(config, cluster=cluster, sm_count=sm_count),
            )
    wide = replace(FAMILY["256x128"], sm_count=sm_count)
    narrow = replace(FAMILY["64x64"], sm_count=sm_count)
    for cluster in CLUSTERS[1:-1]:
        yield program(
            f"256x128, cluster of {cluster}, [N, K], stack of 3",
            Gemm(m=2048, w_layout="nk", layers=3, **_SIZES),
            replace(wide, cluster=cluster),
        )
    half: dict[str, Any] = {"dtype": "float16", "out_dtype": "float16"}
    yield program("256x128, float16", Gemm(m=2048, **half, **_SIZES), wide)
    yield program("64x64, float16, stack of 3", Gemm(m=8, layers=3, **half, **_SIZES), narrow)
    yield program("64x64, [N, K]", Gemm(m=16, w_layout="nk", **_SIZES), narrow)
    yield program(
        "256x128, cluster of 8, tiles, stack of 3",
        Gemm(m=2048, w_layout="tiles", layers=3, **_SIZES),
        replace(wide, cluster=8),
    )
    yield program("64x64, tiles", Gemm(m=16, w_layout="tiles", **_SIZES), narrow)
    yield program("64x64, one row", Gemm(m=ROW_MULTIPLE, **_SIZES), narrow, rows=1)
    ragged = Gemm(m=round_up(2001, ROW_MULTIPLE), k=4160, n=16064)
    yield program("256x128, ragged", ragged, wide, rows=2001, columns=16001)
    yield program("256x128, one K pass", Gemm(m=2048, k=512, n=16384), wide)
