"""The tests' interpreter does what jax does: its operations, its control flow, a whole kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_kernels.gemm import Quantised
from pallas_kernels.mosaic import interpret_params, plgpu
from tests.pallas_kernels import quick_interpreter
from tests.pallas_kernels.ahead_of_time import split_k
from tests.pallas_kernels.gemm.cases import CONVERTING, Case
from tests.pallas_kernels.interpreting import reset

EDGES = np.array([-(2**31), -(2**31) + 1, -70000, -9, -1, 0, 1, 2, 7, 33000, 2**31 - 1], np.int32)
A, B = (side.ravel() for side in np.meshgrid(EDGES, EDGES))
BYTES = np.arange(-128, 128).astype(np.int8)
# no denormal ones, which XLA takes for zero on a CPU (a GPU does not)
FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.5, 1 / 3, 65504.0, 65520.0, 3.4e38, np.inf, -np.inf, np.nan], np.float32
)
F, G = (side.ravel() for side in np.meshgrid(FLOATS, FLOATS))

# Functions of arrays; each is tried on the whole arrays and on their numbers one by one.
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "integers": (lambda a, b: (a + b, a - b, a * b, a & b, a | b, a ^ b), (A, B)),
    "quotients": (lambda a, b: (lax.div(a, b), lax.rem(a, b)), (A[B != 0], B[B != 0])),
    "by zero": (lambda a, b: (lax.div(a, b), lax.rem(a, b)), (EDGES, np.zeros_like(EDGES))),
    "comparisons": (lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b), (A, B)),
    "extremes": (lambda a, b: (jnp.maximum(a, b), jnp.minimum(a, b), jnp.sign(a)), (A, B)),
    "limits": (lambda a, b: lax.clamp(jnp.full_like(a, -7), a, jnp.maximum(b, 3)), (A, B)),
    "choices": (lambda a, b: jnp.where(a < b, a, b), (A, B)),
    "floats": (lambda f, g: (f + g, f - g, f * g, f < g, f == g, jnp.maximum(f, g)), (F, G)),
    "to integers": (lambda f: f.astype(jnp.int32), (FLOATS,)),
    "to halves": (lambda f: (f.astype(jnp.bfloat16), f.astype(jnp.float16)), (FLOATS,)),
    "of integers": (lambda a: (a.astype(jnp.bfloat16), a.astype(jnp.float32), a != 0), (EDGES,)),
    "of bytes": (
        lambda b: (b.astype(jnp.bfloat16), b.astype(jnp.float16), b.astype(jnp.int32)),
        (BYTES,),
    ),
    "of NumPy's kind no more": (lambda b: (jnp.abs(b), b << 3, ~b, jnp.exp2(b * 1.0)), (BYTES,)),
}


def carried_out(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    program = jax.make_jaxpr(function)(*arguments)
    with np.errstate(all="ignore"):
        found = quick_interpreter._closed(program, [np.asarray(one)[()] for one in arguments])
    return [np.asarray(one) for one in found]


def equal(function: Callable[..., Any], *arguments: Any) -> None:
    right = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(carried_out(function, *arguments), right, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        a, b = (np.asarray(one).astype(np.float64) for one in (ours, theirs))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_jaxs(name: str) -> None:
    function, arguments = OPERATIONS[name]
    equal(function, *arguments)
    for number in range(0, arguments[0].size, 7):
        equal(function, *(argument[number] for argument in arguments))


SQUARE = np.arange(12, dtype=np.int32).reshape(3, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: lax.dynamic_slice(x, (i, 3 - i), (2, 2)),  # clamped
        lambda x, i: lax.dynamic_slice(x, (-i, i + 9), (1, 2)),
        lambda x, i: x[0:3:2, 1:] + i,
        lambda x, i: jnp.broadcast_to(x[:, 1], (2, 3)) + lax.broadcast_in_dim(i, (2, 3), ()),
        lambda x, i: lax.broadcast_in_dim(x[:, :1], (3, 1, 4), (0, 2)) * i,
        lambda x, i: lax.switch(i - 1, [lambda y: y + 1, lambda y: y * 2, lambda y: -y], x),
        lambda x, i: lax.fori_loop(0, 5, lambda at, y: y * at + i, x),
        lambda x, i: lax.fori_loop(i, i + 3, lambda at, y: y + at, x),
        lambda x, i: lax.while_loop(lambda y: (y < 40).any(), lambda y: y + i + 1, x),
        lambda x, i: lax.scan(lambda c, row: (c + row, c * row), x[0] * i, x),
        lambda x, i: lax.scan(lambda c, row: (c - row, (c, row[0])), x[0] + i, x, reverse=True),
        lambda x, i: lax.scan(lambda c, row: (c, row), i, x[:0]),
        lambda x, i: jax.jit(lambda y: y.T @ y + i)(x),
    ],
)
def test_slices_and_control_flow_are_jaxs(function: Callable[..., Any]) -> None:
    for index in (0, 1, 2, 5):
        equal(function, SQUARE, np.int32(index))


@contextlib.contextmanager
def jaxs_own() -> Iterator[None]:
    """Interpret as jax does."""
    with pytest.MonkeyPatch.context() as patch:
        for place, own in quick_interpreter.REPLACED.items():
            patch.setattr(*place, own)
        yield


def test_a_kernel_gives_the_same_as_with_jaxs_own_interpreter() -> None:
    weights = Quantised(kind="int4", group=128)
    case = Case(m=40, k=256, n=128, weights=weights, config=CONVERTING)
    rng = np.random.default_rng(0)
    x, w, _ = case.operands()
    x = jnp.asarray(rng.standard_normal(x.shape), x.dtype)  # so that the order of additions counts
    ours = case.run(x, w, alpha=0.5)
    with jaxs_own():
        theirs = case.run(x, w, alpha=0.5)
    np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.mark.parametrize("waits", [True, False])
def test_a_tile_that_nobody_waits_for_is_never_there(waits: bool) -> None:
    tiles = 6

    def body(x: Any, o: Any, slots: Any, loaded: Any) -> None:
        for number in range(tiles):
            plgpu.copy_gmem_to_smem(x.at[number], slots.at[number], loaded.at[number])
        for number in range(tiles):
            if waits:
                plgpu.barrier_wait(loaded.at[number])
            o[number] = slots[number]
        if not waits:
            for number in range(tiles):  # a barrier has to be waited for at some time
                plgpu.barrier_wait(loaded.at[number])

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((tiles, 8, 128), jnp.float32),
        scratch_types=[
            plgpu.SMEM((tiles, 8, 128), jnp.float32),
            plgpu.Barrier(num_arrivals=1, num_barriers=tiles),
        ],
        grid=(1,),
        grid_names=("tile",),
        interpret=interpret_params(),
    )
    x = np.arange(tiles * 8 * 128, dtype=np.float32).reshape(tiles, 8, 128)
    late = np.isnan(np.asarray(kernel(x))).all((1, 2))
    assert late.tolist() == [not waits and number in (1, 2, 4) for number in range(tiles)]


def test_jaxs_interpreter_lacks_stores_to_another_ctas_memory() -> None:
    """When this fails, split K over a cluster can be tried on a CPU (pallas_kernels/README.md)."""
    x, w = jnp.ones((split_k.TM, split_k.K), "bfloat16"), jnp.ones((split_k.K, 128), "bfloat16")
    with pytest.raises(TypeError, match="ref must be a reference"):
        split_k.product(2, 128, interpret_params())(x, w)
    reset()
