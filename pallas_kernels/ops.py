"""Ops of this package, and programs to compile ahead."""

from __future__ import annotations

from importlib import import_module

from pallas_kernels.hopper import expect
from pallas_kernels.program import Program

OPS = ("gemm", "attention", "gather_rows", "woven")
"""Packages with a module `programs`; `gemm` is hybrid_gemm, quantized_gemm and grouped_gemm."""


def programs(op: str, sm_count: int) -> tuple[Program, ...]:
    """Return the programs of one op for a GPU or slice of `sm_count` SMs.

    Raises:
      ValueError: not in `OPS`, or equal program names.
    """
    expect(op in OPS, "op", op, f"one of {', '.join(OPS)}")
    result: tuple[Program, ...] = import_module(f"pallas_kernels.{op}.programs").programs(sm_count)
    names = [program.name for program in result]
    twice = sorted({name for name in names if names.count(name) > 1})
    expect(not twice, f"programs of {op}", twice, "names that differ")
    return result
