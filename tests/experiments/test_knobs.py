"""One number scaled at a time: nothing else moves, and every time moves the right way."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from c2c.cost import (
    gemm_time,
    load_constants,
    prefill_attention_s,
    step_table,
    step_time,
)
from c2c.errors import SettingError
from c2c.hardware import link_gbps, load_platform, slices
from c2c.models import load_spec
from experiments.c2cserve.starts import cold_s, switch_s
from experiments.figure import Context, figures
from tests.experiments.knobs import Knob, changed, chip_knobs, constant_knobs, setting_knob
from tests.tiers import tiered

QUICK = Context(profile="quick", link_variant="measured", seeds=(0,))
COLD, SWITCH = (figures()[name].settings(QUICK) for name in ("fig10", "fig11"))
KNOBS = {knob.name: knob for knob in (*chip_knobs(), *constant_knobs())}
# More of these is slower; more of anything else is faster.
SLOWER = {
    "gemm_intensity", "gemm_throttle", "expert_intensity", "prefill_kv_weight", "prefill_spill",
} | {name for name in KNOBS if name.endswith("_s")}  # fmt: skip
# Numbers of starts: the system, and whether it starts cold or switches from one model to another.
DENSE, MIXTURE = ("llama-3-3b", "llama-3-8b"), ("llama-3-3b", "qwen3-30b-a3b")
OF_STARTS: dict[str, tuple[str, tuple[str, str] | None]] = {
    "disk rate": ("c2cserve", None),
    "engine_init_s": ("c2cserve", None),
    "switch_dense_s": ("c2cserve", DENSE),
    "switch_moe_s": ("c2cserve", MIXTURE),
    "sllm_init_dense_s": ("serverlessllm", DENSE),
    "sllm_init_moe_s": ("serverlessllm", MIXTURE),
}
# What no request of one model meets: memory read by the host, a cache that fits into the L2.
OF_NOTHING_HERE = {"host memory's rate", "l2_gain"}
# The plan of a resident product is chosen by its own time; beside copies its bytes count too.
TIE = 1e-4
PROMPT, DECODES = 256, 64
LONG = 2**12  # cached tokens of a prompt's chunk
WEIGHTS: tuple[Literal["host", "hbm", "staged"], ...] = ("host", "hbm", "staged")


def steps() -> dict[str, float]:
    """Seconds of steps of streamed and resident models, and of the two dataflows."""
    platform, constants = load_platform("gh200"), load_constants()
    shared = link_gbps(platform.link, "measured")
    found = {}
    for layout in ("1x96gb", "7x12gb"):
        slice_ = slices(platform, layout)[0]
        for model in ("llama-3-3b", "qwen3-30b-a3b"):
            for weights in WEIGHTS:
                table = step_table(
                    load_spec(model), slice_, constants, shared, max_tokens=PROMPT,
                    max_rows=DECODES, weights=weights, alphas=(0.0, 1.0),
                )  # fmt: skip
                for alpha in (0, 1) if weights == "host" else (0,):
                    prompt = step_time(
                        table, prefill_tokens=PROMPT, context_tokens=LONG, head_rows=1,
                        alpha_index=alpha,
                    )  # fmt: skip
                    decode = step_time(
                        table, decode_seqs=DECODES, decode_kv_tokens=DECODES * 1024,
                        head_rows=DECODES, alpha_index=alpha,
                    )  # fmt: skip
                    where = f"{model}, {weights}, {layout}, alpha {alpha}"
                    found[f"prompt, {where}"] = prompt.seconds
                    found[f"decode, {where}"] = decode.seconds
        both = gemm_time(
            10240, 16384, 4096, np.array([0.0, 1.0]), slice_=slice_, constants=constants,
            link_gbps=shared,
        )  # fmt: skip
        found[f"long prompt, {layout}"] = float(
            prefill_attention_s(2**16, heads=32, kv_heads=8, slice_=slice_, constants=constants)
        )
        found |= {f"GEMM, {layout}, alpha {a}": float(both.time_s[a]) for a in (0, 1)}
    return found


def start(system: str, models: tuple[str, str] | None) -> dict[str, float]:
    """Seconds of a cold start, or of a switch from one model to another."""
    if models is None:
        return {f"cold start, {system}": cold_s(QUICK, COLD, DENSE[1], system)}
    return {f"switch, {system}, {models[1]}": switch_s(QUICK, SWITCH, *models, system)}


@pytest.fixture(scope="module")
def base() -> dict[str, float]:
    return steps()


@pytest.mark.parametrize("name", tiered(KNOBS, *list(KNOBS)[::5]))
def test_half_and_twice_of_every_number_move_times_the_right_way(
    base: dict[str, float], name: str
) -> None:
    knob = KNOBS[name]
    measure: Callable[[], dict[str, float]] = steps
    if name in OF_STARTS:
        measure = functools.partial(start, *OF_STARTS[name])
    before = measure() if name in OF_STARTS else base
    moved = 0.0
    for factor in (0.5, min(2.0, knob.most)):
        with changed(knob, factor):
            after = measure()
        sign = math.copysign(1.0, factor - 1.0) * (1.0 if name in SLOWER else -1.0)
        for what, seconds in before.items():
            change = sign * (after[what] / seconds - 1.0)
            least = -TIE if "staged" in what else -1e-9
            assert change >= least, f"{what}: {seconds} to {after[what]} with {name} x {factor}"
            moved = max(moved, change)
    assert (moved > 1e-6) == (name not in OF_NOTHING_HERE), f"{name} moves by {moved}"


def test_only_the_number_is_scaled_and_all_is_as_before_afterwards() -> None:
    before, conf = load_constants(), os.environ.get("C2C_CONF")
    knob = KNOBS["gemm_launch_s"]  # carried over: it stands in another chip's file
    assert knob.entries[0][0] == "calibration/h100_sxm.yaml"
    with changed(knob, 3.0):
        assert load_constants() == before.having({"gemm_launch_s": 3 * before.gemm_launch_s})
        assert load_platform("gh200") == load_platform("gh200")
    assert load_constants() == before
    assert os.environ.get("C2C_CONF") == conf


def test_slices_are_scaled_with_their_chip() -> None:
    with changed(KNOBS["SMs"], 2.0):
        doubled = load_platform("gh200")
        assert doubled.gpu.sm_count == 264
        assert slices(doubled, "7x12gb")[0].sm_count == 32
    with changed(KNOBS["link rate"], 0.5):
        assert load_platform("gh200").link.measured_gbps == 187.5


def test_numbers_that_are_not_there_are_refused() -> None:
    assert setting_knob("system/moe_infinity.yaml", "start.1.gbps", "read").value == 0.58
    for key in ("start.9.gbps", "nothing", "name"):
        with pytest.raises(SettingError, match=r"moe_infinity.yaml.*expected a number"):
            setting_knob("system/moe_infinity.yaml", key, "read")
    with pytest.raises(SettingError, match="factor=0"), changed(KNOBS["SMs"], 0.0):
        pass


def test_a_number_of_a_systems_file_reaches_the_simulator() -> None:
    from c2c.config import build, load

    knob: Knob = setting_knob("system/moe_infinity.yaml", "expert_cache.host_s", "host's work")
    settings = ["hardware=gh200", "catalog.models=[{spec: mixtral-8x7b}]", "workload=deterministic",
                "workload.requests=1", "system=moe_infinity", "system.check_slo=false"]  # fmt: skip
    with changed(knob, 2.0):
        found = build(load(settings)).serving.system.expert_cache.host_s
    assert found == pytest.approx(2 * knob.value)
