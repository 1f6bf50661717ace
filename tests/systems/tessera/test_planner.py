"""Placements: the best of all for small works, by two methods, within every limit."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.cost.kernel_graph import Transfer, Weights
from c2c.errors import SettingError
from c2c.systems.tessera import (
    Gpus,
    Options,
    Work,
    blocks_of_layers,
    cost,
    costs_of,
    joined,
    memory_of,
    plan,
    relaxation_s,
    stages_of,
)
from c2c.systems.tessera.milp import solve

EXACT = {"gap": 0.0, "time_limit_s": 20.0}


@st.composite
def works(draw: st.DrawFn, *, most: int = 7, gpus: int | None = None) -> tuple[Work, Gpus]:
    """Small works, in microseconds and kilobytes, over two or three GPUs."""
    count = draw(st.integers(2, 3)) if gpus is None else gpus
    kernels = draw(st.integers(1, most if count == 2 else min(most, 5)))
    micro = st.integers(1, 50).map(lambda n: n * 1e-6)
    times = draw(st.lists(st.tuples(*[micro] * count), min_size=kernels, max_size=kernels))
    pairs = list(itertools.combinations(range(kernels), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=10)) if pairs else []
    sizes = [draw(st.integers(0, 400)) * 1e3 for _ in edges]
    weights = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, kernels - 1)), max_size=4))
    work = Work(
        names=tuple(f"k{n}" for n in range(kernels)),
        times_s=tuple(times),
        transfers=tuple(Transfer(*e, n) for e, n in zip(edges, sizes, strict=True)),
        weights=tuple(Weights(n * 1e9, (k,)) for n, k in weights),
    )
    speeds = [[draw(st.sampled_from([0.0, 5.0, 25.0, 100.0])) for _ in range(count)]
              for _ in range(count)]  # fmt: skip
    machines = Gpus(
        names=tuple("abc"[:count]),
        latency_s=((draw(st.integers(0, 9)) * 1e-6,) * count,) * count,
        gbps=tuple(map(tuple, speeds)),
    )
    return work, machines


def brute(work: Work, gpus: Gpus, policy: str, options: Options | None = None) -> float:
    best = math.inf
    limits = gpus.memory_bytes or (math.inf,) * len(gpus.names)
    for gpu_of in itertools.product(range(len(gpus.names)), repeat=len(work.names)):
        stages, cuts = stages_of(work, gpus, gpu_of, options)
        held = memory_of(work, gpu_of, len(gpus.names))
        if any(h > limit for h, limit in zip(held, limits, strict=True)):
            continue
        if any(gpu_of[k] != g for k, g in work.pinned.items()):
            continue
        if options is not None and options.max_cuts is not None and cuts > options.max_cuts:
            continue
        best = min(best, cost(policy, stages, options))
    return best


@settings(max_examples=25, deadline=None)
@given(works(), st.sampled_from(["throughput", "latency"]))
def test_a_plan_is_the_best_of_all(given_work: tuple[Work, Gpus], policy: str) -> None:
    work, gpus = given_work
    made = plan(work, gpus, policy, **EXACT)
    wanted = brute(work, gpus, policy)
    assert made.objective_s == pytest.approx(wanted, rel=1e-5)
    assert made.bound_s <= wanted * (1 + 1e-6)
    assert made.gap < 1e-4
    stages, cuts = stages_of(work, gpus, made.gpu_of)
    assert (made.stages, made.cuts) == (stages, cuts)
    assert made.objective_s <= work.times.sum(0).min() * (1 + 1e-9)
    if policy == "throughput":
        assert relaxation_s(work) <= made.objective_s * (1 + 1e-6)


@settings(max_examples=20, deadline=None)
@given(works(most=6), st.sampled_from(["throughput", "latency"]), st.data())
def test_a_plan_keeps_its_limits(
    given_work: tuple[Work, Gpus], policy: str, data: st.DataObject
) -> None:
    work, gpus = given_work
    count = len(gpus.names)
    options = Options(
        one_transfer=data.draw(st.booleans()),
        senders_pay=data.draw(st.booleans()),
        max_cuts=data.draw(st.sampled_from([None, 0, 1, 3])),
    )
    limits = tuple(float(data.draw(st.integers(0, 20))) * 1e9 for _ in range(count))
    gpus = replace(gpus, memory_bytes=limits)
    if data.draw(st.booleans()):
        work = replace(work, pinned={0: data.draw(st.integers(0, count - 1))})
    wanted = brute(work, gpus, policy, options)
    if math.isinf(wanted):
        with pytest.raises(SettingError, match=r"weights=|placement="):
            plan(work, gpus, policy, options=options, **EXACT)
        return
    made = plan(work, gpus, policy, options=options, **EXACT)
    assert made.objective_s == pytest.approx(wanted, rel=1e-5)
    held = memory_of(work, made.gpu_of, count)
    assert all(h <= limit for h, limit in zip(held, limits, strict=True))
    assert options.max_cuts is None or made.cuts <= options.max_cuts


@settings(max_examples=25, deadline=None)
@given(works(most=9, gpus=2))
def test_the_minimum_cut_is_the_integer_program(given_work: tuple[Work, Gpus]) -> None:
    work, gpus = given_work
    cut = plan(work, gpus, "latency")
    assert cut.method in ("cut", "sweep")
    solved = solve(
        work, gpus, "latency", options=Options(), tied=range(len(work.names)),
        at_most_s=math.inf, gap=0.0, time_limit_s=20.0,
    )  # fmt: skip
    assert solved.gpu_of is not None
    stages, _ = stages_of(work, gpus, solved.gpu_of)
    assert cut.objective_s == pytest.approx(cost("latency", stages), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(works(most=9, gpus=2))
def test_slower_links_cut_no_more(given_work: tuple[Work, Gpus]) -> None:
    """A cut's gain is bounded, its cost is not: at last one GPU does it all."""
    work, gpus = given_work
    spent = []
    for gbps in (1000.0, 100.0, 10.0, 1.0, 1e-6):
        link = replace(gpus, gbps=((gbps,) * 2,) * 2, latency_s=((0.0,) * 2,) * 2)
        made = plan(work, link, "latency")
        moved = sum(
            e.nbytes for e in work.transfers if made.gpu_of[e.source] != made.gpu_of[e.target]
        )
        spent.append(moved)
    assert all(after <= before + 1 for before, after in itertools.pairwise(spent))
    assert spent[-1] == 0


