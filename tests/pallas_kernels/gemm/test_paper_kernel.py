"""The kernel of pallas_kernels/README.md is what the core does, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gemm import Config, Gemm, plan_launch
from pallas_kernels.gemm.launch import launch
from pallas_kernels.mosaic import interpret_params
from pallas_kernels.numerics import check_gemm
from tests.pallas_kernels.interpreting import operands, within
from tests.tiers import tiered

SMS = 4
# the same tiles and rings; K passes of equal length
CONFIG = Config(tm=128, tn=128, x_stages=4, w_stages=8, stagger=False, sm_count=SMS)
SHAPES = (
    (136, 640, 320, 0.4),  # ragged rows and columns, two passes, a shorter second one
    (8, 576, 256, 0.0),
    (8, 576, 256, 1.0),
    (264, 1088, 384, 0.34),  # three passes
)


def readme_kernel(repository: Path) -> dict[str, Any]:
    text = (repository / "pallas_kernels/README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (code,) = [block for block in blocks if "def walk" in block]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize(("m", "k", "n", "alpha"), tiered(SHAPES, SHAPES[0]))
def test_same_bits(m: int, k: int, n: int, alpha: float, repository: Path) -> None:
    x, w, _ = operands(m, k, n)
    gemm = Gemm(m=m, k=k, n=n, out_dtype="float32")
    plan = plan_launch(gemm, CONFIG, alpha=alpha)
    core = within(
        lambda: np.asarray(
            launch(
                x, w, jnp.asarray(plan.scalars, jnp.int32), gemm=gemm, config=CONFIG,
                interpret=interpret_params(), columns=n,
            )
        )
    )  # fmt: skip
    kernel = readme_kernel(repository)["build"](m, n, k, sms=SMS, interpret=interpret_params())
    scalars = jnp.array([plan.sym_strips, plan.sym_clusters], jnp.int32)
    paper = within(lambda: np.asarray(jax.jit(kernel)(x, w, scalars)))
    np.testing.assert_array_equal(core.view(np.int32), paper.view(np.int32))
    assert check_gemm(paper, np.asarray(x), np.asarray(w)).worst_ratio <= 1
