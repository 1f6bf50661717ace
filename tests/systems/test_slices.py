"""Layouts over slices of one chip whose weights are read over its link, against rooflines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from c2c.config import build, load
from c2c.cost import DEFAULT_ALPHAS, at_best_alpha, calibration_for, load_constants, step_table
from c2c.errors import SettingError
from c2c.hardware import link_gbps, load_platform, slices
from c2c.models import load_spec, streamed_bytes
from tests.simulator.worlds import random_requests, requests, simulate

MECHANISM = Path(__file__).with_name("streamed_lanes.py")
GH200 = load_platform("gh200")
LINK = link_gbps(GH200.link, "measured") * 1e9
LLAMA = load_spec("llama-3-8b")
COMMON = ("system/load=stream", "node=slices", "workload=poisson", "workload.requests=1")


def catalog(count: int) -> str:
    models = [f"{{name: m{k}, spec: llama-3-8b, spec_name: s{k}}}" for k in range(count)]
    return f"catalog.models=[{','.join(models)}]"


def serving(*settings: str) -> Any:
    return build(load([*COMMON, *settings])).serving


def tpot_s(records: Any) -> np.ndarray:
    some = records[records.output_tokens > 1]
    return (some.finished_s - some.first_token_s) / (some.output_tokens - 1)


@pytest.mark.parametrize(("mig", "rate"), [("4x24gb", 3.0), ("7x12gb", 2.0)])
def test_lanes_that_stream_are_slices_that_stream(mig: str, rate: float) -> None:
    """A lane a slice in a user's file, against the same run without any layout."""
    count = int(mig[0])
    alike = [catalog(count), f"mig={mig}", "system=composed", "system/mechanism=[streamed]",
             "system.check_slo=false", "system.starts_active=true"]  # fmt: skip
    block = random_requests(300, count, rate, 11)
    code = [f"code=[{MECHANISM}]", "+system.layout.mechanism=streamed_lanes"]
    lanes = serving(*alike, *code)
    apart = build(load(["workload=poisson", "workload.requests=1", *alike])).serving
    found, stats, _ = simulate(lanes, block, compiled=True)
    known, other, _ = simulate(apart, block, compiled=True)
    assert np.median(tpot_s(found)) == pytest.approx(np.median(tpot_s(known)), rel=0.01)
    ttft = [float(np.mean(one.first_token_s - one.arrival_s)) for one in (found, known)]
    assert ttft[0] == pytest.approx(ttft[1], rel=0.02)
    moved = [one.chip_link_bytes.sum() for one in (stats, other)]
    assert moved[0] == pytest.approx(moved[1], rel=0.01)


def table(mig: str, part: int, gbps: float | None = None) -> Any:
    """Steps of the model on a slice, over weights in HBM, or read at a share of the link."""
    largest = sorted(slices(GH200, mig), key=lambda one: -one.hbm_bytes)[part]
    made = step_table(
        LLAMA, largest, load_constants(calibration_for("gh200")), LINK / 1e9, max_tokens=128,
        max_rows=128, alphas=DEFAULT_ALPHAS, weights="hbm" if gbps is None else "host",
    )  # fmt: skip
    return made if gbps is None else at_best_alpha(made, gbps)


def alone_s(steps: Any, rows: int, context: float) -> tuple[float, float]:
    """Return the seconds of a decode step without attention, and those of attention."""
    rest_s = steps.body_s[rows, 0] + steps.head_s[rows, 0] + steps.step_overhead_s
    read_s = steps.kv_read_s_per_token * rows * context
    return float(rest_s), float(steps.decode_attention_s[rows] + read_s)


