"""Host arrays become operands of kernels: by type alone for a GPU, by a copy in interpret mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.arguments import operand
from pallas_kernels.gather_rows import gather_rows
from pallas_kernels.host_memory import HostArray, HostMemoryError, host_ref, to_host, weight_operand
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.pallas_kernels.interpreting import SMALL, operands, within

LAYERS, ROWS, COLUMNS = 3, 64, 128
W = np.random.default_rng(0).standard_normal((LAYERS, ROWS, COLUMNS)).astype(np.float32)


def layer_of(w: jax.Array, layer: jax.Array, *, interpret: Any = None) -> jax.Array:
    """Copy w[layer] to device memory by a kernel that reads w where it is."""

    def body(w_ref: Any, layer_ref: Any, out_ref: Any, tile: Any, ready: Any) -> None:
        source = w_ref.at[layer_ref[0], pl.ds(0, ROWS), pl.ds(0, COLUMNS)]
        plgpu.copy_gmem_to_smem(source, tile, ready)
        plgpu.barrier_wait(ready)
        plgpu.copy_smem_to_gmem(tile, out_ref)
        plgpu.wait_smem_to_gmem(0)

    options = {} if interpret is None else {"interpret": interpret}
    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((ROWS, COLUMNS), w.dtype),
        grid=(1,),
        grid_names=("cta",),
        scratch_types=[plgpu.SMEM((ROWS, COLUMNS), w.dtype), plgpu.Barrier()],
        **options,
    )
    return kernel(w, layer)


def lowered(f: Any, *args: Any) -> str:
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_without_ref_pallas_refuses_a_host_operand() -> None:
    w = to_host(W).data
    with pytest.raises(Exception, match=r"(?i)host"):
        lowered(layer_of, w, jnp.zeros(1, jnp.int32))


@pytest.mark.parametrize("scanned", [False, True])
def test_ref_reaches_the_kernel_without_a_copy(scanned: bool) -> None:
    def every_layer(w: jax.Array) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            return carry, layer_of(host_ref(w), layer[None])

        return lax.scan(step, None, jnp.arange(LAYERS, dtype=jnp.int32))[1]

    def one(w: jax.Array) -> jax.Array:
        return layer_of(host_ref(w), jnp.zeros(1, jnp.int32))

    text = lowered(every_layer if scanned else one, to_host(W).data)
    assert "mosaic_gpu" in text
    (parameter,) = [line for line in text.splitlines() if "@main(" in line]
    assert 'mhlo.memory_kind = "pinned_host"' in parameter
    assert "annotate_device_placement" not in text

    def copied(w: jax.Array) -> jax.Array:
        return layer_of(jax.device_put(w, jax.memory.Space.Device), jnp.zeros(1, jnp.int32))

    assert "annotate_device_placement" in lowered(copied, to_host(W).data)  # it can fail


@pytest.mark.parametrize("layer", range(LAYERS))
def test_interpreted_kernel_reads_a_host_array(layer: int) -> None:
    params = plgpu.InterpretGPUParams()
    w = to_host(W).operand("interpret")
    assert w.sharding.memory_kind == "device"
    run = jax.jit(lambda w, i: layer_of(w, i, interpret=params))
    out = within(lambda: np.asarray(run(w, jnp.full(1, layer, jnp.int32))))
    np.testing.assert_array_equal(out, W[layer])


def test_each_backend_gets_what_it_takes() -> None:
    w = to_host(W)
    assert weight_operand(w, backend="sm90") is w.data
    for backend in ("interpret", "reference"):
        moved = weight_operand(w, backend=backend)
        assert moved.sharding.memory_kind == "device"
        assert weight_operand(moved, backend=backend) is moved
    with pytest.raises(HostMemoryError, match="before the jit"):
        jax.jit(lambda w: weight_operand(w, backend="interpret"))(w)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
def test_on_a_cpu_the_bytes_are_shared(dtype: str) -> None:
    w = to_host(W.astype(np.dtype(jnp.dtype(dtype))))
    address = w.data.unsafe_buffer_pointer()
    for backend in ("interpret", "reference"):
        assert weight_operand(w, backend=backend).unsafe_buffer_pointer() == address
    assert w.to_device().unsafe_buffer_pointer() == address


def test_shared_bytes_survive_donation_and_deletion() -> None:
    w = to_host(W)
    changed = jax.jit(lambda a: a.at[0].set(5.0), donate_argnums=0)(w.to_device())
    assert float(changed[0, 0, 0]) == 5.0
    np.testing.assert_array_equal(w.numpy(), W)
    kept = w.to_device()
    w.data.delete()
    others = [to_host(np.full_like(W, 7.0)) for _ in range(20)]
    np.testing.assert_array_equal(np.asarray(kept), W)
    assert len(others) == 20


def test_four_bit_numbers_are_copied_whole() -> None:
    w = to_host(jnp.asarray(np.arange(-8, 8).repeat(4), jnp.int4))
    np.testing.assert_array_equal(np.asarray(w.to_device(), np.int8), np.arange(-8, 8).repeat(4))


def test_hybrid_gemm_takes_refs() -> None:
    x, stored, _ = operands(8, 128, 64)
    w = to_host(stored).ref()
    a = hybrid_gemm(x, w, 1.0, backend="reference")
    b = hybrid_gemm(x, stored, 1.0, backend="reference")
    np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
    c = within(lambda: hybrid_gemm(x, w, 1.0, config=SMALL, backend="interpret"))
    np.testing.assert_array_equal(np.asarray(c, np.float32), np.asarray(a, np.float32))


def _multiplied(w: Any) -> Any:
    return lambda x: hybrid_gemm(x, w, 1.0, backend="reference")


def _gathered(w: Any) -> Any:
    return lambda x: gather_rows(w, jnp.zeros(1, jnp.int32), backend="reference") + x[0, 0]


@pytest.mark.parametrize("raw", [True, False], ids=["an array in pinned memory", "a HostArray"])
@pytest.mark.parametrize("use", [_multiplied, _gathered])
def test_weights_that_a_jitted_function_closes_over_are_refused(use: Any, raw: bool) -> None:
    """They would be constants of its program, in device memory; as arguments they stay."""
    x, stored, _ = operands(8, 128, 64)
    held = to_host(stored)
    w = held.data if raw else held
    with pytest.raises(HostMemoryError, match=r"w \(128x64 bfloat16\).*pass it as an argument of"):
        jax.jit(use(w)).trace(x)
    assert use(w)(x).shape[1] == 64  # outside of jit it is no constant
    text = jax.jit(lambda x, w: use(w)(x)).trace(x, w).lower().as_text()
    assert 'mhlo.memory_kind = "pinned_host"' in text


@pytest.mark.parametrize("taken", [HostArray.ref, HostArray.to_device])
def test_operands_taken_within_jit_are_no_constants_either(taken: Any) -> None:
    w = to_host(W)
    with pytest.raises(HostMemoryError, match="pass it as an argument of the jitted function"):
        jax.jit(lambda: taken(w)).trace()
    assert jax.vmap(lambda _: taken(w).shape[0])(jnp.zeros(2)).shape == (2,)
    assert jax.eval_shape(taken, w).shape == W.shape


def test_the_kernel_takes_no_numpy_weights() -> None:
    """jax would copy them to device memory at each call; on a CPU nothing leaves host memory."""
    _, stored, _ = operands(8, 128, 64)
    with pytest.raises(ValueError, match=r"weights='a NumPy array': expected a HostArray"):
        operand(np.asarray(stored), "sm90")
    assert operand(np.asarray(stored), "reference").shape == stored.shape