@settings(max_examples=25, deadline=None)
@given(works(gpus=2), st.sampled_from(["throughput", "latency"]))
def test_divided_kernels_bound_every_plan_and_a_coarse_plan_first_stays_exact(
    given_work: tuple[Work, Gpus], policy: str
) -> None:
    work, gpus = given_work
    kernels = len(work.names)
    wanted = brute(work, gpus, policy)
    bound_s = solve(
        work, gpus, policy, options=Options(), tied=range(kernels), at_most_s=math.inf, gap=0.0,
        time_limit_s=20.0, divisible=True,
    ).bound_s  # fmt: skip
    assert bound_s <= wanted * (1 + 1e-6)
    if policy == "throughput":
        assert bound_s >= relaxation_s(work) * (1 - 1e-6)
    coarse = plan(work, gpus, policy, first=[k // 2 for k in range(kernels)], **EXACT)
    assert coarse.objective_s == pytest.approx(wanted, rel=1e-5)
    assert coarse.bound_s <= wanted * (1 + 1e-6)


def chain(kernels: int, seed: int = 0) -> Work:
    """A chain with residuals, whose kernels are bound by arithmetic or memory in turn."""
    rng = np.random.default_rng(seed)
    base = rng.uniform(5e-6, 60e-6, kernels)
    ratio = np.where(rng.random(kernels) < 0.5, 0.6, 2.2)
    return Work(
        names=tuple(f"k{n}" for n in range(kernels)),
        times_s=tuple((float(b), float(b * r)) for b, r in zip(base, ratio, strict=True)),
        transfers=tuple(
            Transfer(k - d, k, 524_288.0) for k in range(1, kernels) for d in (1, 7) if k >= d
        ),
    )


def test_real_sizes_are_solved_to_the_gap() -> None:
    gpus = Gpus.alike(("a", "b"), gbps=50.0, latency_s=5e-6)
    work = chain(300)
    made = plan(work, gpus, "throughput", gap=0.02, time_limit_s=60.0)
    assert made.gap <= 0.02
    assert relaxation_s(work) <= made.objective_s < 0.8 * work.times.sum(0).min()
    near = Gpus.alike(("a", "b"), gbps=400.0, latency_s=1e-6)
    cut = plan(work, near, "latency")
    assert cut.gap < 1e-5
    assert cut.cuts > 0
    assert cut.objective_s < work.times.sum(0).min()


def test_tied_kernels_go_together() -> None:
    work = chain(24)
    tied = blocks_of_layers([k // 4 for k in range(24)], [str(k % 4) for k in range(24)], 2)
    gpus = Gpus.alike(("a", "b"), gbps=100.0, latency_s=1e-6)
    made = plan(work, gpus, "throughput", tied=tied, **EXACT)
    for group in set(tied):
        assert len({g for g, t in zip(made.gpu_of, tied, strict=True) if t == group}) == 1
    free = plan(work, gpus, "throughput", **EXACT)
    assert free.objective_s <= made.objective_s * (1 + 1e-6)
    best = min(
        cost("throughput", stages_of(work, gpus, [choice[t] for t in tied])[0])
        for choice in itertools.product(range(2), repeat=len(set(tied)))
    )
    assert made.objective_s == pytest.approx(best, rel=1e-6)


def test_a_model_larger_than_either_gpu_runs_on_both() -> None:
    """Only the weights that a GPU's kernels read are kept there."""
    work = replace(chain(8), weights=tuple(Weights(10e9, (k,)) for k in range(8)))
    gpus = Gpus.alike(("a", "b"), gbps=50.0, latency_s=1e-6, memory_bytes=(50e9, 40e9))
    made = plan(work, gpus, "latency", **EXACT)
    held = memory_of(work, made.gpu_of, 2)
    assert held in ((40e9, 40e9), (50e9, 30e9))
    with pytest.raises(SettingError, match="weights="):
        plan(work, replace(gpus, memory_bytes=(40e9, 30e9)), "latency")
    with pytest.raises(SettingError, match="weights="):
        plan(work, replace(gpus, memory_bytes=(9e9, 9e9)), "latency")


def test_one_plan_for_a_mix_of_steps() -> None:
    """Prefill prefers one GPU and decode the other: each alone is unbalanced, both are not."""
    prefill = Work(names=("p",), times_s=((4e-3, 1e-3),))
    decode = Work(names=("d",), times_s=((1e-3, 4e-3),))
    gpus = Gpus.alike(("a", "b"), gbps=50.0, latency_s=1e-6)
    both = joined([(prefill, 1.0), (decode, 2.0)])
    made = plan(both, gpus, "throughput", **EXACT)
    assert made.objective_s == pytest.approx(2e-3)
    assert made.gpu_of == (1, 0)


def work_with(**changes: object) -> Work:
    fields = {"names": ("a", "b"), "times_s": ((1.0, 2.0), (1.0, 2.0)), **changes}
    return Work(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"times_s": ((1.0, 2.0),)}, "times_s"),
        ({"times_s": ((1.0, 2.0), (1.0,))}, r"times_s\[b\]"),
        ({"times_s": ((1.0, 2.0), (-1.0, 2.0))}, r"times_s\[b\]"),
        ({"times_s": ((1.0, 2.0), (math.nan, 2.0))}, r"times_s\[b\]"),
        ({"transfers": (Transfer(1, 0, 8.0),)}, "from an earlier to a later kernel"),
        ({"transfers": (Transfer(1, 1, 8.0),)}, "from an earlier to a later kernel"),
        ({"transfers": (Transfer(0, 1, -8.0),)}, "nbytes"),
        ({"pinned": {0: 5}}, "pinned"),
        ({"times_s": ((1.0, 2.0), (1e12, 2.0))}, "to 1e[+]06 seconds"),
        ({"names": (), "times_s": ()}, "at least one kernel"),
    ],
)
def test_works_that_cannot_be_are_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        work_with(**changes)


def test_gpus_and_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingError, match="named once"):
        Gpus.alike(("a", "a"), gbps=1.0, latency_s=0.0)
    with pytest.raises(SettingError, match="at least one GPU"):
        Gpus.alike((), gbps=1.0, latency_s=0.0)
    with pytest.raises(SettingError, match="gbps"):
        Gpus.alike(("a", "b"), gbps=-1.0, latency_s=0.0)
    gpus = Gpus.alike(("a", "b"), gbps=0.0, latency_s=0.0)
    assert set(plan(work_with(transfers=(Transfer(0, 1, 8.0),)), gpus, "latency").gpu_of) == {0}
    for wrong in ({"gap": 1.0}, {"time_limit_s": 0.0}, {"tied": (0,)}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            plan(work_with(), gpus, "latency", **wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"policy='speed'.*throughput, latency"):
        plan(work_with(), gpus, "speed")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="2"):
        plan(work_with(), Gpus.alike(("a", "b", "c"), gbps=1.0, latency_s=0.0), "latency")
    with pytest.raises(SettingError, match="max_cuts"):
        Options(max_cuts=-1)
    with pytest.raises(SettingError, match="blocks"):
        blocks_of_layers([0], ["a"], 0)


