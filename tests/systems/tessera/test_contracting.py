"""Facts of a latency program before it is solved cost nothing, and leave little of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost.kernel_graph import Batch, Transfer, Weights, step_kernels, timed_gpus
from c2c.models import load_spec
from c2c.systems.tessera import Gpus, Options, Work, costs_of, memory_of, plan, work_of
from c2c.systems.tessera.contraction import contracted


@st.composite
def works(draw: st.DrawFn) -> tuple[Work, Gpus]:
    """Small works over two or three GPUs with any links, none at all included."""
    count, kernels = draw(st.sampled_from([(2, 7), (3, 5)]))
    micro = st.integers(0, 30).map(lambda n: n * 1e-6)
    pairs = list(itertools.combinations(range(kernels), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=9))
    table = st.lists(
        st.lists(st.sampled_from([0.0, 5.0, 25.0, 400.0]), min_size=count, max_size=count),
        min_size=count, max_size=count,
    )  # fmt: skip
    work = Work(
        names=tuple(f"k{n}" for n in range(kernels)),
        times_s=tuple(draw(st.tuples(*[micro] * count)) for _ in range(kernels)),
        transfers=tuple(
            Transfer(*e, draw(st.integers(0, 300)) * 1e3, draw(st.sampled_from([0.0, 1.0, 2.5])))
            for e in edges
        ),
        weights=tuple(
            Weights(1e9 * draw(st.integers(1, 4)), (k,))
            for k in draw(st.lists(st.integers(0, kernels - 1), max_size=3))
        ),
        pinned=draw(
            st.dictionaries(st.integers(0, kernels - 1), st.integers(0, count - 1), max_size=2)
        ),
    )
    gpus = Gpus(
        names=tuple("abc"[:count]), latency_s=((2e-6,) * count,) * count,
        gbps=tuple(map(tuple, draw(table))),
    )  # fmt: skip
    return work, gpus


@settings(max_examples=150, deadline=None)
@given(works(), st.booleans(), st.data())
def test_a_best_placement_is_left(
    given_work: tuple[Work, Gpus], has_limits: bool, data: st.DataObject
) -> None:
    work, gpus = given_work
    count, kernels = len(gpus.names), len(work.names)
    limits = [data.draw(st.integers(0, 9)) * 1e9 if has_limits else math.inf for _ in range(count)]
    every = np.array(list(itertools.product(range(count), repeat=kernels)))
    allowed = np.ones(len(every), bool)
    for kernel, gpu in work.pinned.items():
        allowed &= every[:, kernel] == gpu
    held = np.array([memory_of(work, row, count) for row in every])
    allowed &= (held <= limits).all(1)
    costs = np.where(allowed, costs_of(work, gpus, "latency", every), math.inf)
    kept = {k for w in work.weights for k in w.readers} if has_limits else set()
    found = contracted(work, gpus, range(kernels), kept)
    assert found is not None
    left = np.ones(len(every), bool)
    for first, second in itertools.combinations(range(kernels), 2):
        if found.tied[first] == found.tied[second]:
            left &= every[:, first] == every[:, second]
    for kernel, group in enumerate(found.tied):
        if group in found.fixed:
            left &= every[:, kernel] == found.fixed[group]
    if np.isfinite(costs).any():
        assert costs[left].min() == pytest.approx(costs.min(), rel=1e-12)


def test_groups_that_cannot_be_placed_are_left_to_the_program() -> None:
    work = Work(names=("a", "b"), times_s=((1.0, 2.0),) * 2, pinned={0: 0, 1: 1})
    gpus = Gpus.alike(("x", "y"), gbps=1.0, latency_s=0.0)
    assert contracted(work, gpus, (0, 0)) is None


@pytest.mark.parametrize(
    ("names", "most"), [(("a100_80", "l40s"), 0.25), (("h100_sxm", "rtx_pro_6000", "b200"), 0.75)]
)
def test_little_is_left_of_a_step_of_a_real_model(names: tuple[str, ...], most: float) -> None:
    """A decode step over a slow link goes to one GPU but for what is pinned."""
    spec = replace(load_spec("llama-3-8b"), layers=8)
    kernels = step_kernels(spec, Batch(rows=64, chunk=1, context=1084))
    work = replace(work_of(kernels, timed_gpus(*names)), pinned={40: 1})
    gpus = Gpus.alike(names, gbps=25.0, latency_s=5e-6)
    found = contracted(work, gpus, range(len(kernels)))
    assert found is not None
    assert max(found.tied) + 1 < most * len(kernels)
    made = plan(work, gpus, "latency", options=Options(max_cuts=len(work.transfers)), gap=0.0)
    assert made.gpu_of[40] == 1
    assert made.gap < 1e-6
