"""Drafts of speculative decoding."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from c2c.errors import SettingError, refuse
from c2c.models import ModelSpec, host_bytes, load_spec, weight_bytes
from c2c.serving.prepare.settings import ServingSetup, SystemSpec

__all__ = ["check_drafts", "draft_of", "pass_size", "speculates", "stored_bytes"]

_LOOKUP = "lookup"
_spec = lru_cache(maxsize=64)(load_spec)


def speculates(system: SystemSpec, spec: ModelSpec) -> bool:
    """Return whether a model verifies drafted tokens."""
    return system.speculation.tokens > 0 and spec.name in system.speculation.drafts


def draft_of(system: SystemSpec, spec: ModelSpec) -> ModelSpec | None:
    """Return the model that drafts for a model, or None."""
    name = system.speculation.drafts.get(spec.name, _LOOKUP)
    return None if not speculates(system, spec) or name == _LOOKUP else _spec(name)


def draft_weights(system: SystemSpec, spec: ModelSpec) -> float:
    """Return the weight bytes of a model's draft."""
    draft = draft_of(system, spec)
    return 0.0 if draft is None else float(weight_bytes(draft))


def pass_size(system: SystemSpec, chunk: int) -> tuple[int, int]:
    """Return the most tokens of a pass, and rows."""
    rows = system.max_batch * (1 + system.speculation.tokens)
    return math.ceil(chunk / system.speculation.passes) + rows, rows


def stored_bytes(setup: ServingSetup) -> np.ndarray:
    """Return each deployment's bytes in host memory, with its draft; f8[D]."""
    drafts = [0.0 if d.adapter else draft_weights(setup.system, d.spec) for d in setup.deployments]
    stored: np.ndarray = host_bytes(setup.deployments) + np.array(drafts)
    return stored


def check_drafts(setup: ServingSetup) -> None:
    """Refuse drafts of no model, or beside excluded features."""
    system = setup.system
    tokens, where = system.speculation.tokens, "system.speculation"
    refuse(
        (tokens and not system.speculation.drafts, f"{where}.drafts", {},
         "a draft of at least one model", f"Set '+{where}.drafts.<model>=<its draft>'."),
    )  # fmt: skip
    names = dict.fromkeys(d.spec.name for d in setup.deployments)
    for name, draft in system.speculation.drafts.items():
        if name not in names:
            raise SettingError(f"{where}.drafts.{name}", draft, f"one of {', '.join(names)}")
        if draft != _LOOKUP:
            try:
                _spec(draft)
            except SettingError as error:
                allowed = f"lookup, {error.allowed}"
                raise SettingError(f"{where}.drafts.{name}", draft, allowed) from None
    beside = "whose HBM has no room for drafts"
    refuse(*(
        (tokens and excluded, f"{where}.tokens", tokens, f"0 with {feature}")
        for excluded, feature in (
            (system.layout is not None, "system.layout"),
            (system.traits.experts.caches_experts, "system.experts, which caches some"),
            (system.load_traits.swaps_weights, f"engines that swap weights, {beside}"),
            (system.shares_hbm, f"several engines of a slice in HBM, {beside}"),
            (any(d.adapter for d in setup.deployments), "adapters"),
        )
    ))  # fmt: skip