@given(works(), st.sampled_from(["throughput", "latency"]), st.booleans(), st.booleans())
def test_many_placements_cost_what_each_of_them_does(
    given_work: tuple[Work, Gpus], policy: str, is_once: bool, senders_pay: bool
) -> None:
    work, gpus = given_work
    options = Options(one_transfer=is_once, senders_pay=senders_pay, price=0.3)
    every = every_placement(work, gpus)[:50]
    each = [cost(policy, stages_of(work, gpus, row, options)[0], options) for row in every]
    assert costs_of(work, gpus, policy, every, options) == pytest.approx(each, rel=1e-9)


def every_placement(work: Work, gpus: Gpus) -> np.ndarray:
    count = len(gpus.names)
    kernels = len(work.names)
    return np.arange(count**kernels)[:, None] // count ** np.arange(kernels) % count


@pytest.mark.parametrize("policy", ["throughput", "latency"])
@pytest.mark.parametrize(("kernels", "count"), [(12, 2), (12, 3)])
def test_twelve_kernels_are_placed_as_well_as_can_be(kernels: int, count: int, policy: str) -> None:
    """All of up to 531,441 placements."""
    rng = np.random.default_rng(kernels + count)
    work = Work(
        names=tuple(f"k{n}" for n in range(kernels)),
        times_s=tuple(tuple(row) for row in rng.uniform(5e-6, 50e-6, (kernels, count)).tolist()),
        transfers=tuple(
            Transfer(k - d, k, float(rng.integers(1, 400)) * 1e3)
            for k in range(1, kernels) for d in (1, 4) if k >= d
        ),
    )  # fmt: skip
    gpus = Gpus.alike("abc"[:count], gbps=50.0, latency_s=2e-6)
    wanted = float(costs_of(work, gpus, policy, every_placement(work, gpus)).min())
    assert plan(work, gpus, policy, **EXACT).objective_s == pytest.approx(wanted, rel=1e-5)


def test_a_solver_at_its_limit_says_how_far_it_may_be() -> None:
    work = chain(300)
    gpus = Gpus.alike(("a", "b"), gbps=12.0, latency_s=5e-6)
    made = plan(work, gpus, "throughput", gap=0.0, time_limit_s=1e-3)
    assert 0 < made.gap < 1
    assert relaxation_s(work) * (1 - 1e-9) <= made.bound_s < made.objective_s
    assert made.objective_s <= work.times.sum(0).min()
