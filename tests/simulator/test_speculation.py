"""Speculative decoding in the mean: `c2c.cost.speculated`, `system.speculation`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost import chunk_places, step_time, tokens_a_pass
from c2c.errors import SettingError
from c2c.models import kv_bytes_per_token, load_spec, weight_bytes
from c2c.policies import KvPressure, Resident, RoundRobin
from c2c.serving import prepare
from c2c.serving.tables.costs import step_alone_s, step_bytes
from c2c.serving.tables.state import PLAN_DTYPE
from tests.simulator.worlds import random_requests, requests, setup, simulate, with_settings

MODEL, DRAFT = "llama-3-8b", "llama-3-3b"
RESIDENT: dict[str, Any] = {
    "mig": "1x96gb", "load": Resident(start_s=0.1), "starts_active": True, "check_slo": False,
}  # fmt: skip


def drafted(tokens: int, acceptance: float = 0.7, by: str = DRAFT, **system: Any) -> Any:
    """Return settings under which the model speculates."""
    drafts = {MODEL: by} if tokens else {}
    return setup(
        MODEL, speculation__tokens=tokens, speculation__acceptance=acceptance,
        speculation__drafts=drafts, **RESIDENT | system,
    )  # fmt: skip


@settings(deadline=None)
@given(tokens=st.integers(0, 16), acceptance=st.floats(0.0, 1.0), seed=st.integers(0, 2**31))
def test_a_pass_yields_as_many_tokens_as_are_drawn(
    tokens: int, acceptance: float, seed: int
) -> None:
    accepted = np.random.default_rng(seed).random((20_000, tokens)) < acceptance
    drawn = 1 + np.cumprod(accepted, axis=1).sum(axis=1)
    error = 5 * drawn.std() / np.sqrt(len(drawn)) + 1e-9
    assert abs(tokens_a_pass(tokens, acceptance) - drawn.mean()) <= error + 1e-3


@pytest.mark.parametrize("load", ["stream", "resident"])
@pytest.mark.parametrize("by", [DRAFT, "lookup"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_pass_by_its_parts(load: str, by: str, data: st.DataObject) -> None:
    """A step is 1/E of a pass of the model and of the drafts' steps, from tables of each alone."""
    draw = data.draw
    tokens, acceptance = draw(st.integers(1, 6)), draw(st.floats(0.0, 1.0))
    n, cached = draw(st.integers(1, 32)), draw(st.integers(0, 100_000))
    system = {"mig": "7x12gb"} if load == "stream" else RESIDENT
    more: dict[str, Any] = {} if load == "resident" else {"load": setup().system.load}
    made = prepare(drafted(tokens, acceptance, by, **system | more, max_batch=32))
    plain = prepare(setup(MODEL, **RESIDENT | system | more, max_batch=32 * (1 + tokens)))
    draft = prepare(setup(DRAFT, **RESIDENT | {"mig": system["mig"]}, max_batch=32))
    rows = n * (1 + tokens)
    whole = step_time(plain.tables[0][0], decode_seqs=rows, decode_kv_tokens=cached, head_rows=rows)
    calls = plain.tables[0][0].decode_attention_s  # one of a sequence, however many tokens
    pass_s = whole.alone_s - calls[rows] + calls[n]
    bytes_, steps = whole.hbm_bytes, 0.0 if by == "lookup" else float(tokens)
    if steps:
        one = step_time(draft.tables[0][0], decode_seqs=n, decode_kv_tokens=cached, head_rows=n)
        pass_s += steps * one.alone_s
    share = 1.0 / tokens_a_pass(tokens, acceptance)
    got = step_time(made.tables[0][0], decode_seqs=n, decode_kv_tokens=cached, head_rows=n)
    assert got.alone_s == pytest.approx(share * pass_s, rel=1e-9)
    assert got.link_bytes == pytest.approx(share * whole.link_bytes, rel=1e-9)
    kv = cached * kv_bytes_per_token(load_spec(DRAFT)) + float(weight_bytes(load_spec(DRAFT)))
    assert got.hbm_bytes == pytest.approx(share * (bytes_ + steps * kv), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_loop_and_the_closed_form_are_equal(data: st.DataObject) -> None:
    draw = data.draw
    tokens = draw(st.integers(0, 6))
    by = draw(st.sampled_from([DRAFT, "lookup"]))
    made = prepare(drafted(tokens, draw(st.floats(0.0, 1.0)), by))
    table, costs = made.tables[0][0], made.fleet.costs
    plan = np.zeros(1, PLAN_DTYPE).view(np.recarray)[0]
    plan.prefill, plan.decodes = draw(st.integers(0, 512)), draw(st.integers(0, 32))
    plan.prefills = int(plan.prefill > 0)
    plan.rows, seen = plan.decodes + draw(st.integers(0, plan.prefills)), draw(st.integers(0, 999))
    cached = draw(st.integers(0, 50_000)) if plan.decodes else 0
    places = table.token_places
    plan.decode_kv = places * cached
    if plan.prefill:
        plan.prefill_kv = chunk_places(seen, plan.prefill, table.reads)
        plan.pairs = places * sum(range(seen + 1, seen + plan.prefill + 1))
    cost = step_time(
        table, prefill_tokens=int(plan.prefill), context_tokens=seen,
        decode_seqs=int(plan.decodes), decode_kv_tokens=cached, head_rows=int(plan.rows),
    )  # fmt: skip
    assert step_alone_s(costs, 0, plan, 32, 0) == pytest.approx(cost.alone_s, rel=1e-9)
    link, hbm, _ = step_bytes(costs, 0, plan, 32, 0)
    assert link == pytest.approx(cost.link_bytes, rel=1e-9)
    assert hbm == pytest.approx(cost.hbm_bytes, rel=1e-9)


def test_records_without_drafts_are_those_of_before() -> None:
    block = random_requests(60, 1, 5.0, 3)
    plain, _, _ = simulate(setup(MODEL, **RESIDENT), block)
    named = setup(MODEL, **RESIDENT, speculation__acceptance=0.2)
    assert simulate(named, block)[0].tobytes() == plain.tobytes()


@pytest.mark.parametrize("tokens", [1, 4])
def test_sure_lookups_divide_a_lone_decodes_time(tokens: int) -> None:
    """A pass of a few rows takes as long as one of one row: it reads the same weights."""
    block = requests([0.0], prompt=64, output=400)
    (plain,), _, _ = simulate(drafted(0), block)
    (fast,), _, _ = simulate(drafted(tokens, 1.0, "lookup"), block)
    ratio = (plain.finished_s - plain.first_token_s) / (fast.finished_s - fast.first_token_s)
    assert ratio == pytest.approx(1 + tokens, rel=0.03)
    assert fast.first_token_s == plain.first_token_s


def test_drafts_take_room_and_start_with_their_model() -> None:
    plain, made = prepare(drafted(0)), prepare(drafted(4))
    spec, draft = load_spec(MODEL), load_spec(DRAFT)
    room = float(plain.fleet.kv_capacity_bytes[0, 0] - weight_bytes(draft))
    token = kv_bytes_per_token(spec) + kv_bytes_per_token(draft)
    room *= kv_bytes_per_token(spec) / token
    assert made.fleet.kv_capacity_bytes[0, 0] == pytest.approx(room, abs=2 * token)
    more = made.fleet.weight_bytes - plain.fleet.weight_bytes
    assert more.tolist() == [weight_bytes(draft)]
    late = {"starts_active": False, "load": Resident(start_s=0.0)}
    block = requests([0.0], prompt=1, output=1)
    (one,), _, _ = simulate(drafted(0, **late), block)
    (two,), _, simulation = simulate(drafted(4, **late), block)
    own = prepare(setup(DRAFT, **RESIDENT)).tables[0][0]
    later_s = weight_bytes(draft) / simulation.machine.link_cap[0]
    later_s += own.body_s[1, 0] + own.prefill_attention_s[1]
    assert two.first_token_s - one.first_token_s == pytest.approx(later_s, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculation__drafts": {}}, "system.speculation.drafts={}: expected a draft of at least"),
        ({"speculation__drafts": {"gpt": "lookup"}}, "drafts.gpt='lookup': expected one of llama-"),
        ({"speculation__drafts": {MODEL: "gpt"}}, "drafts.llama-3-8b='gpt': expected lookup, one"),
        ({"speculation__tokens": 17}, r"system.speculation.tokens=17: expected .*16"),
        ({"speculation__acceptance": 1.1}, "system.speculation.acceptance=1.1: expected"),
        ({"engines__residents": 2, "load": Resident(), "place": KvPressure(), "turn": RoundRobin()},
         "tokens=2: expected 0 with several engines of a slice"),
    ],
)  # fmt: skip
def test_what_cannot_speculate_is_refused(changes: dict[str, Any], message: str) -> None:
    made = drafted(2)
    with pytest.raises(SettingError, match=message):
        prepare(replace(made, system=with_settings(made.system, **changes)))
