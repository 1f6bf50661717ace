"""Stage `woven`: WEAVER's task through pinned host memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from experiments.lab.gpu.cases import Row
from experiments.lab.gpu.timing import time_launches
from experiments.lab.gpu.worker import Settings
from pallas_kernels.attention import decode_attention
from pallas_kernels.host_memory import to_host
from pallas_kernels.woven import Exchange, SlotShape, poll, receive, send

_PAGE: Final = 64


def measure(spec: Mapping[str, Any], settings: Settings) -> list[Row]:
    """Measure one case of `spec["what"]`.

    - task: send, attention of the polling kernel, answer;
    - empty_poll: a look at an empty slot;
    - alone: decode attention over the same pages without a slot.
    """
    launch = _launches(spec, settings)
    times = time_launches(launch, target_s=settings.target_s, repetitions=settings.repetitions)
    return [times.columns()]


def _launches(spec: Mapping[str, Any], settings: Settings) -> Callable[[int], Any]:
    heads, kv_heads, head = (4, 2, 64) if settings.tiny else (32, 8, 128)
    rows, tokens, pages = spec["rows"], spec["tokens"], -(-spec["tokens"] // _PAGE)
    keys = jax.random.split(jax.random.key(settings.seed), 5)
    draw = functools.partial(jax.random.normal, dtype=jnp.bfloat16)
    q, k, v = (
        draw(key, (rows, n, head))
        for key, n in zip(keys, (heads, kv_heads, kv_heads), strict=False)
    )
    pools = [draw(key, (rows * pages, _PAGE, kv_heads, head)) for key in keys[3:]]
    order = np.random.default_rng(settings.seed).permutation(rows * pages).astype(np.int32)
    tables, lengths = order.reshape(rows, pages), np.full(rows, tokens, np.int32)
    if spec["what"] == "alone":
        attend = jax.jit(functools.partial(decode_attention, backend=settings.backend))
        operands = (q, *pools, jnp.asarray(tables), jnp.asarray(lengths))
        return lambda _: attend(*operands)
    shape = SlotShape(
        rows=rows, heads=heads, kv_heads=kv_heads, head_dim=head, outstanding=2, pages=pages
    )
    exchange = Exchange(slot=shape, splits=1)
    shared = exchange.new(first=0)
    shared.publish(tables, lengths)
    backend: Any = "interpret" if settings.tiny else settings.backend
    place: Any = jnp.asarray if settings.tiny else lambda array: to_host(array).data
    state = {
        "shared": jax.tree.map(place, shared),
        "sender": jnp.asarray(exchange.sender(first=0)),
        "receiver": jnp.asarray(exchange.receiver(first=0)),
        "pools": pools,
    }

    def look() -> Any:
        polled = poll(state["shared"], state["receiver"], *state["pools"], backend=backend)
        state.update(
            shared=polled.shared, receiver=polled.state, pools=[polled.k_pages, polled.v_pages]
        )
        return polled.state

    def task(_: int) -> Any:
        sent = send(state["shared"], state["sender"], q, k, v, backend=backend)
        state.update(shared=sent.shared, sender=sent.state)
        look()
        got = receive(state["shared"], state["sender"], backend=backend)
        state["sender"] = got.state
        return got.out, got.codes

    if spec["what"] == "task":
        _, codes = task(0)
        if np.asarray(codes).any():
            raise RuntimeError(f"statuses {np.unique(np.asarray(codes))}: expected 0, done")
        return task
    return lambda _: look()
