"""Caches of experts: against a plain model, the bound of Belady, closed forms, and physics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers

from c2c.errors import SettingError
from c2c.policies import (
    ActivationTrace,
    AllExperts,
    ByProbability,
    ByScore,
    ExpertMap,
    Fixed,
    LongestUnused,
    MostVisited,
    NoPrefetch,
    Resident,
    Static,
    prefetch_weight,
)
from c2c.serving import ServingSetup, prepare
from c2c.simulator import Simulation, build_machine, run_blocks
from c2c.simulator.expert_cache.experts import build_experts, fill_experts
from c2c.simulator.expert_cache.tokens import draw_token, follow, nothing_followed, token_experts
from c2c.simulator.expert_cache.traces import (
    Traces,
    add_tokens,
    begin_compare,
    compare_layer,
    forget_tokens,
    new_traces,
    predict,
    renew_dot,
    store,
)
from c2c.workloads import Router, router_tables
from tests.simulator.worlds import few_experts, requests, setup, simulate, with_room, with_settings

RESIDENT: dict[str, Any] = {
    "load": Resident(start_s=0.0), "chunk": Fixed(512), "alpha": Static(0.0), "max_batch": 1,
    "check_slo": False,
}  # fmt: skip
LAYERS, EXPERTS, TOP = 3, 8, 2


def world(
    room_bytes: float = 62e6, router: Router | None = None, seed: int = 0, models: int = 1,
    **system: Any,
) -> ServingSetup:  # fmt: skip
    """Return tiny models on one GPU whose experts and KV caches have so much room, half each."""
    names = ("mixtral-8x7b",) * models
    made = few_experts(setup(*names, mig="1x96gb", seed=seed, **(RESIDENT | system)))
    changed = with_settings(made.system, **with_room(made, "1x96gb", room_bytes))
    return replace(made, system=changed, router=router or Router())


def layers_of(what: ServingSetup, count: int, prompt: int, output: int) -> Iterator[Any]:
    """Yield (layer, experts in the order they are asked) of requests served one after another."""
    tables = router_tables(what.router, [(LAYERS, EXPERTS, TOP)], what.seed)
    token = np.zeros(TOP, np.int64)
    followed = nothing_followed(tables, 1)
    for request in range(count):
        steps = [range(prompt), *([p] for p in range(prompt, prompt + output - 1))]
        for positions in steps:
            for layer in range(LAYERS):
                needed: dict[int, None] = {}
                for p in positions:
                    follow(tables, followed, 0, 0, request)
                    draw_token(tables, followed, 0, 0, p)
                    token_experts(tables, followed, 0, 0, layer, p, token)
                    needed.update(dict.fromkeys(token.tolist()))
                yield layer, list(needed)


def plain_misses(asked: list[Any], slots: int, policy: str) -> int:
    """Count misses with dictionaries; experts that a layer needs do not give way."""
    held = {(k % LAYERS, k // LAYERS) for k in range(slots)}
    uses: dict[Any, int] = {}
    last: dict[Any, int] = {}
    nexts: dict[Any, list[int]] = {}
    for at, (layer, needed) in enumerate(asked):
        for e in needed:
            nexts.setdefault((layer, e), []).append(at)
    clock = misses = 0
    for at, (layer, needed) in enumerate(asked):
        pinned = {(layer, e) for e in needed}
        for key in [(layer, e) for e in needed]:
            if key in held:
                continue
            misses += 1
            free = [k for k in held if k not in pinned]
            if len(held) >= slots and not free:
                continue
            if len(held) >= slots:
                if policy == "belady":
                    after = {k: [t for t in nexts.get(k, []) if t > at] for k in free}
                    held.remove(max(free, key=lambda k: (after[k] or [1 << 60])[0]))
                else:
                    worth = last if policy == "lru" else {k: -n for k, n in uses.items()}
                    held.remove(min(free, key=lambda k: (worth.get(k, 0), k)))
            held.add(key)
        for key in [(layer, e) for e in needed]:
            clock += 1
            uses[key] = uses.get(key, 0) + 1
            last[key] = clock
    return misses


def take(traces: Traces, matrix: Any, model: int = 0) -> None:
    """Let tokens take experts as a matrix [layer, expert] says, in two steps."""
    for layer, counts in enumerate(matrix.tolist()):
        forget_tokens(traces, 0, layer, model)
        for part in (0, 1):
            for e, count in enumerate(counts):
                before, tokens = (
                    (0.0, count // 2) if part == 0 else (count // 2, count - count // 2)
                )
                add_tokens(traces, 0, layer, e, before, tokens, model)


def keep(traces: Traces, router: Any, rows: Any, k: int, model: int = 0) -> int:
    """Store row `k` of several, as a request of that number."""
    take(traces, rows[k], model)
    return store(traces, router, 0, model, k, rows[k : k + 1], 0, 0.0, False)


def served_s(records: Any) -> float:
    return float((records.finished_s - records.started_s).sum())


@pytest.mark.parametrize(("policy", "name"), [(LongestUnused(), "lru"),
                                              (MostVisited(), "visits")])  # fmt: skip
@pytest.mark.parametrize("router", [Router(), Router(skew=0.8, locality=0.5)])
def test_misses_are_those_of_a_plain_model(policy: Any, name: str, router: Router) -> None:
    what = world(router=router, experts=policy)
    _, stats, simulation = simulate(what, requests(np.arange(6.0), prompt=3, output=60))
    asked = list(layers_of(what, 6, 3, 60))
    slots = int(simulation.prepared.expert_slots[0, 0])
    assert 3 < slots < LAYERS * EXPERTS
    assert stats.expert_uses == sum(len(needed) for _, needed in asked)
    assert stats.expert_misses == plain_misses(asked, slots, name)
    assert int(simulation.experts.held.sum()) == slots  # room is never exceeded, nor left


@pytest.mark.parametrize("policy", [LongestUnused(), ByScore(), ByProbability(), MostVisited()])
def test_no_policy_misses_less_than_belady(policy: Any) -> None:
    what = world(router=Router(skew=0.8, locality=0.3), experts=policy)
    _, stats, simulation = simulate(what, requests(np.arange(3.0), prompt=2, output=60))
    asked = list(layers_of(what, 3, 2, 60))
    slots = int(simulation.prepared.expert_slots[0, 0])
    assert plain_misses(asked, slots, "belady") <= stats.expert_misses < stats.expert_uses


def test_the_public_codes_order_is_a_poor_one() -> None:
    missed = {}
    for policy in (MostVisited(), LongestUnused()):
        what = world(router=Router(skew=1.0), experts=policy)
        _, stats, _ = simulate(what, requests(np.arange(4.0), prompt=2, output=60))
        missed[type(policy)] = stats.expert_misses
    assert missed[MostVisited] > 1.1 * missed[LongestUnused]


def test_without_skew_and_locality_misses_and_time_are_the_closed_form() -> None:
    what = world(experts=LongestUnused(), expert_cache__on_miss="stream")
    block = requests(np.arange(30.0), prompt=1, output=200)
    records, stats, simulation = simulate(what, block, compiled=True)
    slots = int(simulation.prepared.expert_slots[0, 0])
    share = 1.0 - slots / (LAYERS * EXPERTS)
    assert stats.expert_misses / stats.expert_uses == pytest.approx(share, rel=0.01)
    read_s = float(simulation.experts.tables.read_s[0, 0])
    assert stats.expert_wait_s == pytest.approx(stats.expert_uses * share * read_s, rel=0.01)
    everything = with_settings(what.system, **with_room(what, "1x96gb", 1e9))
    at_once, none, _ = simulate(replace(what, system=everything), block, compiled=True)
    assert none.expert_misses == 0
    longer = served_s(records) - served_s(at_once)
    assert longer == pytest.approx(stats.expert_wait_s, rel=1e-6)


def test_a_cache_of_all_experts_is_resident_weights() -> None:
    what = world(room_bytes=1e9, experts=LongestUnused(), max_batch=4)
    block = requests([0.0, 0.01, 0.5], prompt=40, output=30)
    ours, stats, _ = simulate(what, block)
    plain = replace(what.system, experts=AllExperts())
    theirs, _, _ = simulate(replace(what, system=plain), block)
    assert stats.expert_misses == 0
    for field in ours.dtype.names:
        np.testing.assert_allclose(ours[field], theirs[field], rtol=1e-9, err_msg=field)


@pytest.mark.parametrize("prefetch", [NoPrefetch(), ActivationTrace(capacity=20)])
def test_experts_that_are_held_for_good_cost_what_the_walk_says(prefetch: Any) -> None:
    """The walk that looks at every expert, made to run where none can be missed."""
    block = requests([0.0, 0.01, 0.5], prompt=40, output=30)
    for host_per in ("use", "fetch"):
        what = prepare(
            world(
                room_bytes=1e9, experts=ByScore(), prefetch=prefetch, max_batch=2,
                expert_cache__host_s=1e-4, expert_cache__host_per=host_per,
            )
        )  # fmt: skip
        got = []
        for held in (True, False):
            simulation = Simulation.start(what, build_machine(what), compiled=False)
            assert simulation.experts.tables.holds_all.all()
            simulation.experts.tables.holds_all[:] = held
            records: list[Any] = []
            got.append((records, run_blocks(simulation, [block], records.append)))
        (ours, mine), (walked, theirs) = got
        for one, other in zip(ours, walked, strict=True):
            assert one.tobytes() == other.tobytes()
        assert (mine.expert_uses, mine.expert_host_s) == (theirs.expert_uses, theirs.expert_host_s)
        assert mine.expert_uses > 0 == mine.expert_misses


def test_the_host_works_for_each_expert_and_hides_behind_the_link() -> None:
    block = requests([0.0], prompt=1, output=50)
    got = {}
    for host_s in (0.0, 1e-7, 1e-3):
        what = world(experts=LongestUnused(), expert_cache__host_s=host_s)
        records, stats, _ = simulate(what, block)
        got[host_s] = float(records.finished_s[0]), stats
    uses = got[0.0][1].expert_uses
    assert got[0.0][0] < got[1e-7][0] < got[0.0][0] + 1e-7 * uses
    assert got[1e-3][0] - got[0.0][0] == pytest.approx(
        1e-3 * uses - got[0.0][1].expert_wait_s, rel=1e-6
    )


def test_the_host_may_work_for_what_is_copied_only() -> None:
    block = requests([0.0], prompt=1, output=50)
    added = {}
    for miss in ("copy", "stream"):
        took_s = []
        for host_s in (0.0, 1e-3):
            what = world(
                experts=LongestUnused(),
                expert_cache__on_miss=miss,
                expert_cache__host_per="fetch",
                expert_cache__host_s=host_s,
            )
            records, stats, _ = simulate(what, block)
            took_s.append(float(records.finished_s[0]))
        added[miss] = took_s[1] - took_s[0], stats
    assert added["stream"][0] == 0.0
    seconds, stats = added["copy"]
    assert seconds == pytest.approx(1e-3 * stats.expert_misses - stats.expert_wait_s, rel=1e-6)


def test_half_the_link_or_twice_the_cache_do_as_physics_says() -> None:
    block = requests([0.0], prompt=4, output=80)

    def wait_s(link: float, room: float) -> float:
        what = world(room_bytes=room, experts=LongestUnused(), router=Router(skew=0.5))
        slow = replace(
            what.platform.link,
            measured_gbps=what.platform.link.measured_gbps * link,
            datasheet_gbps=what.platform.link.datasheet_gbps * link,
        )
        gpu = what.platform
        return simulate(replace(what, platform=replace(gpu, link=slow)), block)[1].expert_wait_s

    assert wait_s(0.5, 62e6) == pytest.approx(2 * wait_s(1.0, 62e6), rel=1e-6)
    assert wait_s(1.0, 100e6) < 0.75 * wait_s(1.0, 50e6)


@pytest.mark.parametrize(
    ("prefetch", "experts", "router"),
    [
        (ActivationTrace(capacity=20), LongestUnused(), Router(skew=3.0, topics=6)),
        (ExpertMap(capacity=20, distance=1), ByProbability(), Router(skew=1.0, locality=0.9)),
    ],
)
def test_fetching_ahead_misses_less_and_moves_more_bytes(
    prefetch: Any, experts: Any, router: Router
) -> None:
    block = requests(np.arange(12.0), prompt=2, output=12)
    on_demand = world(40e6, router=router, experts=experts)
    ahead = replace(on_demand, system=replace(on_demand.system, prefetch=prefetch))
    _, without, _ = simulate(on_demand, block)
    _, got, simulation = simulate(ahead, block)
    assert got.expert_ahead > 0
    assert got.expert_misses < without.expert_misses
    assert got.expert_bytes >= got.expert_misses * simulation.experts.tables.expert_bytes[0]
    assert 0 < simulation.experts.traces.count[0] <= 20


def test_the_right_trace_is_found() -> None:
    generator = np.random.default_rng(0)
    stored = generator.integers(0, 5, (20, 8, 16)).astype(np.float32)
    router = router_tables(Router(), [(8, 16, 2)], 0)
    traces = new_traces(20, 8, 16)
    for k in range(20):
        keep(traces, router, stored, k)
    for true in (3, 11, 17):
        take(traces, stored[true])
        traces.seen[:] = 0.0
        for layer in range(4):
            found, alike = compare_layer(traces, 0, layer, 0)
        assert found == true
        assert alike == pytest.approx(1.0)


def test_a_model_of_more_experts_on_another_gpu_changes_nothing() -> None:
    """Found by bytes: tokens of its steps were counted among those of models with fewer."""
    what = world(
        models=2, router=Router(skew=1.0, locality=0.5), experts=ByProbability(),
        prefetch=ExpertMap(capacity=20, distance=1),
    )  # fmt: skip
    few, many = what.deployments
    wide = replace(many.spec, name="wide", experts=24, moe_intermediate=512)
    few = replace(few, spec=replace(few.spec, name="narrow"))
    what = replace(what, deployments=(few, replace(many, spec=wide)), superchips=2)
    both = requests(np.repeat(np.arange(6) * 10.0, 2), [0, 1] * 6, prompt=6, output=30)
    alone = replace(
        both, arrival_s=both.arrival_s[::2], model=both.model[::2],
        prompt_tokens=both.prompt_tokens[::2], output_tokens=both.output_tokens[::2],
        ids=np.arange(0, 12, 2),
    )  # fmt: skip
    ours, _, _ = simulate(what, both)
    theirs, _, _ = simulate(what, alone)
    mine = ours[ours.model == 0]
    assert mine.link_bytes.tolist() == theirs.link_bytes.tolist()
    assert mine.finished_s.tolist() == theirs.finished_s.tolist()


def test_a_full_store_replaces_the_row_most_like_the_new_one() -> None:
    router = router_tables(Router(), [(1, 4, 1)], 0)
    rows = np.array([[[1, 0, 0, 0]], [[0, 1, 0, 0]], [[0, 9, 1, 0]]], np.float32)
    traces = new_traces(2, 1, 4)
    for k in range(3):
        keep(traces, router, rows, k)
    np.testing.assert_array_equal(traces.rows[0, 0].T, [[1, 0, 0, 0], [0, 9, 1, 0]])


@given(data())
def test_products_that_are_kept_are_those_of_the_counts(draws: DataObject) -> None:
    """Whatever is added in whatever order, and whichever row changes meanwhile."""
    generator = np.random.default_rng(draws.draw(integers(0, 2**32 - 1)))
    router = router_tables(Router(), [(3, 5, 2)], 0)
    traces, counts = new_traces(4, 3, 5, models=2, matrices=2), np.zeros((2, 3, 5))
    for turn in range(draws.draw(integers(1, 12))):
        for _ in range(draws.draw(integers(1, 6))):
            layer, e, tokens = generator.integers((3, 5, 1 << 20)).tolist()
            add_tokens(traces, 1, layer, e, counts[1, layer, e], float(tokens), 1)
            counts[1, layer, e] += tokens
        for layer in range(3):
            forget_tokens(traces, 0, layer, 1)
            for e in range(5):
                counts[0, layer, e] = generator.integers(0, 9)
                add_tokens(traces, 0, layer, e, 0.0, counts[0, layer, e], 1)
        row = store(traces, router, 0, 1, turn, counts, 0, 0.5, False)
        renew_dot(traces, counts, 1, 3, 5, 1, row)
        for layer in range(3):
            forget_tokens(traces, 0, layer, 1)
    n = traces.count[1]
    stored = traces.rows[1, :, :, :n].astype(float)
    np.testing.assert_array_equal(traces.dots[1, :, :n], (counts[1, :, :, None] * stored).sum(1))
    np.testing.assert_array_equal(traces.square[1], (counts[1] ** 2).sum(1))
    np.testing.assert_array_equal(traces.length[1, :, :n], (stored**2).sum(1) ** 0.5)


def test_models_have_stores_of_their_own() -> None:
    """A full one takes no row of another model's, which compares with its own."""
    router = router_tables(Router(), [(1, 4, 1)], 0)
    rows = np.eye(4, dtype=np.float32)[:, None, :]
    traces = new_traces(2, 1, 4, 2)
    for model, stored in ((0, (0, 1, 2)), (1, (3, 0))):
        for k in stored:
            keep(traces, router, rows, k, model)
    assert traces.count.tolist() == [2, 2]
    np.testing.assert_array_equal(traces.rows[1, 0].T, rows[[3, 0], 0])
    begin_compare(traces, 1)
    take(traces, rows[0], 1)
    found, alike = compare_layer(traces, 0, 0, 1)
    assert found == 1
    assert alike == pytest.approx(1.0)


