"""Weights kept as a share of every matrix: a step's seconds and bytes, against whole layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from c2c.cost import step_table
from c2c.errors import SettingError
from c2c.models import gemms, load_spec
from c2c.policies import ByShare, Fixed, Static, WhileRoom
from c2c.serving import Prepared, prepare
from c2c.serving.costs import step_alone_s, step_bytes
from tests.simulator.worlds import requests, setup, simulate

MODEL = "llama-3-8b"
TOKENS = (1, 64, 256, 512)


def world(keep: Any, **changes: Any) -> Any:
    common = {"chunk": Fixed(512), "alpha": Static(1.0), "check_slo": False}
    return setup(MODEL, keep=keep, **(common | changes))


@pytest.fixture(scope="module")
def spread() -> Prepared:
    return prepare(world(ByShare()))


@pytest.fixture(scope="module")
def whole() -> Prepared:
    return prepare(world(WhileRoom()))


def plan(tokens: int, kept: int) -> Any:
    """A step of a prompt's tokens, none of whose rows needs logits."""
    fields = dict.fromkeys(
        ("decodes", "prefills", "pairs", "prefill_kv", "decode_kv", "growth", "rows"), 0
    )
    return SimpleNamespace(prefill=tokens, kept=kept, copied=0, **fields)


def alone_s(prepared: Prepared, tokens: int, kept: int, variant: int) -> float:
    """Seconds of a step's GEMMs: what nothing kept takes more, taken off the table's body."""
    costs, layers = prepared.fleet.costs, int(prepared.fleet.layers[0])
    rest = step_alone_s(costs, 0, plan(tokens, 0), layers, variant)
    seconds = step_alone_s(costs, 0, plan(tokens, kept), layers, variant)
    return float(costs.body_s[0, tokens, variant] + seconds - rest)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("variant", [0, 16])
def test_between_the_tables_shares_it_is_a_little_above_the_exact_time(
    spread: Prepared, tokens: int, variant: int
) -> None:
    table = spread.tables[0][0]
    layers = int(spread.fleet.layers[0])
    for kept in range(1, layers, 5):
        exact = step_table(
            load_spec(MODEL),
            spread.slice_kinds[0],
            spread.setup.constants,
            spread.link_capacity_gbps,
            max_tokens=tokens,
            max_rows=1,
            alphas=table.alphas[[variant]],
            resident=kept / layers,
        ).body_s[tokens, 0]
        assert exact * (1 - 1e-9) <= alone_s(spread, tokens, kept, variant) <= 1.04 * exact


def test_hbm_and_link_are_drawn_on_together(spread: Prepared, whole: Prepared) -> None:
    layers = int(spread.fleet.layers[0])
    half = layers // 2
    streamed = alone_s(spread, 1, 0, 0)
    # layers one after another: half at the link's speed, half at HBM's
    assert alone_s(whole, 1, half, 0) > 0.8 * streamed
    # together: the link has half the bytes
    assert alone_s(spread, 1, half, 0) == pytest.approx(streamed / 2, rel=0.03)
    # all of it is read by the library's kernels in either way
    assert alone_s(spread, 1, layers, 0) == alone_s(whole, 1, layers, 0)


@pytest.mark.parametrize("tokens", TOKENS)
def test_bytes_are_those_of_as_many_layers(spread: Prepared, whole: Prepared, tokens: int) -> None:
    layers = int(spread.fleet.layers[0])
    for kept in (0, 7, layers):
        ours, theirs = (
            step_bytes(p.fleet.costs, 0, plan(tokens, kept), layers, 0) for p in (spread, whole)
        )
        assert ours == theirs
        matrices = sum(2 * g.k * g.n * g.count for g in gemms(load_spec(MODEL)) if g.kind != "head")
        assert ours[0] == pytest.approx(matrices * (1 - kept / layers))


def test_served_faster_with_as_much_hbm() -> None:
    # room for half of the layers
    room = {"mig": "7x12gb", "hbm_reserve_bytes": 1e9}
    block = requests(np.arange(4) * 0.5, prompt=64, output=40)
    runs = [
        simulate(world(keep(spare_bytes=4e9), **room), block)[0] for keep in (ByShare, WhileRoom)
    ]
    spent = [run.finished_s - run.first_token_s for run in runs]
    assert (spent[0] < 0.9 * spent[1]).all()
    assert (runs[0].link_bytes > 0).all()


def test_wrong_spare_is_refused() -> None:
    with pytest.raises(SettingError, match=r"keep.spare_bytes=-1"):
        ByShare(spare_bytes=-1.0).check("keep")
