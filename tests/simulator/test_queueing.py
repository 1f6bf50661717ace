"""A single slice with a single model is a queue with a known answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from c2c.cost import load_constants, step_time
from c2c.serving import Prepared, prepare
from tests.simulator.worlds import requests, setup, simulate

# Two-sided 99 % quantile of Student's t with 29 degrees of freedom.
T_99 = 2.756
BATCHES = 30


def server() -> Prepared:
    """One full GPU, one model, one request at a time, switches that take no time."""
    constants = replace(load_constants(), switch_dense_s=0.0)
    return prepare(setup("llama-3-3b", mig="1x96gb", max_batch=1, constants=constants))


def step_s(prepared: Prepared) -> float:
    """Seconds of a step with one token: prefill of a one-token prompt, or one decode."""
    return step_time(prepared.tables[0][0], prefill_tokens=1, head_rows=1, alpha_index=0).seconds


def interval(waits: np.ndarray) -> tuple[float, float]:
    """Mean and half-width of its 99 % confidence interval by batch means, warm-up dropped."""
    kept = waits[len(waits) // 10 :]
    means = kept[: len(kept) // BATCHES * BATCHES].reshape(BATCHES, -1).mean(axis=1)
    return float(means.mean()), T_99 * float(means.std(ddof=1)) / np.sqrt(BATCHES)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_md1_waiting_time(load: float) -> None:
    """Constant service: W = rho S / (2 (1 - rho))."""
    prepared = server()
    service = step_s(prepared)
    n = 60_000
    g = np.random.default_rng(7)
    block = requests(np.cumsum(g.exponential(service / load, n)), prompt=1, output=1)
    records, _, _ = simulate(prepared, block, compiled=True, buffer=n)
    np.testing.assert_allclose(records.finished_s - records.started_s, service, rtol=1e-6)
    mean, half = interval(records.started_s - records.arrival_s)
    assert abs(mean - load * service / (2.0 * (1.0 - load))) <= half
    assert half < 0.15 * mean  # the interval is tight enough to mean something


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_mm1_waiting_time(load: float) -> None:
    """Geometric output lengths of mean 200 tokens: exponential service but for 1 part in 200."""
    prepared = server()
    step, mean_tokens, n = step_s(prepared), 200, 60_000
    g = np.random.default_rng(11)
    output = g.geometric(1.0 / mean_tokens, n)
    output = np.minimum(output, 4000)
    service = step * mean_tokens
    block = requests(np.cumsum(g.exponential(service / load, n)), prompt=1, output=output)
    records, _, _ = simulate(prepared, block, compiled=True, buffer=n)
    mean, half = interval(records.started_s - records.arrival_s)
    assert abs(mean - load * service / (1.0 - load)) <= half
    assert half < 0.2 * mean
    # Little's law on the number in the system
    times = np.concatenate([records.arrival_s, records.finished_s])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(n), -np.ones(n)])[order]
    in_system = np.cumsum(change)[:-1]
    average = float((in_system * np.diff(times[order])).sum() / (times.max() - times.min()))
    sojourn = float((records.finished_s - records.arrival_s).mean())
    rate = n / (times.max() - times.min())
    assert average == pytest.approx(rate * sojourn, rel=1e-9)
