"""Step times of a user's own: `system.step_times`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost import step_time
from c2c.errors import SettingError
from c2c.policies import Resident
from c2c.serving import prepare
from tests.simulator.worlds import requests, setup, simulate

MODEL = "llama-3-8b"
SECONDS = st.floats(1e-4, 1.0)
CURVES = st.dictionaries(st.integers(1, 400), SECONDS, min_size=1, max_size=5)


def timed(**times: Any) -> Any:
    return setup(
        MODEL, mig="1x96gb", load=Resident(start_s=0.0), starts_active=True, check_slo=False,
        step_times={MODEL: times},
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    step=st.floats(0.0, 0.1), prefill=CURVES, decode=CURVES, kv=st.floats(0.0, 1e-6),
    data=st.data(),
)  # fmt: skip
def test_steps_take_what_the_curves_say(
    step: float, prefill: dict[int, float], decode: dict[int, float], kv: float, data: st.DataObject
) -> None:
    made = prepare(timed(step_s=step, prefill_s=prefill, decode_s=decode, cached_token_s=kv))
    table = made.tables[0][0]
    rows = data.draw(st.sampled_from([n for n in decode if n <= 32] or [1]))
    cached = data.draw(st.integers(0, 10**5))
    seconds = step_time(table, decode_seqs=rows, decode_kv_tokens=cached, head_rows=rows).alone_s
    expected = decode.get(rows, decode[min(decode)])
    assert seconds == pytest.approx(step + expected + kv * cached, rel=1e-9)
    for tokens, prompt_s in prefill.items():
        alone = step_time(table, prefill_tokens=tokens, head_rows=1).alone_s
        reads_s = kv * tokens  # of the chunk's own keys
        assert alone == pytest.approx(step + prompt_s + reads_s, rel=1e-9)
        both = step_time(table, prefill_tokens=tokens, decode_seqs=1, head_rows=2).alone_s
        more_s = table.body_s[tokens + 1, 0] - table.body_s[tokens, 0]
        assert both == pytest.approx(alone + more_s, rel=1e-9)


def test_a_constant_step_and_bytes_as_before() -> None:
    made = timed(step_s=0.02)
    (one,), stats, _ = simulate(made, requests([0.0], prompt=100, output=11))
    assert one.finished_s - one.first_token_s == pytest.approx(10 * 0.02)
    assert one.first_token_s == pytest.approx(0.02)
    plain = setup(
        MODEL, mig="1x96gb", load=Resident(start_s=0.0), starts_active=True, check_slo=False
    )
    _, other, _ = simulate(plain, requests([0.0], prompt=100, output=11))
    assert stats.instance_hbm_bytes.sum() == other.instance_hbm_bytes.sum()


def test_curves_go_on_with_their_last_slope() -> None:
    table = prepare(timed(decode_s={1: 0.01, 2: 0.02})).tables[0][0]
    np.testing.assert_allclose(table.body_s[:6, 0], [0.0, 0.01, 0.02, 0.03, 0.04, 0.05])


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({}, "system.step_times.llama-3-8b={}: expected step_s, prefill_s or decode_s"),
        ({"step": 1}, "system.step_times.llama-3-8b.step=1: expected a key among cached_token_s"),
        ({"step_s": -1.0}, r"system.step_times.llama-3-8b.step_s=-1.0: expected"),
        ({"decode_s": {0: 0.1}}, r"decode_s=0: expected a whole number above 0"),
        ({"prefill_s": {8: -0.1}}, r"prefill_s.8=-0.1: expected"),
        ({"prefill_s": 0.1}, r"prefill_s=0.1: expected seconds by tokens"),
    ],
)
def test_wrong_times_are_refused(times: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        timed(**times)


def test_times_of_no_model_are_refused() -> None:
    with pytest.raises(SettingError, match=r"system.step_times.gpt='gpt': expected the times of"):
        prepare(setup(MODEL, step_times={"gpt": {"step_s": 0.1}}))
