"""Timing and the measurements of the link: what is counted, on any device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.gpu import Context, Times, time_launches
from experiments.gpu.device import folder_name, output_of
from experiments.gpu.link import cases, chain_program, measure, sweep_program


class Clock:
    """Advances by what the launches of a test take."""

    def __init__(self, each_s: float) -> None:
        self.now, self.each_s, self.numbers = 0.0, each_s, list[int]()

    def launch(self, number: int) -> jax.Array:
        self.now += self.each_s
        self.numbers.append(number)
        return jnp.zeros(1)

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("each_s", "in_a_row", "repetitions"),
    [(0.05, 1, 8), (0.001, 20, 20), (1e-5, 64, 30), (3.0, 1, 5)],
)
def test_launches_in_a_row_and_repetitions(each_s: float, in_a_row: int, repetitions: int) -> None:
    clock = Clock(each_s)
    times = time_launches(clock.launch, target_s=0.4, clock=clock)
    assert times.in_a_row == in_a_row
    assert len(times.seconds) == pytest.approx(repetitions, abs=1)
    assert times.median_s == pytest.approx(each_s)
    assert times.spread == pytest.approx(0, abs=1e-6)
    assert clock.numbers == list(range(len(clock.numbers)))  # every launch gets a number of its own


def test_columns_of_times() -> None:
    times = Times(seconds=(1.0, 2.0, 3.0, 4.0, 100.0), in_a_row=2)
    columns = times.columns()
    assert (columns["time_s"], columns["best_s"], columns["worst_s"]) == (3.0, 1.0, 100.0)
    assert columns["spread"] == pytest.approx((4.0 - 2.0) / 3.0)


@pytest.mark.parametrize("case", cases("tiny"), ids=lambda case: str(case.spec["what"]))
def test_link_measures(case) -> None:  # type: ignore[no-untyped-def]
    (row,) = measure(case.spec, Context(backend="reference", scale="tiny"))
    unit = "tflops" if case.spec["what"] == "matmul_bf16" else "gbps"
    assert 0 < row[f"{unit}_worst"] <= row[unit] <= row[f"{unit}_best"]


def test_the_sweep_makes_every_pass_and_is_not_folded_into_one() -> None:
    x = jnp.arange(1000, dtype=jnp.uint32)
    sweep = sweep_program(16)
    np.testing.assert_array_equal(sweep(x), np.arange(1000) + sum(range(16)))
    assert " while(" in jax.jit(sweep).lower(x).compile().as_text()


def test_the_chain_multiplies_as_often_as_it_says_and_keeps_its_size() -> None:
    n, products = 64, 8
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((n, n)), jnp.bfloat16)
    w = jnp.asarray(draw.standard_normal((n, n)) / np.sqrt(n), jnp.bfloat16)
    chain = chain_program(products)
    expected = np.asarray(x, np.float64) @ np.linalg.matrix_power(
        np.asarray(w, np.float64), products
    )
    got = np.asarray(chain(x, w), np.float64)
    assert np.linalg.norm(got - expected) < 0.05 * np.linalg.norm(expected)
    assert 0.05 < got.std() < 20
    assert " while(" in jax.jit(chain).lower(x, w).compile().as_text()


@pytest.mark.parametrize(
    ("kind", "folder"),
    [("NVIDIA H200", "nvidia-h200"), ("NVIDIA GH200 480GB", "nvidia-gh200-480gb"), ("cpu", "cpu")],
)
def test_folder_name(kind: str, folder: str) -> None:
    assert folder_name(kind) == folder


def test_absent_program_is_no_answer() -> None:
    assert output_of(["no-such-program-here"]) is None
    assert output_of(["git", "no-such-verb"]) is None
