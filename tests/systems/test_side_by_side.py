"""A catalog over nodes: each model's requests are served as on nodes of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.config import build, load
from c2c.errors import SettingError
from c2c.serving import ServingSetup
from tests.simulator.worlds import random_requests, simulate
from tests.tiers import tiered

CATALOG = "catalog.models=[{spec: llama-3-3b, copies: 2}, {spec: llama-3-8b, copies: 2}]"
SETTINGS = {
    "tessera": (), "replicas": (), "pd": (), "af": (),
    "weaver": ("system.layout.ratio=1",),  # homes are drawn by a request's id
    "cocoserve": ("system.layout.replicated=20", "system.layout.memory_share=0.5"),
}  # fmt: skip


def made(system: str, *settings: str) -> ServingSetup:
    words = [f"system={system}", "workload=poisson", "catalog=dense6", CATALOG, "superchips=5"]
    return build(load([*words, *SETTINGS[system], *settings])).serving


def times_s(records: Any) -> np.ndarray:
    columns = ["arrival_s", "started_s", "first_token_s", "finished_s"]
    return np.stack([records[name] for name in columns])


@pytest.mark.parametrize("system", tiered(SETTINGS, slow=2))
def test_models_on_nodes_of_their_own_are_served_as_alone(system: str) -> None:
    what = made(system)
    kinds = what.system.layout.nodes  # type: ignore[union-attr]
    assert sorted(name for kind in kinds for name in kind.models) == sorted(
        d.name for d in what.deployments
    )
    block = random_requests(120, 4, 8.0, 3)
    records, stats, simulation = simulate(what, block, compiled=True)
    assert not records.failure.any()
    names = [d.name for d in what.deployments]
    copied_bytes = 0.0
    for kind, part in zip(kinds, what.parts, strict=True):
        models = [names.index(name) for name in kind.models]
        here = np.isin(block.model, models)
        alone = replace(block, **{
            name: getattr(block, name)[here]
            for name in ("arrival_s", "prompt_tokens", "output_tokens")
        }, model=np.searchsorted(models, block.model[here]).astype(np.int32))  # fmt: skip
        specs = ",".join(f"{{spec: {what.deployments[m].spec.name}}}" for m in models)
        own = made(system, f"catalog.models=[{specs}]", f"superchips={part.count}")
        found, own_stats, _ = simulate(own, alone, compiled=True)
        np.testing.assert_array_equal(times_s(found), times_s(records[here]))
        copied_bytes += own_stats.relayout_bytes
    assert stats.relayout_bytes == copied_bytes
    assert not simulation.state.device.kv_bytes.any()


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(SettingError, match=r"superchips=3: expected at least 4, a node for each"):
        made("tessera", "superchips=3")