@pytest.mark.parametrize("ratio", [0.0, 0.6])
def test_a_hot_model_beside_cold_ones_that_stream(ratio: float) -> None:
    """WEAVER with three receivers, all busy: steps of both kinds against a roofline."""
    what = serving(
        "system=weaver", catalog(4), "mig=4x24gb", "system.layout.receivers=3",
        f"system.layout.ratio={ratio}", "system.layout.cut=best", "system.layout.rows=36",
        "system.layout.kv_share=1.0",
    )  # fmt: skip
    hot, cold = 36, 4
    block = requests(
        [0.0] * (hot + 3 * cold),
        model=[0] * hot + [1, 2, 3] * cold,
        prompt=16,
        output=[400] * hot + [160] * (3 * cold),
    )
    found, _, _ = simulate(what, block, compiled=True)
    context = 16 + 400 / 2  # mean tokens of a hot sequence
    share = LINK / 3
    streamed = table("4x24gb", 1, share / 1e9)
    cold_bytes = streamed.body_link_bytes[cold, 0] + streamed.head_link_bytes[cold, 0]
    cold_s = float(np.median(tpot_s(found[found.model > 0])))
    assert cold_s == pytest.approx(cold_bytes / share, rel=0.03 if ratio else 0.01)
    resident = table("4x24gb", 0)
    rest_s, _ = alone_s(resident, hot, context)
    _, kept_s = alone_s(resident, hot - round(ratio * hot), context)
    (plan,) = what.system.layout.lanes[0].steps["s0"]
    stall = [w for w in plan if w.name == "stall 1"]
    stall_s = float(stall[0].seconds.decode.at(round(ratio * hot / 3))) if ratio else 0.0
    step_s = rest_s + kept_s + stall_s
    assert float(np.median(tpot_s(found[found.model == 0]))) == pytest.approx(step_s, rel=0.05)


