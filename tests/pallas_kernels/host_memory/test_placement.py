"""Trees go to host memory leaf by leaf, and the report says where everything is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.host_memory import HostArray, HostMemoryError, placement_report, to_host
from pallas_kernels.hybrid_gemm import pack_weights

TREE = {"layers": [{"w": np.ones((8, 4), np.float32), "b": jnp.ones(4)}], "norm": jnp.ones(8)}


def test_every_leaf_goes_to_host_memory_with_its_values() -> None:
    placed = to_host(TREE)
    assert jax.tree.structure(placed, is_leaf=lambda a: isinstance(a, HostArray)) == (
        jax.tree.structure(TREE)
    )
    w = placed["layers"][0]["w"]
    assert isinstance(w, HostArray)
    assert w.memory_kind == "pinned_host"
    np.testing.assert_array_equal(w.numpy(), TREE["layers"][0]["w"])


def test_where_chooses_leaves_by_path() -> None:
    placed = to_host(TREE, where=lambda path, leaf: path == "layers/0/w" and leaf.ndim == 2)
    assert isinstance(placed["layers"][0]["w"], HostArray)
    assert placed["layers"][0]["b"] is TREE["layers"][0]["b"]
    assert placed["norm"] is TREE["norm"]


def test_twice_is_once_and_a_single_array_will_do() -> None:
    once = to_host(np.ones(3, np.float32))
    assert isinstance(to_host(once), HostArray)
    assert not isinstance(to_host(once).data, HostArray)


def test_packed_weights_are_a_tree() -> None:
    packed = to_host(pack_weights(jnp.ones((65, 64), jnp.bfloat16)))
    assert isinstance(packed.data, HostArray)
    assert packed.data.shape == (128, 64)
    assert packed.k == 65


@pytest.mark.parametrize(
    ("leaf", "says"),
    [
        (3.0, "type float"),
        ("text", "type str"),
        (np.ones(2, np.float64), "float64"),
        (np.ones(2, np.int64), "int64"),
    ],
)
def test_what_cannot_be_placed_is_named(leaf: object, says: str) -> None:
    with pytest.raises(HostMemoryError, match=f"a/0.*{says}"):
        to_host({"a": [leaf]})


def test_traced_and_deleted_arrays_are_refused() -> None:
    with pytest.raises(HostMemoryError, match="outside jit"):
        jax.jit(to_host)(jnp.ones(2))
    gone = jnp.ones(2)
    gone.delete()
    with pytest.raises(HostMemoryError, match="deleted"):
        to_host(gone)


def test_report_tells_kinds_bytes_and_shared_buffers() -> None:
    table = jnp.ones((16, 2), jnp.bfloat16)
    gone = jnp.ones(2)
    gone.delete()
    tree = {
        "a": to_host(np.ones((8, 4), np.float32)), "embed": table, "gone": gone, "head": table,
        "n": np.ones(3),
    }  # fmt: skip
    report = placement_report(tree)
    assert [leaf.path for leaf in report.leaves] == ["a", "embed", "gone", "head", "n"]
    kinds = {leaf.path: leaf.memory_kind for leaf in report.leaves}
    assert kinds == {
        "a": "pinned_host", "embed": "device", "gone": "deleted", "head": "device", "n": "numpy",
    }  # fmt: skip
    assert report.leaves[3].same_as == "embed"
    assert report.bytes_by_kind == {"deleted": 0, "device": 64, "numpy": 24, "pinned_host": 128}
    text = str(report)
    assert "float32[8,4]" in text
    assert "as embed" in text
    assert "device 64 B" in text.splitlines()[-1]
    assert len(text.splitlines()) == 1 + 5 + 1


def test_report_of_one_array_and_of_none() -> None:
    assert "(the array)" in str(placement_report(jnp.ones(2)))
    assert str(placement_report({})).endswith("no arrays")
    same = jnp.ones(2)
    assert placement_report([same, same, jnp.zeros(2)]).bytes_by_kind == {"device": 16}
    with pytest.raises(HostMemoryError, match="type int"):
        placement_report({"a": 1})
