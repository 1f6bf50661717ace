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
from jax.experimental import pallas as pl

from pallas_kernels.gemm import Quantised
from pallas_kernels.mosaic import interpret_params, plgpu
from tests.pallas_kernels import quick_interpreter
from tests.pallas_kernels.gemm.cases import CONVERTING, Case
from tests.pallas_kernels.interpreting import count_copies, reset, within

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
        jax.clear_caches()  # a traced kernel has the calls of its interpreter in it
        yield
    jax.clear_caches()


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


def run_of_one_cta(body: Callable[..., None], scratch: list[Any], *arrays: np.ndarray) -> Any:
    """Run a kernel whose first of two threads works; its output is 64 x 64.

    Jax compiles a kernel of one thread, and orders no wait for products there.
    """

    def of_first(*refs: Any) -> None:
        pl.when(lax.axis_index("thread") == 0)(lambda: body(*refs))

    kernel = plgpu.kernel(
        of_first,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=scratch,
        grid=(1,),
        grid_names=("tile",),
        num_threads=2,
        thread_name="thread",
        interpret=interpret_params(),
    )
    reset()
    return np.asarray(kernel(*map(jnp.asarray, arrays)))


@pytest.mark.parametrize("waits", [True, False])
def test_a_product_takes_what_its_tiles_hold_when_it_is_waited_for(waits: bool) -> None:
    def body(o: Any, a: Any, b: Any) -> None:
        a[...] = b[...] = jnp.ones((64, 64), jnp.bfloat16)
        plgpu.commit_smem()

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, a, b)
            if waits:
                plgpu.wgmma_wait(0)
            a[...] = jnp.zeros((64, 64), jnp.bfloat16)
            return acc[...]

        o[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    out = run_of_one_cta(body, [plgpu.SMEM((64, 64), jnp.bfloat16)] * 2)
    np.testing.assert_array_equal(out, 64.0 if waits else 0.0)


@pytest.mark.parametrize("waits", [True, False])
def test_a_store_takes_what_its_slot_holds_when_its_read_is_waited_for(waits: bool) -> None:
    def body(o: Any, slot: Any) -> None:
        slot[...] = jnp.ones((64, 64), jnp.float32)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(slot, o)
        if waits:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        slot[...] = jnp.zeros((64, 64), jnp.float32)
        plgpu.wait_smem_to_gmem(0)

    out = run_of_one_cta(body, [plgpu.SMEM((64, 64), jnp.float32)])
    np.testing.assert_array_equal(out, 1.0 if waits else 0.0)


def test_a_thread_does_not_end_before_its_stores_have_read() -> None:
    def body(o: Any, slot: Any) -> None:
        slot[...] = jnp.ones((64, 64), jnp.float32)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(slot, o)

    with pytest.raises(Exception, match="a store reads shared memory"):
        run_of_one_cta(body, [plgpu.SMEM((64, 64), jnp.float32)])
    reset()


def test_members_of_a_union_have_the_same_bytes() -> None:
    def body(o: Any, union: Any) -> None:
        whole, half = union
        whole[...] = jnp.ones((64, 64), jnp.float32)
        half[...] = jnp.zeros((32, 64), jnp.float32)
        o[...] = whole[...]

    members = [plgpu.SMEM((rows, 64), jnp.float32) for rows in (64, 32)]
    out = run_of_one_cta(body, [plgpu.RefUnion(*members)])
    np.testing.assert_array_equal(out[:32], 0.0)
    np.testing.assert_array_equal(out[32:], 1.0)


@pytest.mark.parametrize("waits", [True, False])
def test_a_multicast_tile_is_loaded_once_and_arrives_everywhere(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CTA that does not wait for its peers' barrier would lack their share."""

    def body(x: Any, o: Any, tile: Any, arrived: Any) -> None:
        rank = lax.axis_index("rank")
        plgpu.copy_gmem_to_smem(x, tile, arrived, collective_axes="rank")
        if waits:
            plgpu.barrier_wait(arrived)
        o[rank] = tile[...]
        if not waits:
            plgpu.barrier_wait(arrived)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, 64, 64), jnp.float32),
        scratch_types=[plgpu.SMEM((64, 64), jnp.float32), plgpu.Barrier(num_arrivals=1)],
        grid=(1,),
        grid_names=("tile",),
        cluster=(2,),
        cluster_names=("rank",),
        interpret=interpret_params(),
    )
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    copies = count_copies(monkeypatch)
    reset()
    out = within(lambda: np.asarray(kernel(jnp.asarray(x))))
    assert sum(load.nbytes for load in copies.loads) == x.nbytes
    if waits:
        np.testing.assert_array_equal(out, [x, x])
    else:
        assert np.isnan(out).any()