def test_a_sequence_is_stored_when_its_engine_goes() -> None:
    """Two models by turns on one slice; the last sequence goes on."""
    what = world(40e6, models=2, experts=ByScore(), prefetch=ActivationTrace(capacity=20))
    block = requests(np.arange(6) * 40.0, np.arange(6) % 2, prompt=3, output=5)
    _, stats, simulation = simulate(what, block)
    assert stats.switches == 6
    assert simulation.experts.traces.count.tolist() == [3, 2]


def test_a_prediction_is_fetched_until_its_mass_and_at_least_some() -> None:
    router = router_tables(Router(), [(1, 4, 1)], 0)
    traces = new_traces(1, 1, 4)
    keep(traces, router, np.array([[[4, 3, 2, 1]]], np.float32), 0)
    for mass, least, wanted in ((1.0, 1, 4), (0.65, 1, 2), (0.0, 3, 3), (0.0, 1, 1)):
        chance, want = np.zeros((1, 4)), np.zeros((1, 4))
        predict(traces, 0, 0, 0, mass, least, 4, chance, want)
        np.testing.assert_allclose(chance, [[0.4, 0.3, 0.2, 0.1]])
        assert np.count_nonzero(want) == wanted


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        # less than a token's experts of a layer
        ({"expert_cache__share": 0.01}, "system.expert_cache.share"),
        ({"prefetch": ExpertMap(distance=3)}, "system.prefetch.distance"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes: Any, field: str) -> None:
    what = world(experts=LongestUnused())
    with pytest.raises(SettingError) as caught:
        prepare(replace(what, system=with_settings(what.system, **changes)))
    assert caught.value.field == field


