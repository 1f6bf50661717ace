"""The tests' interpreter gives what jax's gives, with copies as late as hardware may be."""

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

from pallas_kernels.attention import prefill_attention
from pallas_kernels.gemm import Quantised
from pallas_kernels.mosaic import interpret_params, plgpu
from tests.pallas_kernels import quick_interpreter
from tests.pallas_kernels.attention import cases as prefill
from tests.pallas_kernels.gemm.cases import CONVERTING, Case
from tests.pallas_kernels.interpreting import count_copies, reset, within


@contextlib.contextmanager
def jaxs_own() -> Iterator[None]:
    """Interpret as jax does."""
    with pytest.MonkeyPatch.context() as patch:
        for place, own in quick_interpreter.REPLACED.items():
            patch.setattr(*place, own)
        jax.clear_caches()  # a traced kernel has the calls of its interpreter in it
        yield
    jax.clear_caches()


def product() -> np.ndarray:
    weights = Quantised(kind="int4", group=128)
    case = Case(m=40, k=256, n=128, weights=weights, config=CONVERTING)
    x, w, _ = case.operands()
    x = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)  # the order counts
    return case.run(jnp.asarray(x), w, alpha=0.5)


def attention() -> np.ndarray:
    case = prefill.Case(queries=21, keys=136, heads=4, kv_heads=2, offsets=(60,), lengths=(81,))
    out = prefill_attention(*case.arrays, **case.options(), backend="interpret")
    return np.asarray(out)


@pytest.mark.parametrize("kernel", [product, attention])
def test_a_kernel_gives_the_same_as_with_jaxs_own_interpreter(
    kernel: Callable[[], np.ndarray],
) -> None:
    ours = within(kernel)
    with jaxs_own():
        theirs = within(kernel)
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
        of_first, out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32), scratch_types=scratch,
        grid=(1,), grid_names=("tile",), num_threads=2, thread_name="thread",
        interpret=interpret_params(),
    )  # fmt: skip
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
