"""Woven attention at real sizes through pinned host memory: both sides in one process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import decode_attention
from pallas_kernels.attention.specs import UNBOUNDED
from pallas_kernels.host_memory import to_host
from pallas_kernels.woven import Exchange, SendConfig, SlotShape, Status, poll, receive, send
from pallas_kernels.woven.api import run_poll, run_receive, run_send
from pallas_kernels.woven.config import poll_config
from pallas_kernels.woven.exchange import Looked, Polling, Polls
from tests.compilations import compilations
from tests.gpu import exact

# Both sides are kernels of one stream, one after the other: no wait for another GPU is tested.
pytestmark = pytest.mark.gpu

ON_GPU = exact.BACKEND == "sm90"
BACKEND: Any = "sm90" if ON_GPU else "interpret"
HEADS, KV_HEADS, DIM = (32, 8, 128) if ON_GPU else (4, 2, 64)
TOKENS = 1024 if ON_GPU else 70
PAGE = 64
FIRST = 2**32 - 3  # numbers of tasks wrap, lanes come again
ERROR = 2**-4  # values are below 4: a few units in the last place of bfloat16


class Pair:
    """Both sides of an exchange, and sequences whose newest token is still to be appended."""

    def __init__(self, rows: int, splits: int) -> None:
        pages = -(-TOKENS // PAGE)
        slot = SlotShape(
            rows=rows, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, outstanding=2, pages=pages
        )
        self.exchange = Exchange(slot=slot, splits=splits)
        order = np.random.default_rng(0).permutation(rows * pages).astype(np.int32)
        shared = self.exchange.new(first=FIRST)
        shared.publish(order.reshape(rows, pages), np.full(rows, TOKENS, np.int32))
        self.table = jnp.asarray(order.reshape(rows, pages))
        # Beside a GPU's kernels no computation takes what is in host memory.
        place: Any = (lambda array: to_host(array).data) if ON_GPU else jnp.asarray
        self.shared = jax.tree.map(place, shared)
        sizes: list[tuple[int, ...]] = [(rows, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS)]
        sizes += [(rows * pages, PAGE, KV_HEADS, DIM)] * 2
        keys = jax.random.split(jax.random.key(0), len(sizes))
        drawn = [
            jax.random.normal(key, of, jnp.bfloat16) for key, of in zip(keys, sizes, strict=True)
        ]
        self.payload, self.pools = drawn[:3], drawn[3:]
        self.polling = Polling(exchange=self.exchange, pages=rows * pages, page=PAGE)
        self.windows = jnp.full(1, UNBOUNDED, jnp.int32)
        self.rows, self.looks = jnp.full(1, rows, jnp.int32), jnp.full(1, 1000, jnp.int32)
        self.sender = jnp.asarray(self.exchange.sender(first=FIRST))
        self.receiver = jnp.asarray(self.exchange.receiver(first=FIRST))

    def attend(self, q: jax.Array) -> np.ndarray:
        """Decode attention over the same pages, with the same tiles and splits."""
        config = poll_config(self.polling)
        lengths = jnp.full(len(q), TOKENS, jnp.int32)
        out = decode_attention(q, *self.pools, self.table, lengths, config=config, backend=BACKEND)
        return np.asarray(out, np.float32)

    def send(self) -> None:
        written, self.sender = run_send(
            self.shared, self.sender, self.rows, *self.payload,
            exchange=self.exchange, config=SendConfig(), backend=BACKEND,
        )  # fmt: skip
        self.shared = written or self.shared

    def poll(self) -> set[int]:
        """Return what a poll found."""
        written, self.receiver, *self.pools = run_poll(
            self.shared, self.receiver, self.windows, *self.pools,
            polling=self.polling, config=poll_config(self.polling), backend=BACKEND,
        )  # fmt: skip
        self.shared = written or self.shared
        return set(np.asarray(self.receiver)[:, Polls.LOOKED].tolist())

    def receive(self) -> tuple[np.ndarray, np.ndarray]:
        """Return results and statuses."""
        out, codes, self.sender = run_receive(
            self.shared, self.sender, self.rows, self.looks,
            exchange=self.exchange, backend=BACKEND,
        )  # fmt: skip
        return np.asarray(out, np.float32), np.asarray(codes)


@pytest.mark.parametrize(("rows", "splits"), [(1, 1), (1, 8), (8, 4), (64, 1), (128, 2)])
def test_results_are_those_of_decode_attention(rows: int, splits: int) -> None:
    pair = Pair(rows if ON_GPU else min(rows, 2), splits)
    q = pair.payload[0]
    for task in range(0, 6, 2):  # two at once
        asked = [q * (1 + task), q - task]
        for each in asked:
            pair.payload[0] = each
            pair.send()
        found = [pair.poll() for _ in range(3)]
        assert found == [{Looked.TOOK}, {Looked.TOOK}, {Looked.NOTHING}]
        for each in asked:
            out, codes = pair.receive()
            assert not codes.any()
            right = pair.attend(each)
            if splits == 1:
                np.testing.assert_array_equal(out, right)
            np.testing.assert_allclose(out, right, rtol=0, atol=ERROR)


def test_nothing_is_waited_for_beyond_the_looks() -> None:
    pair = Pair(2, 2)
    out, codes = pair.receive()
    assert (codes == Status.TIME_OUT).all()
    assert (out == 0).all()
    assert pair.poll() == {Looked.NOTHING}


def test_other_tasks_compile_nothing_and_what_is_shared_stays_where_it_is() -> None:
    pair = Pair(4, 1)

    def task() -> np.ndarray:
        pair.send()
        pair.poll()
        return pair.receive()[0]

    first = [task() for _ in range(2)]
    with compilations() as seen:
        outs = [task() for _ in range(20)]
    assert seen == []
    assert all((out == first[0]).all() for out in outs)
    assert pair.shared.q.sharding.memory_kind == ("pinned_host" if ON_GPU else "device")
    sent = send(pair.shared, pair.sender, *pair.payload, rows=1, backend=BACKEND)  # with checks
    assert bool(sent.went)
    got = receive(sent.shared, sent.state, rows=1, backend=BACKEND)
    assert np.asarray(got.status)[0] == Status.TIME_OUT
    polled = poll(sent.shared, pair.receiver, *pair.pools, backend=BACKEND)
    assert (np.asarray(polled.state)[:, Polls.LOOKED] == Looked.TOOK).all()