def test_a_dense_model_has_no_experts_to_cache() -> None:
    dense = setup("llama-3-3b", mig="1x96gb", experts=LongestUnused(), **RESIDENT)
    with pytest.raises(SettingError, match=r"^catalog\.llama-3-3b-0="):
        prepare(dense)
    with pytest.raises(SettingError, match=r"^system\.load\.policy="):
        setup("mixtral-8x7b", experts=LongestUnused())
    with pytest.raises(SettingError, match=r"^system\.starts_active="):
        setup("mixtral-8x7b", experts=LongestUnused(), starts_active=True, **RESIDENT)
    with pytest.raises(SettingError, match=r"^system\.prefetch\.policy="):
        setup("mixtral-8x7b", prefetch=ExpertMap())


@pytest.mark.soak
@pytest.mark.parametrize(("policy", "name"), [(LongestUnused(), "lru"),
                                              (MostVisited(), "visits")])  # fmt: skip
def test_misses_are_those_of_a_plain_model_over_a_million_uses(policy: Any, name: str) -> None:
    what = world(router=Router(skew=0.8, locality=0.5), experts=policy)
    block = requests(np.arange(170) * 10.0, prompt=3, output=1000)
    _, stats, simulation = simulate(what, block, compiled=True)
    asked = list(layers_of(what, 170, 3, 1000))
    assert stats.expert_uses == sum(len(needed) for _, needed in asked) > 1_000_000
    slots = int(simulation.prepared.expert_slots[0, 0])
    assert stats.expert_misses == plain_misses(asked, slots, name)


def test_an_engine_that_starts_again_finds_its_cache_as_new() -> None:
    what = prepare(world())
    fresh, used = (build_experts(what, what.new_serving()) for _ in range(2))
    arrays = ("held", "uses", "last", "recent", "worst")
    used.cache[0] = np.ones(1, used.cache.dtype)[0]
    for name in arrays:
        getattr(used, name)[...] = 1
    for experts in (fresh, used):
        fill_experts(experts, what.fleet, 0, 0, 0)
    for name in arrays:
        assert getattr(used, name).tobytes() == getattr(fresh, name).tobytes(), name
    for name in ("model", "held", "clock", "request"):  # the others are sums, or of a step
        assert used.cache[name] == fresh.cache[name], name


@pytest.mark.parametrize("policy", [ActivationTrace(), ExpertMap()])
def test_of_two_as_likely_what_is_needed_sooner_is_fetched_first(policy: Any) -> None:
    weights = [prefetch_weight(policy, 0.5, ahead, 8) for ahead in range(1, 9)]
    assert weights == sorted(set(weights), reverse=True)
