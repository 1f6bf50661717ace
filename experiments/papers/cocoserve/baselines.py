"""Baselines of CoCoServe, and Algorithm 1's copied layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

from c2c.hardware import load_node
from c2c.models import load_spec
from c2c.systems.cocoserve import (
    Estimate,
    Placement,
    gamma_of,
    module_of,
    operation_costs,
    room_of,
    scale_up,
)
from experiments.papers.cocoserve.batch_server import MODEL, NODE, Served

__all__ = ["OURS", "SAID", "coco", "copied_layers", "cut", "gain", "under", "vllm"]

# readings that a server, and those that CoCoServe's planner and scheduler can say
SAID: Final = frozenset(one.name for one in fields(Served))
OURS: Final = frozenset({"batching", "gamma", "t_up"})


@cache
def copied_layers(gamma: str | float = 0.0, t_up: float = 0.3) -> int:
    """Return 13B's layers copied by Algorithm 1."""
    spec, node = load_spec(MODEL), load_node(NODE)
    link, gpu = node.link(0, 1), node.platforms[1].gpu
    assert link is not None  # every two cards of the node have one
    if gamma == "literal":
        gamma = gamma_of(1.0, gpu.bf16_tflops, link.gbps, spec.hidden)
    free = (1.0 - t_up) * gpu.hbm_bytes - operation_costs().process_bytes
    copied = module_of(spec, "layer").allocated_bytes
    room = room_of({1: free}, {}, layer_bytes=copied, layers=spec.layers)
    placement = scale_up(Placement.unscaled(spec.layers), room, Estimate.printed(float(gamma)))
    return sum(count > 1 for count in placement.counts)


def vllm(base: Served) -> Served:
    """Return the model in an engine with continuous batches."""
    return replace(base, engine="continuous")


def coco(
    base: Served, *, batching: str = "continuous", gamma: str | float = 0.0, t_up: float = 0.3
) -> Served:
    """Return CoCoServe: a server with Algorithm 1's copies, under three readings."""
    layers = copied_layers(gamma, t_up) if base.split == 1 else 0
    return replace(base, layers=layers, engine=batching)


def under(base: Served, reading: Mapping[str, Any]) -> tuple[Served, dict[str, Any]]:
    """Return a server under a reading, and the reading's further fields."""
    changes = {name: value for name, value in reading.items() if name in SAID}
    return replace(base, **changes), {k: v for k, v in reading.items() if k not in SAID}


def gain(ours: float, theirs: float) -> float:
    """Return the increase from theirs to ours, in percent."""
    return 100.0 * (ours / theirs - 1.0)


def cut(ours: float, theirs: float) -> float:
    """Return the decrease from theirs to ours, in percent."""
    return 100.0 * (1.0 - ours / theirs)
