"""The systems and fleets that the contract suite serves on: those of `conf/system`, and mixes."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest

from c2c.config import build, config_dir, load
from c2c.hardware import cut_node, load_node, load_platform
from c2c.models import load_catalog, load_spec
from c2c.policies import (
    AtBacklog,
    AtOutstanding,
    ByPriority,
    ByQueue,
    ExpertMap,
    Fixed,
    GateAndTriage,
    LeastLoaded,
    RandomIdle,
    Resident,
    Roofline,
    RoundRobin,
    Static,
    Stream,
    WhereWorkIs,
    WhileRoom,
    WithinQuota,
    weights_in,
)
from c2c.serving import Prepared, SystemSpec, prepare
from c2c.serving.batches.schedulers.prompts_alone import PromptsAlone
from c2c.systems.cocoserve.layout import Scaling, scaled_layout
from c2c.systems.tessera import Pair, PairLayout, pair_layout
from c2c.systems.weaver import Weaving, woven_layout
from tests.simulator.controllers import Load
from tests.simulator.lanes import COLD, SPEC, layout, on, over, woven
from tests.simulator.worlds import few_experts, setup, with_room, with_settings

__all__ = ["EACH", "FLEETS", "ON_FLEETS", "SYSTEMS", "in_turn", "models", "prepared"]

# Policies that no file of `conf/system` names, and those of several engines a slice.
SPREAD = {
    "turn": RoundRobin(), "place": RandomIdle(), "alpha": Static(0.5), "scale": AtOutstanding(2),
    "chunk": Fixed(200),
}  # fmt: skip
TURNS = {
    "turn": GateAndTriage(), "route": WhereWorkIs(), "place": LeastLoaded(), "scale": AtBacklog(),
    "alpha": Roofline(), "keep": WhileRoom(spare_bytes=0.05e9),
}  # fmt: skip
# Works that wait for one another and share link and disk with steps, some behind, some before them.
START = (
    {"name": "engine", "seconds": 0.05},
    {"name": "read", "moves": "weights", "over": ["disk"], "when": "cold", "rank": 1},
    {"name": "copy", "moves": "weights", "after": ["engine", "read"], "rank": -1},
    {"name": "first_layers", "seconds": 0.01, "after": ["engine"]},
)
# Systems whose instances lie over several devices, on small ones. Two batches over two devices and
# the link between them, in two variants; two that compute prompts and send them to a third.
SLICES = cut_node(load_platform("gh200"), "4x24gb", gbps=187.5, latency_s=1e-5)
LAYOUTS = {
    "tessera": layout(
        *[[
            [on(0, 0.02), on(1, 0.01), on(2, 0.02)], [on(0, 0.01), on(1, 0.002), on(2, 0.005)],
            [(0.06, {0: 0.02, 1: 0.02, 2: 0.02})], [(0.02, {0: 0.01, 2: 0.01})],
        ]] * 2,
        resources=3, rows=3, switch_s=0.03,
    ),
    "pd": layout(
        *[[[on(0, 0.02), on(1, 0.03)], [on(0, 0.01)]]] * 2, [[on(2, 0.05)], [on(2, 0.03)]],
        resources=3, rows=3, hands_to=2,
    ),
    # each instance has a variant of its own, which a controller says by a timer
    "controlled": layout(
        *[[[on(0, 0.02)], [on(0, 0.01), on(1, 0.002)], [on(k, 0.03)], [on(k, 0.004)]]
          for k in (0, 2)],
        resources=3, rows=3,
    ),
    "woven": woven(0.010, 0.009, 0.002, 0.015, rows=3),  # two models on one node
    # half of the layers have a copy; beside weights a device has room for some requests
    "cocoserve": scaled_layout(
        Scaling(replicated=14, between=1, reliefs=1, memory_share=0.21), load_spec(SPEC),
        load_node("a100_40_pcie_x4"), rows=16, tokens=4096,
    ),
    # half of the hot sequences away; prompts on devices of their own
    "weaver": woven_layout(
        Weaving(ratio=0.5, kv_share=0.45, cold_share=0.3, prompt_devices=1),
        load_catalog([{"spec": SPEC}, {"spec": COLD}]), load_node("a100_40_nvlink"), rows=16,
        tokens=4096,
    ),
    # the same over slices of one chip; layers away, the cold model, or all weights are streamed
    "cold_slices": woven_layout(
        Weaving(ratio=0.5, kv_share=0.35, reserve_bytes=0.5e9, cold_share=0.3),
        load_catalog([{"spec": SPEC}, {"spec": COLD}]), SLICES, rows=16, tokens=4096,
        link_gbps=375.0,
    ),
    "read_copies": scaled_layout(
        Scaling(replicated=14, between=1, reliefs=1, memory_share=0.35), load_spec(SPEC),
        SLICES, rows=16, tokens=4096, link_gbps=375.0,
    ),
    "read_kernels": pair_layout(
        PairLayout(way="kernels", expert_bytes=2.0, hbm_reserve_bytes=44e9),
        Pair(node=cut_node(load_platform("gh200"), "4g_3g", gbps=187.5, latency_s=1e-5)),
        load_spec(SPEC), rows=16, link_gbps=375.0,
    ),
}  # fmt: skip
# The same policies, on other layouts or with another start.
_LIKE_THEM = {"af", "replicas", "composed", "vllm_sleep", "vllm_sleep_2", "muxserve"}

MIXES: dict[str, dict[str, Any]] = {
    "round_robin_1": SPREAD | {"engines__residents": 1},
    "round_robin_3": SPREAD
    | {
        "engines__residents": 3,
        "engines__turn_s": 0.002,
        "admit": WithinQuota(floor=0.2, ceiling=0.6),
    },
    "triage_1": TURNS | {"engines__residents": 1},
    "triage_3": TURNS | {"engines__residents": 3},
    "alone_3": TURNS | {"engines__residents": 3, "batch": PromptsAlone()},
    "parked_3": TURNS
    | {
        "engines__residents": 3, "engines__kv_host_bytes": 1e9, "engines__share": 0.5,
        "turn": GateAndTriage(stay=0.0), "keep": WhileRoom(spare_bytes=0.05e9, displace=math.inf),
    },
    "apart_3": TURNS
    | {"engines__residents": 3, "engines__kv_host_bytes": 1e9, "disaggregation__prompt_share": 0.3},
    "apart": {
        "load": Resident(start_s=0.2),
        "disaggregation__prompt_share": 0.5,
        "scale": AtOutstanding(3),
    },
    "apart_turns": TURNS | {"engines__residents": 3, "disaggregation__prompt_share": 0.3},
    "graph_start": {"load": Resident(), "start": START},
    "by_priority": {"preempt": ByPriority(after_s=2.0)},
}  # fmt: skip
_FILES = {p.stem for p in (config_dir() / "system").glob("*.yaml")}
_READ = ("cold_slices", "read_copies", "read_kernels")
SYSTEMS = (*sorted(_FILES - _LIKE_THEM), "controlled", "woven", *_READ, *MIXES)

_MODELS = ("llama-3-3b", "llama-3-8b", "llama-3-3b", "llama-3-8b", "llama-3-3b", "llama-3-8b")

# What fits easily; what is short of slices, of KV cache and of host memory, and starts from disk.
FLEETS: dict[str, dict[str, Any]] = {
    "roomy": {"superchips": 2},
    "tight": {"superchips": 1, "weights_start": "disk"},
}


# One system for each mechanism, with the fleet on which `make test` serves: resident weights,
# streamed ones with feedback, turns, prompts alone in their steps, a cache of experts, lanes, a
# graph of works at the start, prompts apart. The others are slow.
FIRST = {
    "mig_resident": "tight", "c2cserve": "tight", "triage_3": "tight", "alone_3": "tight",
    "moe_infinity": "tight", "woven": "roomy", "graph_start": "roomy", "apart": "roomy",
}  # fmt: skip


def _case(system: str, *fleet: str, mark: Any = pytest.mark.slow) -> Any:
    is_first = FIRST.get(system) in (fleet or FLEETS)
    return pytest.param(system, *fleet, marks=[] if is_first else mark)


def in_turn(first: int) -> list[Any]:
    """Return each system with one fleet and the other in turn; the other pairs are for soak."""
    return [
        _case(s, f, mark=pytest.mark.slow if (k + n + first) % 2 else pytest.mark.soak)
        for k, s in enumerate(SYSTEMS)
        for n, f in enumerate(FLEETS)
    ]


EACH = [_case(system) for system in SYSTEMS]
ON_FLEETS = [_case(s, f) for s in SYSTEMS for f in FLEETS]


def models(system: str) -> int:
    """Return how many models a system serves."""
    return len(prepared(system, "roomy").setup.deployments)


@functools.cache
def _spec(system: str) -> SystemSpec:
    """Return what a file of `conf/system` says."""
    name, _, mechanisms = system.partition("=")
    settings = [f"system={name if name in _FILES else 'pd'}", "workload=poisson"]
    settings.append("workload.requests=100")  # experts of a long run may be from a table
    settings += [f"system/mechanism={mechanisms}"] * bool(mechanisms)
    if system not in LAYOUTS:  # two Superchips have a slice for each model of the catalog
        settings += ["system.check_slo=false", "superchips=2"]
    cfg = load(settings)
    if cfg.system.experts.policy != "all_experts":
        cfg = load([*settings, "catalog=moe"])
    return build(cfg).serving.system


def _load(system: str) -> Any:
    return Stream() if LAYOUTS[system].streams else Resident(start_s=0.0)


@functools.cache
def prepared(system: str, fleet: str) -> Prepared:
    """Return a system on a fleet, ready to serve; "composed=[kept,streamed]" is a set."""
    tight = fleet == "tight"
    if system in MIXES:
        made = setup(*_MODELS, **FLEETS[fleet], **MIXES[system])
        if not tight:  # 12 GB of a slice: the driver's 11 GiB are short for three residents
            made = replace(made, platform=replace(made.platform, mig_table="paper"))
    elif system in LAYOUTS:
        made = replace(
            over(LAYOUTS[system], load=_load(system)), superchips=FLEETS[fleet]["superchips"],
            system=replace(_spec(system), layout=LAYOUTS[system], load=_load(system)),
        )  # fmt: skip
        if system == "controlled":
            control = Load(period_s=0.03, up=1, late_s=0.5, cool_down_s=0.05)
            made = replace(made, system=replace(made.system, vary=control))
    else:
        made = replace(setup(*_MODELS, **FLEETS[fleet]), system=_spec(system))
    where = weights_in(made.system.load)
    resident = where == "hbm"
    changes: dict[str, Any] = {
        "check_slo": False,
        "one_each": False,
        "profile__chunks": (128, 512),
        "preempt": made.system.preempt._replace(after_s=0.7 if tight else 5.0),
        "max_batch": 3 if tight else 16,
    }
    # A larger chunk takes memory for activations.
    if isinstance(made.system.chunk, ByQueue):
        changes["chunk"] = ByQueue(limit_tokens=512)
    elif where != "hbm" and isinstance(made.system.chunk, Fixed):
        changes["chunk"] = Fixed(512)
    if tight:  # the smallest model that must fit leaves room for two or three requests
        changes["hbm_reserve_bytes"] = {"hbm": 7.5e9, "staged": 22.8e9, "host": 23.75e9}[where]
        changes["engines__bytes"] = 0.12e9
        if made.system.engines.kv_host_bytes > 0.0:
            changes["engines__kv_host_bytes"] = 0.2e9
    mig = ("4x24gb" if tight else "1x96gb") if resident else ("3x24gb" if tight else "7x12gb")
    if tight:  # for two or three of six models
        host = replace(made.platform.host, memory_bytes=int(40e9))
        made = replace(made, platform=replace(made.platform, host=host))
    if made.system.traits.experts.caches_experts:
        made = few_experts(made)
        if isinstance(made.system.prefetch, ExpertMap):
            changes["prefetch"] = made.system.prefetch._replace(capacity=30, distance=1)
        if tight:
            changes |= with_room(made, mig, 62e6)
            host = replace(made.platform.host, memory_bytes=int(500e6))
            made = replace(made, platform=replace(made.platform, host=host))
    urgent = tuple(replace(d, priority=k % 3) for k, d in enumerate(made.deployments))
    changed = with_settings(made.system, **changes)
    return prepare(replace(made, mig=mig, system=changed, deployments=urgent))