@pytest.mark.parametrize("layers", [0, 16, 32])
def test_copies_that_read_host_memory(layers: int) -> None:
    """CoCoServe with layers of a second slice streamed: a step against its parts."""
    what = serving(
        "system=cocoserve", catalog(1), "mig=4x24gb", f"system.layout.replicated={layers}",
        "system.layout.between=0", "system/vary=as_alpha", "system.alpha.initial=1.0",
    )  # fmt: skip
    rows = 40
    block = requests([0.0] * rows, prompt=16, output=300)
    found, _, _ = simulate(what, block, compiled=True)
    share, context = layers / LLAMA.layers, 16 + 150.0
    first, second = table("4x24gb", 0), table("4x24gb", 1, LINK / 1e9)
    body_s = [t.body_s[n, 0] + alone_s(t, n, context)[1]
              for t, n in ((first, rows), (first, rows // 2), (second, rows // 2))]  # fmt: skip
    rest_s = first.head_s[rows, 0] + first.step_overhead_s
    sent_s = (2e-5 + rows / 2 * 2 * LLAMA.hidden * 2 / (LINK / 2)) * (layers > 0)
    step_s = (1.0 - share) * body_s[0] + share * max(body_s[1:]) + rest_s + sent_s
    assert float(np.median(tpot_s(found))) == pytest.approx(step_s, rel=0.02)


@pytest.mark.parametrize("rows", [32, 128])
def test_kernels_over_two_slices_read_each_weight_once(rows: int) -> None:
    """Tessera with two batches in flight: the link bounds the time between two steps."""
    what = serving(
        "system=tessera", catalog(1), "mig=4g_3g", "system.layout.expert_bytes=2",
        "system/vary=as_alpha", "system.alpha.initial=1.0", f"system.max_batch={rows}",
    )  # fmt: skip
    block = requests([0.0] * (2 * rows), prompt=16, output=200)
    found, stats, _ = simulate(what, block, compiled=True)
    between_s = float(found.finished_s.max() - found.first_token_s.min()) / (2 * 199)
    bound_s = streamed_bytes(LLAMA, rows) / LINK
    assert bound_s * (1 - 1e-9) <= between_s < 1.13 * bound_s
    assert stats.resource_s.min() > 0.0  # both slices have kernels


def test_what_slices_cannot_do_is_refused() -> None:
    for settings, message in (
        (("mig=1x96gb",), r"mig='1x96gb': expected a layout of at least two slices"),
        ((), r"mig='auto': expected a layout by name or parts with node=slices, such as 2x48gb"),
        (("mig=4x24gb", "system.layout.way=temporal"), r"way='temporal': expected dedicated or wo"),
        (("mig=4x24gb", "system.layout.prompt_devices=1"), r"prompt_devices=1: expected 0 or null"),
        (("node=a100_40_nvlink",), r"node='a100_40_nvlink': expected slices with system.load=str"),
        (("mig=7x12gb",), r"node='gh200/7x12gb': expected GPUs with room for s0"),
        (("mig=4x24gb", "system.layout.receivers=4"), r"expected 5 models a node"),
    ):
        with pytest.raises(SettingError, match=message):
            serving("system=weaver", catalog(2), *settings)
    with pytest.raises(SettingError, match=r"way='prefill_decode': expected kernels, replicas or"):
        serving("system=pd", catalog(1), "mig=4g_3g")
    with pytest.raises(SettingError, match=r"two GPUs"):
        serving("system=tessera", catalog(1), "mig=4x24gb")


@pytest.mark.parametrize("start", ["restored", "vllm"])
def test_cold_models_take_turns_on_receivers(start: str) -> None:
    """Six cold models over three slices: the first request of each waits for its start."""
    what = serving(
        "system=composed", "system/mechanism=[streamed,woven,restored]", "mig=4x24gb", catalog(7),
        "system.layout.receivers=3", "system.layout.colds=6",
        f"system.start.way={'medusa' if start == 'restored' else start}",
    )  # fmt: skip
    block = requests(np.arange(7.0) * 60.0, model=range(7), prompt=16, output=20)
    found, stats, simulation = simulate(what, block)
    works = what.system.start
    start_s = [float(found.first_token_s[k] - found.arrival_s[k]) for k in range(7)]
    least_s = sum(w.seconds["s1"] for w in works if w.when == "always" and not w.after)
    assert min(start_s[1:]) > least_s
    assert max(start_s[1:]) == pytest.approx(min(start_s[1:]), rel=0.2)
    assert (stats.switches, stats.evictions) == (7, 3)
    models = [int(one.model) for one in simulation.state.instance]
    assert len({*models}) == 4
    assert {0, 6} < {*models}


def test_lanes_that_share_weights_start_as_one() -> None:
    """Tessera's two batches in flight: one start, after which both lanes are open."""
    what = serving(
        "system=composed", "system/mechanism=[streamed,kernels,restored]", "mig=4g_3g",
        catalog(1), "system.layout.expert_bytes=2", "system.max_batch=4",
        "system/vary=as_alpha", "system/alpha=static", "system.alpha.initial=1.0",
    )  # fmt: skip
    found, stats, _ = simulate(what, requests([0.0] * 8, prompt=16, output=400))
    assert stats.switches == 1
    began = np.sort(found.first_token_s)
    assert began[0] > 0.1
    assert began[-1] < began[0] + 2.0  # the second lane's four do not wait for the first's


@pytest.mark.parametrize("mechanism", ["copies", "kernels", "woven"])
def test_resident_layouts_start_on_demand(mechanism: str) -> None:
    what = build(load([
        "system=composed", f"system/mechanism=[{mechanism},restored]", "workload=poisson",
        "workload.requests=1",
    ])).serving  # fmt: skip
    models = len(what.deployments)
    found, stats, _ = simulate(what, requests([0.0] * models, model=range(models), output=20))
    whole_s = [float(w.seconds[what.deployments[0].spec.name]) for w in what.system.start]
    assert stats.switches == models
    assert (found.first_token_s - found.arrival_s > max(whole_s)).all()


@pytest.mark.parametrize(
    ("mig", "node", "message"),
    [
        ("auto", {"links": {}}, r"node\.mine\.gpus=None: expected a list of names"),
        ("4g_3g", {"gpus": [], "links": {"link": 3}}, r"node\.links\.link=3: expected a mapping"),
    ],
)
def test_a_node_without_gpus_is_refused_by_name(
    mig: str, node: dict[str, Any], message: str
) -> None:
    cfg = load([*COMMON[2:], "system=tessera", f"mig={mig}"])
    OmegaConf.set_struct(cfg, False)
    cfg.node = {"name": "mine", **node}
    with pytest.raises(SettingError, match=message):
        build(cfg)
