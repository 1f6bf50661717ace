"""The layout chosen by simulation, and layouts of parts, from settings to a run."""

from __future__ import annotations

import pytest

from c2c.config import RunSetup, build, load, simulate
from c2c.config.planner import first_requests, plan_layout
from c2c.errors import SettingError

FEW = ("workload=poisson", "workload.requests=60", "workload.rate_rps=3")


def made(*overrides: str) -> RunSetup:
    return build(load([*FEW, *overrides]))


def planned(setup: RunSetup, *layouts: str, requests: int = 40) -> list[tuple[str, float | None]]:
    plan = plan_layout(setup.serving, layouts, setup.workload, requests=requests, compiled=False)
    assert plan.requests == requests
    assert plan.mig == plan.as_dict()["candidates"][0]["mig"]
    return [(one.mig, one.attainment) for one in plan.candidates]


def test_the_layout_with_most_on_target_is_chosen_and_all_are_told() -> None:
    setup = made("catalog=dense6")
    shares = planned(setup, "1x96gb", "7x12gb")
    assert [name for name, _ in shares] == ["1x96gb", "7x12gb"]
    plan = plan_layout(
        setup.serving, ["1x96gb", "7x12gb"], setup.workload, requests=40, compiled=False
    )
    assert plan.mig == "7x12gb"  # six models take turns on one slice, or have one each
    assert plan.prepared.setup.mig.name == "7x12gb"  # type: ignore[union-attr]
    assert len(plan.notes) == 3
    assert "7x12gb" in plan.notes[0]
    assert shares[1][1] is not None
    assert f"{100 * shares[1][1]:.2f} %" in plan.notes[1]
    again = plan_layout(
        setup.serving, ["1x96gb", "7x12gb"], setup.workload, requests=40, compiled=False
    )
    assert again == plan


def test_among_equal_shares_the_lower_tail_is_chosen() -> None:
    setup = made("catalog.models=[{spec: llama-3-3b}]", "slo.ttft_s=1000", "slo.tpot_s=10")
    plan = plan_layout(
        setup.serving, ["7x12gb", "1x96gb"], setup.workload, requests=30, compiled=False
    )
    assert {one.attainment for one in plan.candidates} == {1.0}
    best = min(plan.candidates, key=lambda one: one.ttft_p99_s or 0.0)
    assert plan.mig == best.mig


def test_a_layout_that_cannot_serve_the_catalog_is_told_and_passed_over() -> None:
    setup = made("catalog=dense_70b", "system=serverlessllm", "hardware=rubin", "mig=1x288gb")
    plan = plan_layout(
        setup.serving, ["7x36gb", "1x288gb"], setup.workload, requests=10, compiled=False
    )
    assert plan.mig == "1x288gb"
    assert "room for a KV cache" in plan.candidates[0].refused
    with pytest.raises(SettingError, match="room for a KV cache"):
        plan_layout(setup.serving, ["7x36gb"], setup.workload, requests=10, compiled=False)


def test_the_first_requests_are_the_workloads_own() -> None:
    setup = made()
    whole = next(setup.workload.blocks())
    (part,) = first_requests(setup.workload, 7).blocks()
    assert part.arrival_s.tolist() == whole.arrival_s[:7].tolist()
    assert part.model.tolist() == whole.model[:7].tolist()
    assert sum(map(len, first_requests(setup.workload, 10_000).blocks())) == 60


def test_a_run_says_how_its_layout_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    import c2c.config.planner as planner

    run = planner.estimate

    def interpreted(*given: object, compiled: bool) -> object:
        return run(*given, compiled=False)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "estimate", interpreted)
    setup = made("mig=planned", "mig.requests=5", "hardware.mig=[1x96gb]", "hardware.mig_more=[]")
    assert setup.plan is not None
    assert setup.serving.mig.name == setup.plan.mig == "1x96gb"  # type: ignore[union-attr]
    assert setup.notes[0].startswith("mig 1x96gb (planned: the first 5 requests")
    summary = simulate(setup, compiled=False).summary
    assert summary["run"]["plan"]["candidates"][0]["mig"] == "1x96gb"


def test_parts_from_the_command_line_reach_the_slices() -> None:
    setup = made("mig=custom", "mig.parts=[3g.48gb,4x1g.12gb]")
    kinds = setup.prepared.slice_kinds
    assert [kinds[k].sm_count for k in setup.prepared.kind_of] == [60, 16, 16, 16, 16]
    assert simulate(setup, compiled=False).summary["finished"] == 60
    assert made("mig=3g_4x1g").prepared.slice_kinds == kinds
    with pytest.raises(SettingError, match=r"mig.parts='3g.48gb \+ 5x1g.12gb': expected instances"):
        made("mig=custom", "mig.parts=[3g.48gb,5x1g.12gb]")


def test_one_hot_model_beside_idle_slices_is_said() -> None:
    hot = [
        "system=c2cserve_letter", "catalog.models=[{spec: llama-3-8b}]", "workload.rate_rps=40",
        "workload.requests=400",
    ]  # fmt: skip
    verdict = simulate(made(*hot), compiled=False).summary["verdict"]
    assert verdict["binds"] == "idle_slices"
    assert verdict["idle_slices"] == pytest.approx(6.0, abs=0.1)
    assert verdict["slices"] == 7
    assert verdict["sustainable_rps"] < verdict["offered_rps"]
    assert "6.0 of 7 slices idle" in verdict["text"][1]


def test_nothing_is_said_of_a_load_that_is_served() -> None:
    assert (
        simulate(made("workload.rate_rps=0.5"), compiled=False).summary["verdict"]["state"]
        == "served"
    )
