"""A layer as a value of its own, and blocks of a pool that hold some of a model's layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.transformer.layers.layer import Layer, layer_of, place_in
from c2c.transformer.layers.layout import feed_forward_places
from c2c.transformer.layers.linear import Reference
from c2c.transformer.layers.pages import PAGE_TOKENS, OutOfPages
from c2c.transformer.running.kv_pool import KvPool, block_elements


@pytest.mark.parametrize("family", ["llama_biased", "qwen3", "mixed"])
def test_a_layer_apart_has_the_weights_of_its_place(made: Any, family: str) -> None:
    model, _, _ = made(family)
    spec, params, linear = model.spec, model.params, model.linear
    for number, (sparse, place) in enumerate(feed_forward_places(spec)):
        apart = layer_of(params, spec, number, linear)
        whole = Layer(
            small=params.layers, projections=params.projections, linear=linear, at=number,
            which=number, place=place if spec.dense_layers else None,
        )  # fmt: skip
        for name in apart.small:
            np.testing.assert_array_equal(apart.weight(name), whole.weight(name))
        assert ("router" in apart.small) == sparse
        assert ("gate_up" in apart.projections) != sparse
        x = jnp.asarray(np.random.default_rng(number).normal(size=(3, spec.hidden)), params.dtype)
        names = ("qkv",) if sparse else ("qkv", "gate_up")
        for name in names:
            np.testing.assert_array_equal(apart.project(name, x), whole.project(name, x))
        for name in set(apart.projections) & {"experts_gate_up", "experts_down"}:
            stack = params.projections[name]
            one, another = apart.projections[name], stack[place_in(name, number, place)]
            np.testing.assert_array_equal(one, another)
        assert len(jax.tree.leaves(apart)) <= len(jax.tree.leaves(whole))
    for number in (-1, spec.layers):
        with pytest.raises(SettingError, match="layer"):
            layer_of(params, spec, number, linear)
    with pytest.raises(SettingError, match="linear"):
        layer_of(params, spec, 0, Reference(by_layer=False))


@given(data=st.data())
def test_blocks_of_some_layers_hold_pages_that_no_other_block_holds(made: Any, data: Any) -> None:
    spec = made("llama")[0].spec
    pool = KvPool(3, 2 * block_elements(spec), dtype=np.float32)
    page = PAGE_TOKENS * spec.kv_heads * spec.head_dim
    divisors = [each for each in range(1, spec.layers + 1) if spec.layers % each == 0]
    sizes = data.draw(st.lists(st.sampled_from(divisors), min_size=1, max_size=3))
    leases = [(size, pool.lease(spec, block_layers=size)) for size in sizes]
    held: list[tuple[int, int]] = []  # of which lease, and the first page
    for _ in range(data.draw(st.integers(1, 12))):
        which = data.draw(st.integers(0, len(leases) - 1))
        _, lease = leases[which]
        if held and data.draw(st.booleans()):
            owner, first = held.pop(data.draw(st.integers(0, len(held) - 1)))
            leases[owner][1].give([first])
            continue
        count = data.draw(st.integers(1, 5))
        if count > lease.available:
            with pytest.raises(OutOfPages):
                lease.take(count, "sequence")
            continue
        held += [(which, first) for first in lease.take(count, "sequence")]
        pages = [each for owner, first in held for each in range(first, first + leases[owner][0])]
        assert len(set(pages)) == len(pages)
        assert max(pages) < 3 * pool.superblock // page
    for which, (_, lease) in enumerate(leases):
        assert lease.held == sum(owner == which for owner, _ in held)
    for owner, first in held:
        leases[owner][1].give([first])
    assert len(pool.free) == 3


@pytest.mark.parametrize("block_layers", [0, -1, 1000])
def test_layers_that_do_not_divide_into_blocks_are_refused(made: Any, block_layers: int) -> None:
    spec = made("llama")[0].spec
    pool = KvPool.for_one(spec, 1, dtype=np.float32)
    with pytest.raises(SettingError, match="block_layers"):
        pool.lease(spec, block_layers=block_layers)
