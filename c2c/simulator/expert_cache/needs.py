"""Experts of a step's tokens."""

from __future__ import annotations

from c2c.policies import jitable
from c2c.serving.tables.state import ENDS_AT, LENGTH, SLOT, Serving
from c2c.simulator.expert_cache.expert_state import Experts
from c2c.simulator.expert_cache.tokens import draw_token, follow, token_experts

__all__ = ["draw_step"]


@jitable
def _forget_step(x: Experts) -> None:
    # A model of other layers and experts may have run before.
    for layer in range(len(x.needs)):
        for k in range(x.needs[layer]):
            e = x.need[layer, k]
            x.is_needed[layer, e] = 0
            x.step[0, layer, e] = 0.0
        x.needs[layer] = 0


@jitable
def _take(x: Experts, d: int, arch: int, layer: int, position: int) -> None:
    # Add what the token that was drawn last takes in a layer.
    token_experts(x.tables.router, x.followed, d, arch, layer, position, x.token)
    n = x.needs[layer]
    for k in range(x.tables.router.per_token[arch]):
        e = x.token[k]
        x.step[0, layer, e] += 1.0
        if x.is_needed[layer, e] == 0:
            x.is_needed[layer, e] = 1
            x.need[layer, n] = e
            n += 1
    x.needs[layer] = n


@jitable
def _take_prompt(x: Experts, d: int, arch: int, first: int, last: int) -> None:
    # Add what the tokens at [first, last) of the request that is followed take, in each layer until
    # all its experts are needed.
    router = x.tables.router
    layers, experts = router.layers[arch], router.experts[arch]
    for position in range(first, last):
        draw_token(router, x.followed, d, arch, position)
        full = 0
        for layer in range(layers):
            if x.needs[layer] < experts:
                _take(x, d, arch, layer, position)
            else:
                full += 1
        if full == layers:
            break


@jitable
def draw_step(x: Experts, state: Serving, arch: int, i: int, d: int) -> None:
    """Draw the experts of each layer for instance `i`'s step."""
    router, inst = x.tables.router, state.instance[i]
    _forget_step(x)
    for k in range(inst.n_prefill):
        req = state.request[state.prefilling[i, k]]
        if req.step_tokens > 0:
            follow(router, x.followed, d, arch, req.id)
            _take_prompt(x, d, arch, req.prefilled, req.prefilled + req.step_tokens)
    for k in range(state.plan[d].decodes):
        req = state.request[state.decoding[i, k, SLOT]]
        rest = state.decoding[i, k, ENDS_AT] - inst.decode_clock
        position = state.decoding[i, k, LENGTH] - rest - 1
        follow(router, x.followed, d, arch, req.id)
        draw_token(router, x.followed, d, arch, position)
        for layer in range(router.layers[arch]):
            _take(x, d, arch, layer, position)
