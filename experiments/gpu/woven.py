"""Section `woven`: attention of some sequences away, through pinned host memory, on one GPU.

Sender and receiver are kernels of one process here, one after the other in a stream. First results
are checked against decode attention, to the bit where keys are not split. Then are timed: a poll
that finds nothing, a poll with a task beside decode attention of the same rows, sending, receiving,
and all three. Waits of a pair that runs at once are listed as unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu.cases import Case, Context, Row, Scale, Unmeasurable
from experiments.gpu.timing import time_launches
from pallas_kernels.attention import decode_attention
from pallas_kernels.attention.specs import GROUP_ROWS, UNBOUNDED
from pallas_kernels.host_memory import to_host
from pallas_kernels.woven import (
    Exchange,
    SendConfig,
    Shared,
    SlotShape,
    Status,
)
from pallas_kernels.woven.api import run_poll, run_receive, run_send
from pallas_kernels.woven.config import poll_config
from pallas_kernels.woven.exchange import Looked, Polling, Polls

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
_TASKS = 6  # of a check, two at once: numbers wrap, lanes come again
_FIRST = 2**32 - 3
_ERROR = 2**-4  # values are below 4: a few units in the last place of bfloat16


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
    pair = _Pair(spec["rows"], spec["splits"], context)
    if what == "results":
        return [_checked(pair)]
    launch = pair.launches(what, SendConfig(cluster=spec.get("cluster", 4)))
    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    amounts: Row = {"ctas": pair.exchange.ctas, "context": pair.tokens}
    if what in ("send", "receive"):
        slot, splits = pair.exchange.slot, spec["splits"]
        sums = slot.kv_heads * GROUP_ROWS * 4  # parts are float32 and have sums
        back = slot.returned_bytes if splits == 1 else splits * (2 * slot.returned_bytes + sums)
        nbytes = slot.rows * (slot.sent_bytes if what == "send" else back)
        amounts |= {"bytes": nbytes, "gbps": nbytes / times.median_s / 1e9}
    return [amounts | times.columns()]


class _Pair:
    """Both sides of an exchange, and sequences whose newest token is still to be appended."""

    def __init__(self, rows: int, splits: int, context: Context) -> None:
        heads, kv_heads, dim = _HEADS[context.scale]
        self.backend, self.tokens = context.backend, _TOKENS[context.scale]
        pages = -(-self.tokens // _PAGE)
        slot = SlotShape(
            rows=rows, heads=heads, kv_heads=kv_heads, head_dim=dim, outstanding=2, pages=pages
        )
        self.exchange = Exchange(slot=slot, splits=splits)
        order = np.random.default_rng(context.seed).permutation(rows * pages).astype(np.int32)
        shared = self.exchange.new(first=_FIRST)
        shared.publish(order.reshape(rows, pages), np.full(rows, self.tokens, np.int32))
        self.table = jnp.asarray(order.reshape(rows, pages))
        # Beside a GPU's kernels no computation takes what is in host memory.
        on_gpu = context.backend == "sm90"
        place = (lambda array: to_host(array).data) if on_gpu else jnp.asarray
        self.shared: Shared = jax.tree.map(place, shared)
        sizes: list[tuple[int, ...]] = [(rows, n, dim) for n in (heads, kv_heads, kv_heads)]
        sizes += [(rows * pages, _PAGE, kv_heads, dim)] * 2
        keys = jax.random.split(jax.random.key(context.seed), len(sizes))
        drawn = [
            jax.random.normal(key, of, jnp.bfloat16) for key, of in zip(keys, sizes, strict=True)
        ]
        self.payload, self.pools = drawn[:3], drawn[3:]
        self.polling = Polling(
            exchange=self.exchange, pages=rows * pages, page=_PAGE, scale=dim**-0.5
        )
        self.windows = jnp.full(1, UNBOUNDED, jnp.int32)
        self.rows, self.looks = jnp.full(1, rows, jnp.int32), jnp.full(1, 1000, jnp.int32)
        self.sender = jnp.asarray(self.exchange.sender(first=_FIRST))
        self.receiver = jnp.asarray(self.exchange.receiver(first=_FIRST))

    def attend(self, q: jax.Array) -> jax.Array:
        """Decode attention over the same pages, with the same tiles and splits."""
        lengths = jnp.full(len(q), self.tokens, jnp.int32)
        config = None if self.backend == "reference" else poll_config(self.polling)
        return decode_attention(
            q, self.pools[0], self.pools[1], self.table, lengths,
            config=config, backend=self.backend,
        )  # fmt: skip

    def send(self, config: SendConfig, *, goes_on: bool = True) -> Any:
        """Send without checks in Python; the state stays if the same is to be sent again."""
        written, state = run_send(
            self.shared, self.sender, self.rows, *self.payload,
            exchange=self.exchange, config=config, backend=self.backend,
        )  # fmt: skip
        self.shared = written or self.shared
        self.sender = state if goes_on else self.sender
        return state

    def poll(self, *, goes_on: bool = True) -> Any:
        """Poll likewise."""
        written, state, *self.pools = run_poll(
            self.shared, self.receiver, self.windows, *self.pools,
            polling=self.polling, config=poll_config(self.polling), backend=self.backend,
        )  # fmt: skip
        self.shared = written or self.shared
        self.receiver = state if goes_on else self.receiver
        return state

    def receive(self, *, goes_on: bool = True) -> Any:
        """Receive likewise."""
        out, codes, state = run_receive(
            self.shared, self.sender, self.rows, self.looks,
            exchange=self.exchange, backend=self.backend,
        )  # fmt: skip
        self.sender = state if goes_on else self.sender
        return out, codes

    def launches(self, what: str, config: SendConfig) -> Callable[[int], Any]:
        """Return launches to be timed: of one call the same each time, or of whole tasks.

        Raises:
          AssertionError: what a poll finds, or a status, is not as it should be.
        """
        if what == "decode attention":
            attend: Any = jax.jit(self.attend)
            return lambda _: attend(self.payload[0])
        if what == "send":
            return lambda _: self.send(config, goes_on=False)
        if what == "all three":
            return lambda _: (self.send(config), self.poll(), self.receive())[2]
        if what != "empty poll":
            self.send(config, goes_on=what != "receive")
        looked = set(np.asarray(self.poll(goes_on=what == "receive"))[:, Polls.LOOKED].tolist())
        if looked != {Looked.NOTHING if what == "empty poll" else Looked.TOOK}:
            raise AssertionError(f"{what}: a poll found {looked}")
        if what == "receive":
            if np.asarray(self.receive(goes_on=False)[1]).any():
                raise AssertionError("no result of a task that was answered")
            return lambda _: self.receive(goes_on=False)
        return lambda _: self.poll(goes_on=False)


def _checked(pair: _Pair) -> Row:
    """Compare results of tasks, two outstanding at a time, with those of decode attention."""
    worst, same, q = 0.0, 0, pair.payload[0]
    for task in range(0, _TASKS, 2):
        asked = [q * (1 + task), q - task]
        for each in asked:
            pair.payload[0] = each
            pair.send(SendConfig())
        looked = [set(np.asarray(pair.poll())[:, Polls.LOOKED].tolist()) for _ in range(3)]
        if looked != [{Looked.TOOK}, {Looked.TOOK}, {Looked.NOTHING}]:
            raise AssertionError(f"polls found {looked}: expected two tasks, then none")
        for each in asked:
            out, codes = (np.asarray(part) for part in pair.receive())
            if codes.any():
                raise AssertionError(f"statuses {sorted({Status(c).name for c in codes.ravel()})}")
            right = np.asarray(pair.attend(each), np.float32)
            apart = np.abs(out.astype(np.float32) - right)
            same, worst = same + int((apart == 0).sum()), float(np.max([worst, apart.max()]))
    if not worst <= _ERROR:  # NaN included
        raise AssertionError(f"results differ by {worst} from decode attention")
    return {"tasks": _TASKS, "elements": _TASKS * q.size, "same": same, "largest_error": worst}
