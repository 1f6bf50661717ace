"""Section `woven`: attention of some sequences away, through pinned host memory, on one GPU.

Sender and receiver are kernels of one process here, one after the other in a stream. First results
are checked against decode attention, to the bit where keys are not split. Then are timed: a poll
that finds nothing, a poll with a task beside decode attention of the same rows, sending, receiving,
and all three. Waits of a pair that runs at once are listed as unmeasured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu.cases import Case, Context, Row, Scale, Unmeasurable
from experiments.gpu.timing import time_launches
from pallas_kernels.attention import decode_attention
from pallas_kernels.host_memory import to_host
from pallas_kernels.woven import (
    Exchange,
    SendConfig,
    Shared,
    SlotShape,
    Status,
    poll,
    receive,
    send,
)
from pallas_kernels.woven.api import run_poll, run_receive, run_send
from pallas_kernels.woven.config import poll_config
from pallas_kernels.woven.exchange import ANSWERED, LOOKED, NOTHING, SENT, TOOK, Polling

UNMEASURED: Mapping[str, str] = {
    "two GPUs": "one GPU: sender and receiver do not run at once, so no wait is measured",
    "two processes": "one GPU: processes take turns on it by slices of time, which are the waits",
}
_PAGE = 64
_HEADS: Mapping[Scale, tuple[int, int, int]] = {
    "full": (32, 8, 128), "quick": (32, 8, 128), "tiny": (4, 2, 64),
}  # fmt: skip
_ROWS: Mapping[Scale, tuple[int, ...]] = {
    "full": (8, 16, 32, 64, 128), "quick": (8, 128), "tiny": (2,),
}  # fmt: skip
_TOKENS: Mapping[Scale, int] = {"full": 1024, "quick": 1024, "tiny": 70}
_TASKS = 6  # of a check, two at once: numbers wrap and lanes come again
_FIRST = 2**32 - 3


def cases(scale: Scale) -> list[Case]:
    """List what is checked, then what is timed, then what is left open."""
    rows = _ROWS[scale]
    shapes = [(n, splits) for n in rows for splits in ((1, 4) if n == rows[0] else (1,))]
    found = [_case("results", *shape) for shape in shapes]
    for what in ("empty poll", "poll", "decode attention"):
        found += [_case(what, *shape) for shape in shapes]
    found += [_case("send", n, 1, cluster) for n in rows for cluster in (1, 4, 8)]
    found += [_case(what, *shape) for what in ("receive", "all three") for shape in shapes]
    return [*found, *(Case(spec={"what": what}) for what in UNMEASURED)]


def _case(what: str, rows: int, splits: int, cluster: int = 4) -> Case:
    more = {"cluster": cluster} if what == "send" else {}
    return Case(spec={"what": what, "rows": rows, "splits": splits, **more}, limit_s=60.0)


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Check results, or time one of the calls.

    Raises:
      Unmeasurable: it takes two GPUs.
      AssertionError: a result is wrong.
    """
    what = spec["what"]
    if what in UNMEASURED:
        raise Unmeasurable(UNMEASURED[what])
    pair = _pair(spec["rows"], spec["splits"], context)
    if what == "results":
        return [_checked(pair)]
    config = SendConfig(cluster=spec.get("cluster", 4))
    calls: Mapping[str, Callable[[], Callable[[int], Any]]] = {
        "empty poll": lambda: _polls(pair, NOTHING),
        "poll": lambda: _polls(pair, TOOK),
        "decode attention": lambda: _attends(pair),
        "send": lambda: _sends(pair, config),
        "receive": lambda: _receives(pair),
        "all three": lambda: _round(pair, config),
    }
    times = time_launches(calls[what](), target_s=context.target_s, repetitions=context.repetitions)
    slot = pair.exchange.slot
    amounts: Row = {"ctas": pair.exchange.ctas, "context": pair.tokens}
    if what in ("send", "receive"):
        each = slot.sent_bytes if what == "send" else _returned(pair)
        amounts |= {"bytes": slot.rows * each, "gbps": slot.rows * each / times.median_s / 1e9}
    return [amounts | times.columns()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """What both sides have: sequences of `tokens` with the newest one still missing."""

    exchange: Exchange
    polling: Polling
    backend: Any
    tokens: int
    shared: Shared
    payload: tuple[jax.Array, jax.Array, jax.Array]
    table: jax.Array
    pools: tuple[jax.Array, jax.Array]
    windows: jax.Array

    @property
    def run_poll(self) -> Any:
        """A poll without checks in Python."""
        return functools.partial(
            run_poll, polling=self.polling, config=poll_config(self.polling), backend=self.backend
        )


def _pair(rows: int, splits: int, context: Context) -> _Pair:
    heads, kv_heads, dim = _HEADS[context.scale]
    tokens = _TOKENS[context.scale]
    pages = -(-tokens // _PAGE)
    slot = SlotShape(
        rows=rows, heads=heads, kv_heads=kv_heads, head_dim=dim, outstanding=2, pages=pages
    )
    exchange = Exchange(slot=slot, splits=splits)
    table = np.random.default_rng(context.seed).permutation(rows * pages).astype(np.int32)
    table = table.reshape(rows, pages)
    shared = exchange.new(first=_FIRST)
    shared.publish(table, np.full(rows, tokens, np.int32))
    sizes = [(rows, n, dim) for n in (heads, kv_heads, kv_heads)]
    sizes += [(rows * pages, _PAGE, kv_heads, dim)] * 2
    keys = jax.random.split(jax.random.key(context.seed), len(sizes))
    arrays = [jax.random.normal(key, of, jnp.bfloat16) for key, of in zip(keys, sizes, strict=True)]
    polling = Polling(exchange=exchange, pages=rows * pages, page=_PAGE, scale=dim**-0.5)
    # Beside a GPU's kernels no computation takes what is in host memory.
    place = (lambda array: to_host(array).data) if context.backend == "sm90" else jnp.asarray
    placed = jax.tree.map(place, shared)
    return _Pair(
        exchange=exchange, polling=polling, backend=context.backend, tokens=tokens, shared=placed,
        payload=(arrays[0], arrays[1], arrays[2]), table=jnp.asarray(table),
        pools=(arrays[3], arrays[4]), windows=jnp.full(1, 1 << 30, jnp.int32),
    )  # fmt: skip


def _checked(pair: _Pair) -> Row:
    """Compare results of tasks, two outstanding at a time, with those of decode attention."""
    sender, receiver = pair.exchange.sender(first=_FIRST), pair.exchange.receiver(first=_FIRST)
    shared, pools = pair.shared, [jnp.array(pool) for pool in pair.pools]
    worst, same = 0.0, 0
    q, k, v = pair.payload
    for task in range(0, _TASKS, 2):
        asked = [q * (1 + task), q - task]
        for each in asked:
            sent = send(shared, sender, each, k, v, backend=pair.backend)
            shared, sender = sent.shared, sent.state
        looked = []
        for _ in range(3):
            polled = poll(shared, receiver, *pools, backend=pair.backend)
            shared, receiver, pools = polled.shared, polled.state, [polled.k_pages, polled.v_pages]
            looked.append(set(np.asarray(receiver)[:, LOOKED].tolist()))
        if looked != [{TOOK}, {TOOK}, {NOTHING}]:
            raise AssertionError(f"polls found {looked}: expected two tasks, then none")
        for each in asked:
            got = receive(shared, sender, looks=1000, backend=pair.backend)
            sender = got.state
            if (status := np.asarray(got.status)).any():
                raise AssertionError(f"statuses {sorted({Status(s).name for s in status})}")
            lengths = jnp.full(len(q), pair.tokens, jnp.int32)
            right = decode_attention(each, *pools, pair.table, lengths, backend=pair.backend)
            apart = np.abs(np.asarray(got.out, np.float32) - np.asarray(right, np.float32))
            same += int((apart == 0).sum())
            worst = max(worst, float(apart.max()))
    if worst > 2**-6 * 4:  # values are below 4: a few units in the last place of bfloat16
        raise AssertionError(f"results differ by {worst} from decode attention")
    return {"tasks": _TASKS, "elements": _TASKS * q.size, "same": same, "largest_error": worst}


def _polls(pair: _Pair, found: int) -> Callable[[int], Any]:
    """Return polls that all see the same task, or none."""
    state = pair.exchange.receiver(first=_FIRST)
    sent = run_send(
        pair.shared, jnp.asarray(pair.exchange.sender(first=_FIRST)), _one(len(pair.payload[0])),
        *pair.payload, exchange=pair.exchange, config=SendConfig(), backend=pair.backend,
    )  # fmt: skip
    shared, seen = sent[0] or pair.shared, jax.block_until_ready(sent[1])
    state[:, ANSWERED] = int(seen[SENT]) - found
    fixed, pools = jnp.asarray(state), list(pair.pools)

    def launch(_: int) -> Any:
        _, after, *pools[:] = pair.run_poll(shared, fixed, pair.windows, *pools)
        return after

    looked = set(np.asarray(launch(0))[:, LOOKED].tolist())
    if looked != {TOOK if found else NOTHING}:
        raise AssertionError(f"a poll found {looked}, expected {found}")
    return launch


def _attends(pair: _Pair) -> Callable[[int], Any]:
    """Return decode attention of the same rows, with the same tiles and splits."""
    lengths = jnp.full(len(pair.payload[0]), pair.tokens, jnp.int32)
    config = None if pair.backend == "reference" else poll_config(pair.polling)
    run: Any = jax.jit(functools.partial(decode_attention, config=config, backend=pair.backend))
    return lambda _: run(pair.payload[0], *pair.pools, pair.table, lengths)


def _sends(pair: _Pair, config: SendConfig) -> Callable[[int], Any]:
    """Return launches that all send the same task."""
    state, rows = jnp.asarray(pair.exchange.sender(first=_FIRST)), _one(len(pair.payload[0]))
    run = functools.partial(run_send, exchange=pair.exchange, config=config, backend=pair.backend)
    return lambda _: run(pair.shared, state, rows, *pair.payload)[1]


def _receives(pair: _Pair) -> Callable[[int], Any]:
    """Return launches that all take the result of a task that is answered."""
    state = pair.exchange.receiver(first=_FIRST)
    rows = _one(len(pair.payload[0]))
    shared = _answered(pair, jnp.asarray(state), rows)
    sender = jnp.asarray(pair.exchange.sender(first=_FIRST))
    run = functools.partial(run_receive, exchange=pair.exchange, backend=pair.backend)
    if (codes := np.asarray(run(shared, sender, rows, _one(1000))[1])).any():
        raise AssertionError(f"statuses {sorted(set(codes.ravel().tolist()))}: expected 0")
    return lambda _: run(shared, sender, rows, _one(1000))[0]


def _answered(pair: _Pair, state: jax.Array, rows: jax.Array) -> Shared:
    sender = jnp.asarray(pair.exchange.sender(first=_FIRST))
    written, _ = run_send(
        pair.shared, sender, rows, *pair.payload, exchange=pair.exchange, config=SendConfig(),
        backend=pair.backend,
    )  # fmt: skip
    pools = [jnp.array(pool) for pool in pair.pools]
    answered, after, *_ = pair.run_poll(written or pair.shared, state, pair.windows, *pools)
    jax.block_until_ready(after)
    return answered or pair.shared


def _round(pair: _Pair, config: SendConfig) -> Callable[[int], Any]:
    """Return whole tasks: each sent, done and received, one after another."""
    rows, looks = _one(len(pair.payload[0])), _one(1000)
    kept: dict[str, Any] = {
        "shared": pair.shared,
        "sender": jnp.asarray(pair.exchange.sender(first=_FIRST)),
        "receiver": jnp.asarray(pair.exchange.receiver(first=_FIRST)),
        "pools": [jnp.array(pool) for pool in pair.pools],
    }
    own = {"exchange": pair.exchange, "backend": pair.backend}

    def launch(_: int) -> Any:
        sender, shared = kept["sender"], kept["shared"]
        written, sender = run_send(shared, sender, rows, *pair.payload, config=config, **own)
        shared = written or shared
        written, kept["receiver"], *pools = pair.run_poll(
            shared, kept["receiver"], pair.windows, *kept["pools"]
        )
        shared = written or shared
        out, _, kept["sender"] = run_receive(shared, sender, rows, looks, **own)
        kept["shared"], kept["pools"] = shared, pools
        return out

    return launch


def _one(number: int) -> jax.Array:
    return jnp.full(1, number, jnp.int32)


def _returned(pair: _Pair) -> int:
    """Return the bytes of a row's results: parts are float32, with a sum for each head."""
    slot, splits = pair.exchange.slot, pair.exchange.splits
    if splits == 1:
        return slot.returned_bytes
    return splits * (2 * slot.returned_bytes + slot.kv_heads * 64 * 4)
