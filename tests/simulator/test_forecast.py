"""Starts ahead of bursts: known arrivals only, nothing taken from models that come earlier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.policies import FirstIdle, Fixed, KvPressure, NoOption, Resident, SlackFirst, Static
from c2c.serving import prepare
from c2c.serving.options.forecast import Forecast, foresee
from tests.contracts.recorded import Recorded
from tests.contracts.watching import serve
from tests.simulator.worlds import in_both_forms, random_requests, requests, setup, simulate
from tests.tiers import tiered

COMMON: dict[str, Any] = {"chunk": Fixed(512), "alpha": Static(0.0), "check_slo": False}
ALONE = COMMON | {"load": Resident(start_s=0.5), "place": FirstIdle()}
SHARED = ALONE | {
    "place": KvPressure(), "turn": SlackFirst(), "engines__residents": 4, "engines__bytes": 30e9,
}  # fmt: skip
SYSTEMS = {"alone": ALONE, "shared": SHARED}
THREE = ("llama-3-8b",) * 3


def _waits(system: dict[str, Any], option: Any) -> Any:
    """Return the seconds to the first token of each burst of three models on a GPU, by round."""
    burst_s = 60.0 * np.arange(12)[:, None] + 20.0 * np.arange(3)
    block = requests(np.repeat(burst_s.ravel(), 2), model=np.tile([0, 0, 1, 1, 2, 2], 12))
    records, _, _ = simulate(setup(*THREE, mig="1x96gb", option=option, **system), block)
    return (records.first_token_s - records.arrival_s)[::2].reshape(12, 3)


@pytest.mark.parametrize("system", SYSTEMS)
def test_regular_bursts_find_their_model_started(system: str) -> None:
    late, ahead = (_waits(SYSTEMS[system], one) for one in (NoOption(), Forecast(idle_s=5.0)))
    assert (late > 0.5).all()  # the start
    assert (ahead[:3] > 0.5).all()  # nothing is known before two gaps
    assert (ahead[6:] < 0.1).all()


def test_the_forecast_by_hand() -> None:
    policy = Forecast(idle_s=10.0, weight=0.5, deviations=1.0, gaps=2)
    own = policy.memory(prepare(setup("llama-3-8b", mig="1x96gb", **ALONE)).fleet)
    assert foresee(policy, own, 0, 0.0) == np.inf
    assert foresee(policy, own, 0, 5.0) == np.inf  # of the same burst
    assert foresee(policy, own, 0, 105.0) == np.inf  # one gap, 100 s, deviation 50 s
    # the second, 60 s: deviation (50 + 40) / 2, mean (100 + 60) / 2
    assert foresee(policy, own, 0, 165.0) == 165.0 + 80.0 - 45.0


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), known=st.integers(5, 35))
def test_later_arrivals_change_nothing_before_them(seed: int, known: int) -> None:
    block = random_requests(40, 3, 0.05, seed)
    made = prepare(setup(*THREE, mig="1x96gb", option=Forecast(idle_s=5.0, gaps=1), **ALONE))
    first = requests(
        block.arrival_s[:known], block.model[:known], block.prompt_tokens[:known],
        block.output_tokens[:known],
    )  # fmt: skip
    whole, part = simulate(made, block)[0], simulate(made, first)[0]
    ended = part.finished_s < block.arrival_s[known]
    assert whole[:known][ended].tobytes() == part[ended].tobytes()


@pytest.mark.parametrize("system", tiered([*SYSTEMS], "shared"))
def test_both_forms_of_the_loop_agree(system: str) -> None:
    what = prepare(setup(*THREE, mig="1x96gb", option=Forecast(idle_s=5.0), **SYSTEMS[system]))
    block = requests(10.0 * np.arange(24) + 3.0 * (np.arange(24) % 2), model=np.arange(24) % 3)
    over_port, _, _ = serve(what, Recorded(what, block))
    assert in_both_forms(what, block)[0].tobytes() == over_port.tobytes()


def test_no_forecast_where_each_model_has_a_slice() -> None:
    with pytest.raises(SettingError, match=r"^system\.one_each=True: expected False with option="):
        setup(*THREE, mig="1x96gb", option=Forecast(), one_each=True, **ALONE)
