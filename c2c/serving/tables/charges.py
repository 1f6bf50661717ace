"""Accounts of a request (steps, alpha, bytes) across instances."""

from __future__ import annotations

from c2c.policies import jitable
from c2c.serving.tables.state import SLOT, Serving

__all__ = ["charge", "keep_charge", "spare_decodes"]


@jitable
def charge(s: Serving, slot: int, has_tokens: bool) -> None:
    """Record a leaving request's totals on its instance."""
    req = s.request[slot]
    inst = s.instance[req.instance]
    req.was_steps = inst.sum_steps - req.from_steps
    req.was_alpha = inst.sum_alpha - req.from_alpha
    req.was_link = inst.sum_link - req.from_link
    req.was_hbm = inst.sum_hbm - req.from_hbm
    req.was_alone_s = (inst.sum_alone_s if has_tokens else 0.0) - req.from_alone_s


@jitable
def keep_charge(s: Serving, slot: int) -> None:
    """Start a request's accounts with earlier totals."""
    inst, req = s.instance[s.request[slot].instance], s.request[slot]
    req.from_steps = inst.sum_steps - req.was_steps
    req.from_alpha = inst.sum_alpha - req.was_alpha
    req.from_link = inst.sum_link - req.was_link
    req.from_hbm = inst.sum_hbm - req.was_hbm
    req.from_alone_s = inst.sum_alone_s - req.was_alone_s


@jitable
def spare_decodes(
    s: Serving, i: int, steps: float, alpha: float, link_bytes: float, hbm_bytes: float
) -> None:
    """Remove a step from instance `i`'s waiting decodes' accounts."""
    for k in range(s.instance[i].n_decode):
        req = s.request[s.decoding[i, k, SLOT]]
        req.from_steps += steps
        req.from_alpha += alpha
        req.from_link += link_bytes
        req.from_hbm += hbm_bytes
