"""Columns of projections in device memory: chosen for a budget, filled, read from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import from_hf_config
from c2c.transformer import (
    Hybrid,
    Params,
    Quantization,
    best_columns,
    keep_resident,
    random_params,
)
from c2c.transformer.generate import prompt_logits
from pallas_kernels.gemm import MACHINES, Resident
from tests.pallas_kernels.interpreting import within
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of

GH200 = MACHINES["NVIDIA GH200 480GB"]
SPEC = from_hf_config(config_of("qwen3"), "small")
HYBRID = Hybrid(backend="reference")


def params_of(quantization: Quantization | None = None) -> Params:
    return random_params(
        SPEC,
        np.random.default_rng(0),
        dtype="bfloat16",
        placement=HYBRID.placement,
        quantization=quantization,
    )


def bytes_of(params: Params) -> dict[str, int]:
    return {
        name: sum(leaf.nbytes for leaf in jax.tree.leaves(w.data))
        for name, w in params.projections.items()
    }


def test_shares_are_within_the_budget_and_worth_it() -> None:
    params = params_of()
    sizes = bytes_of(params)
    none = best_columns(params, 0.0, machine=GH200)
    assert set(none) == set(sizes)
    assert all(share.nbytes == 0 for share in none.values())
    budget = 0.6 * sum(sizes.values())
    some = best_columns(params, budget, machine=GH200)
    assert 0 <= sum(share.nbytes for share in some.values()) <= budget
    before, after = (sum(s.time_s for s in found.values()) for found in (none, some))
    assert after <= before
    with pytest.raises(SettingError, match=r"resident\.budget_bytes"):
        best_columns(params, -1.0, machine=GH200)


@pytest.mark.slow
@pytest.mark.parametrize("kind", tiered([None, "int8"], "int8"))
def test_caches_hold_the_first_columns_of_every_layer(kind: Any) -> None:
    params = params_of(None if kind is None else Quantization(kind=kind))
    shares = best_columns(params, 0.0, machine=GH200)
    shares = {
        name: replace(share, columns=64) for name, share in shares.items() if name != "gate_up"
    }
    linear = keep_resident(HYBRID, params, shares)
    assert set(linear.resident) == set(shares)
    for name, kept in linear.resident.items():
        stored = params.projections[name].data.numpy()
        matrices = stored if stored.ndim == 3 else stored[None]
        expected = np.concatenate([matrix[:64] for matrix in matrices])
        np.testing.assert_array_equal(np.asarray(kept.cache), expected)
    # nothing else changes
    logits = [prompt_logits(params, [3, 1, 4, 1, 5], SPEC, one) for one in (HYBRID, linear)]
    np.testing.assert_array_equal(*logits)


def test_a_layer_reads_its_own_columns_of_the_cache() -> None:
    params = params_of()
    shares = {"o": replace(best_columns(params, 0.0, machine=GH200)["o"], columns=64)}
    kept = keep_resident(HYBRID, params, shares).resident["o"]
    w = params.projections["o"]
    stored = w.data.numpy().copy()
    x = jnp.asarray(np.random.default_rng(1).integers(-2, 3, (3, w.k)), jnp.bfloat16)
    layer = 1
    exact = np.asarray(x, np.float64) @ stored[layer, : w.n, : w.k].astype(np.float64).T
    stored[:, :64] = np.nan  # whoever reads them from the host sees it
    projections = {"o": replace(w, data=jnp.asarray(stored))}
    linear = Hybrid(backend="interpret", cluster=1, resident={"o": kept})

    def run(resident: Resident) -> np.ndarray:
        chosen = replace(linear, resident={"o": resident})
        return np.asarray(chosen(projections, "o", layer, x, out_dtype=jnp.float32))

    out = within(lambda: run(kept))
    np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-3)
    # the share of a layer is a run-time value
    less = within(lambda: run(replace(kept, columns=kept.columns.at[layer].set(0))))
    assert np.isnan(less[:, :64]).all()
