"""A host array goes through jax as data and into kernels, and refuses to be computed with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.host_memory import HostArray, HostMemoryError, host_ref, in_host_memory, to_host

X = jnp.arange(16.0).reshape(4, 4)
N = np.ones((4, 4), np.float32)
W = to_host(np.arange(16, dtype=np.float32).reshape(4, 4) - 5)

MISUSE: dict[str, tuple[str, Callable[[], Any]]] = {
    "jax @ host": ("of jax", lambda: X @ W),
    "host @ jax": ("__matmul__", lambda: W @ X),
    "-host": ("__neg__", lambda: -W),
    "numpy @ host": ("numpy.matmul", lambda: N @ W),
    "np.asarray": ("NumPy array", lambda: np.asarray(W)),
    "jnp.add": ("of jax", lambda: jnp.add(X, W)),
    "jnp.matmul": ("of jax", lambda: jnp.matmul(X, W)),
    "jnp.sum": ("of jax", lambda: jnp.sum(W)),
    "jax.lax.dot": ("on HostArray", lambda: jax.lax.dot(X, W)),
    "inside jit": ("of jax", lambda: jax.jit(lambda x, w: x @ w)(X, W)),
    "index": ("__getitem__", lambda: W[0]),
    "compare": ("__eq__", lambda: W == X),
    "truth": ("__bool__", lambda: bool(W)),
    "method": (".sum", lambda: W.sum(axis=0)),
    "at": (".at", lambda: W.at[0].set(1)),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_names_operation_array_and_remedy(case: str) -> None:
    named, use = MISUSE[case]
    with pytest.raises(HostMemoryError) as caught:
        use()
    text = str(caught.value)
    assert named in text
    assert "4x4 float32" in text
    assert ".ref()" in text
    assert ".to_device()" in text


def test_a_bare_primitive_refuses_it_by_name() -> None:
    # jax looks at the type alone here and asks nothing of the object
    with pytest.raises(TypeError, match="HostArray"):
        jax.lax.add(X, W)


def test_unknown_attributes_are_plain_and_hasattr_works() -> None:
    assert not hasattr(W, "T")
    assert not hasattr(W, "no_such_thing")
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = W.no_such_thing


def test_says_what_it_is() -> None:
    assert (W.shape, W.ndim, W.size, W.nbytes, len(W)) == ((4, 4), 2, 16, 64, 4)
    assert W.dtype == np.float32
    assert W.memory_kind == "pinned_host"
    assert repr(W) == "HostArray(4x4 float32, pinned_host, 64 bytes)"
    assert repr(jax.eval_shape(lambda w: w, W)).startswith("HostArray(ShapeDtypeStruct")


def test_goes_through_jit_scan_and_tree_functions_as_data() -> None:
    passed = jax.jit(lambda w: w)(W)
    assert isinstance(passed, HostArray)
    np.testing.assert_array_equal(passed.numpy(), W.numpy())
    assert isinstance(copy.copy(W), HostArray)
    assert len(jax.tree.leaves({"w": W})) == 1
    doubled = jax.jit(lambda w: w.to_device() * 2, out_shardings=X.sharding)(W)
    np.testing.assert_array_equal(doubled, 2 * W.numpy())


def test_to_device_copies_and_numpy_reads() -> None:
    moved = W.to_device()
    assert moved.sharding.memory_kind == "device"
    np.testing.assert_array_equal(moved, W.numpy())
    with pytest.raises(HostMemoryError, match="inside jit"):
        jax.jit(lambda w: w.numpy())(W)


def test_ref_is_the_array_itself_outside_jit_and_retyped_inside() -> None:
    assert W.ref() is W.data
    seen = []

    @jax.jit
    def product(x: jax.Array, w: HostArray) -> jax.Array:
        seen.append((in_host_memory(w.data), in_host_memory(w.ref())))
        return x @ w.ref()  # on a CPU the numbers are right

    np.testing.assert_array_equal(product(X, W), X @ W.to_device())
    assert seen == [(True, False)]


def test_host_ref_leaves_device_arrays_alone() -> None:
    assert host_ref(X) is X
    assert "host_ref" not in str(jax.make_jaxpr(host_ref)(X))
    assert "host_ref" in str(jax.make_jaxpr(host_ref)(W.data))


def test_a_new_host_array_does_not_compile_anew() -> None:
    traced = []

    @jax.jit
    def f(w: HostArray) -> jax.Array:
        traced.append(1)
        return w.ref()[0] * 1.0

    f(W)
    f(to_host(np.zeros((4, 4), np.float32)))
    assert len(traced) == 1
