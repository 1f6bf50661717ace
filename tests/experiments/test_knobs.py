"""One number scaled at a time: every time moves the right way, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from c2c.cost import (
    Constants,
    gemm_time,
    load_constants,
    prefill_attention_s,
    step_table,
    step_time,
)
from c2c.hardware import Platform, link_gbps, load_platform, scaled, slices
from c2c.models import load_spec
from c2c.policies import Resident, Stream
from tests.simulator.worlds import requests, setup, simulate

type World = tuple[Platform, Constants]

WORLD: World = (load_platform("gh200"), load_constants("gh200"))


def constant(name: str) -> Callable[[World, float], World]:
    def change(world: World, factor: float) -> World:
        value = float(getattr(world[1], name))
        if name.endswith("_efficiency"):
            factor = min(factor, 1.0 / value)
        return world[0], world[1].having({name: value * factor})

    return change


def of_part(part: str, name: str) -> Callable[[World, float], World]:
    def change(world: World, factor: float) -> World:
        inside: Any = getattr(world[0], part)
        changed: Any = {part: replace(inside, **{name: factor * getattr(inside, name)})}
        return replace(world[0], **changed), world[1]

    return change


KNOBS: dict[str, Callable[[World, float], World]] = {
    "link rate": lambda world, factor: (scaled(world[0], link=factor), world[1]),
    "HBM rate": lambda world, factor: (scaled(world[0], hbm=factor), world[1]),
    "SMs": lambda world, factor: (scaled(world[0], sms=factor), world[1]),
    "tensor-core peak": of_part("gpu", "bf16_tflops"),
    "host memory's rate": of_part("host", "memory_gbps"),
    "disk rate": of_part("host", "disk_gbps"),
    **{name: constant(name) for name in WORLD[1].sources},
}
# More of these is slower; more of anything else is faster.
SLOWER = {
    "gemm_intensity", "gemm_throttle", "expert_intensity", "prefill_kv_weight", "prefill_spill",
} | {name for name in KNOBS if name.endswith("_s")}  # fmt: skip
# Numbers of starts: the model, whether its weights are streamed, and where they are before.
DENSE, MIXTURE = "llama-3-8b", "qwen3-30b-a3b"
OF_STARTS = {
    "disk rate": (DENSE, Stream(), "disk"),
    "engine_init_s": (DENSE, Stream(), "disk"),
    "switch_dense_s": (DENSE, Stream(), "host"),
    "switch_moe_s": (MIXTURE, Stream(), "host"),
    "sllm_init_dense_s": (DENSE, Resident(), "host"),
    "sllm_init_moe_s": (MIXTURE, Resident(), "host"),
}
# What no request of one model meets: memory read by the host, a cache that fits into the L2.
OF_NOTHING_HERE = {"host memory's rate", "l2_gain"}
# The plan of a resident product is chosen by its own time; beside copies its bytes count too.
TIE = 1e-4
PROMPT, DECODES = 256, 64
LONG = 2**12  # cached tokens of a prompt's chunk
WEIGHTS: tuple[Literal["host", "hbm", "staged"], ...] = ("host", "hbm", "staged")


def steps(world: World) -> dict[str, float]:
    """Seconds of steps of streamed and resident models, and of the two dataflows."""
    platform, constants = world
    shared = link_gbps(platform.link, "measured")
    result = {}
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
                    result[f"prompt, {where}"] = prompt.seconds
                    result[f"decode, {where}"] = decode.seconds
        both = gemm_time(
            10240, 16384, 4096, np.array([0.0, 1.0]), slice_=slice_, constants=constants,
            link_gbps=shared,
        )  # fmt: skip
        result[f"long prompt, {layout}"] = float(
            prefill_attention_s(2**16, heads=32, kv_heads=8, slice_=slice_, constants=constants)
        )
        result |= {f"GEMM, {layout}, alpha {a}": float(both.time_s[a]) for a in (0, 1)}
    return result


def start(world: World, model: str, load: Any, weights: str) -> dict[str, float]:
    """Seconds from the arrival of a model's first request to its first step."""
    what = setup(
        model, mig="1x96gb", platform=world[0], constants=world[1], load=load, weights_start=weights
    )
    records, _, _ = simulate(what, requests([0.0], output=1))
    return {f"start of {model}, {load}": float(records.started_s[0])}


@pytest.mark.parametrize("name", KNOBS)
def test_half_and_twice_of_every_number_move_times_the_right_way(name: str) -> None:
    def measure(world: World) -> dict[str, float]:
        return start(world, *OF_STARTS[name]) if name in OF_STARTS else steps(world)

    before, moved = measure(WORLD), 0.0
    for factor in (0.5, 2.0):
        after = measure(KNOBS[name](WORLD, factor))
        sign = math.copysign(1.0, factor - 1.0) * (1.0 if name in SLOWER else -1.0)
        for what, seconds in before.items():
            change = sign * (after[what] / seconds - 1.0)
            least = -TIE if "staged" in what else -1e-9
            assert change >= least, f"{what}: {seconds} to {after[what]} with {name} x {factor}"
            moved = max(moved, change)
    assert (moved > 1e-6) == (name not in OF_NOTHING_HERE), f"{name} moves by {moved}"
