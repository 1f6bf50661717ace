"""ServerlessLLM's public router on one GPU."""

from __future__ import annotations

import numpy as np
import pytest

from c2c.errors import SettingError
from experiments.c2cserve.router import Router, first_tokens


def run(
    arrivals: list[float], models: list[int], load_s: float = 1.0, answer_s: float = 0.5,
    **settings: object,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    count = len(arrivals)
    return first_tokens(
        np.array(arrivals), models, [load_s] * (max(models) + 1), np.full(count, 0.1),
        np.full(count, answer_s), Router(**settings),  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_lone_request_waits_for_scaler_scheduler_start_and_a_poll() -> None:
    waits = [run([float(at)], [0])[0][0] - at for at in np.linspace(0.0, 5.0, 101)]
    assert min(waits) >= 1.0 + 0.1
    assert max(waits) <= 3.0 * 1.0 + 1.0 + 0.1  # a scaler's, a scheduler's and a balancer's second
    assert np.ptp(waits) > 0.5
    assert all(round(wait - 0.1, 6) % 1.0 < 1e-6 for wait in waits)  # polls are whole seconds


def test_each_request_starts_an_engine_unless_it_is_kept_alive() -> None:
    first, _ = run([0.0, 30.0], [0, 0])
    again = first[1] - 30.0
    assert again > 1.5
    kept, _ = run([0.0, 30.0], [0, 0], keep_alive_s=100.0)
    assert kept[1] - 30.0 == pytest.approx(1.1)


def test_models_share_the_gpu_one_after_another() -> None:
    first, last = run([0.0, 0.1], [0, 1], answer_s=5.0)
    early, late = sorted((0, 1), key=lambda request: float(first[request]))
    assert first[late] - last[early] > 1.0
    assert last[late] > last[early] + 5.0


def test_an_instance_serves_one_request_at_a_time_and_answers_of_others_wait() -> None:
    alone = run([0.0, 0.1], [0, 0], answer_s=10.0)[0]
    both = run([0.0, 0.1], [0, 0], answer_s=10.0, target=2)[0]
    assert alone[1] > alone[0] + 10.0
    assert both[1] < both[0] + 3.0


@pytest.mark.parametrize("seed", range(3))
def test_every_request_is_served_once_and_the_gpu_runs_one_instance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 400
    arrival = np.sort(rng.uniform(0.0, 3000.0, count))
    model = rng.integers(0, 4, count).tolist()
    answer = rng.uniform(0.2, 2.0, count)
    first, last = first_tokens(arrival, model, [0.5] * 4, 0.1 * answer, answer, Router(), seed)
    assert np.isfinite(last).all()
    assert (first >= arrival + 1.0).all()
    order = np.argsort(last - answer)
    starts, ends = (last - answer)[order], last[order]
    assert (starts[1:] >= ends[:-1] - 1e-9).all()  # target 1, one GPU


def test_settings_are_checked() -> None:
    with pytest.raises(SettingError, match=r"router\.poll_s"):
        Router(poll_s=0.0)
