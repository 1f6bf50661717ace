"""`send`, `poll` and `receive`."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import Number, concrete, interpret_settings
from pallas_kernels.attention import checks
from pallas_kernels.attention.config import DecodeConfig, check_decode
from pallas_kernels.attention.partial import merge_stacked
from pallas_kernels.attention.specs import UNBOUNDED
from pallas_kernels.capability import KernelUnavailable, device, missing
from pallas_kernels.hopper import expect
from pallas_kernels.host_memory import HostArray, host_ref, in_host_memory, weight_operand
from pallas_kernels.woven import sm90
from pallas_kernels.woven.config import SendConfig, check_poll, poll_config, send_bytes
from pallas_kernels.woven.exchange import Exchange, Polling, Sends, Shared, exchange_of
from pallas_kernels.woven.slot import Status

Kernel = Literal["sm90", "interpret"]
"""The kernels on a Hopper GPU, or step by step on a CPU."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Result of `send`."""

    shared: Shared
    state: Any  # int32 [5] of the sender

    @property
    def went(self) -> Any:
        """True: sent; False: the most tasks are outstanding."""
        return self.state[Sends.WENT] != 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """Result of `poll`."""

    shared: Shared
    state: Any  # int32 [ctas, 4] of the receiver
    k_pages: Any
    v_pages: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Result of `receive`."""

    out: Any  # [rows, heads, head_dim]; 0 where a CTA's status is not `DONE`
    codes: Any  # int32 [splits, rows, kv_heads], of `Status`
    state: Any  # int32 [5] of the sender

    @property
    def status(self) -> Any:
        """Worst status of each row's CTAs, int32 [rows]; only `DONE` is valid."""
        return self.codes.max(axis=(0, 2))


def send(
    shared: Shared,
    state: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    rows: Number | None = None,
    config: SendConfig | None = None,
    backend: Kernel = "sm90",
) -> Sent:
    """Write a task's queries, keys and values to the shared arrays, then its number.

    Args:
      shared: arrays of `Exchange.new`, for "sm90" in pinned host memory, written in place;
        "interpret" returns new ones.
      state: int32 [5], from `Exchange.sender`, then from the last `Sent` or `Received`.
      q: [N, heads, head_dim] in device memory, N up to the shared rows.
      k: [N, kv_heads, head_dim], like v.
      rows: of the N rows, from 1; None: all.

    Raises:
      ValueError: an argument outside its range, or other shapes.
      KernelUnavailable: no device for `backend`.
    """
    exchange, arrays = _start(shared, backend)
    slot, config = exchange.slot, config or SendConfig()
    send_bytes(exchange, config)
    for name, array, heads in (
        ("q", q, slot.heads),
        ("k", k, slot.kv_heads),
        ("v", v, slot.kv_heads),
    ):
        got = (np.shape(array)[1:], str(getattr(array, "dtype", type(array).__name__)))
        expect(got == ((heads, slot.head_dim), slot.dtype), name, got,
               f"[N, {heads}, {slot.head_dim}] of {slot.dtype} as in shared")  # fmt: skip
        expect(len(array) == len(q), f"rows of {name}", len(array), f"{len(q)} as of q")
    expect(1 <= len(q) <= slot.rows, "rows of q", len(q), f"1 to {slot.rows} as in shared")
    count = len(q) if rows is None else concrete("rows", rows, int)
    expect(count is None or 1 <= count <= len(q), "rows", count, f"1 to {len(q)}")
    many = jnp.clip(jnp.asarray(len(q) if rows is None else rows, jnp.int32), 1, len(q))
    written, state = run_send(
        arrays, _state(state, (5,)), many.reshape(1), *map(jnp.asarray, (q, k, v)),
        exchange=exchange, config=config, backend=backend,
    )  # fmt: skip
    return Sent(shared=written or shared, state=state)


def poll(
    shared: Shared,
    state: Any,
    k_pages: Any,
    v_pages: Any,
    *,
    windows: Any = None,
    layers: int = 1,
    stride: int = 1,
    config: DecodeConfig | None = None,
    backend: Kernel = "sm90",
) -> Polled:
    """Look once for a task; append its keys and values, attend, answer.

    A row's newest token is at `shared.lengths` - 1; without its page the answer is `NO_BLOCKS`. A
    task of another version of the table gets `OTHER_TABLE`.

    Args:
      state: int32 [ctas, 4], from `Exchange.receiver`, then from the last `Polled`.
      k_pages: [pages, page, kv_heads, head_dim], like v_pages; donated, and returned.
      windows: int32 [layers], positions seen; None: all.
      stride: pages between consecutive layers.
      config: tiles, with the shared arrays' splits.

    Raises:
      ValueError: as `send`, or unsupported sizes.
      KernelUnavailable: as `send`.
    """
    exchange, arrays = _start(shared, backend)
    slot = exchange.slot
    checks.check_arrays(
        k_pages=(k_pages, 4, "[P, page, Hkv, D]"), v_pages=(v_pages, 4, "[P, page, Hkv, D]")
    )
    expect(v_pages.shape == k_pages.shape, "v_pages", v_pages.shape, f"{k_pages.shape}")
    got = (tuple(k_pages.shape[2:]), str(k_pages.dtype))
    layout = ((slot.kv_heads, slot.head_dim), slot.dtype)
    expect(got == layout, "k_pages", got, f"{layout} as in shared")
    polling = Polling(
        exchange=exchange, pages=int(k_pages.shape[0]), page=int(k_pages.shape[1]),
        layers=layers, stride=stride,
    )  # fmt: skip
    config = config or poll_config(polling)
    check_decode(polling.attention, config)
    check_poll(polling, config)
    seen = checks.per_row(
        "windows", UNBOUNDED if windows is None else windows, layers, 1, UNBOUNDED
    )
    written, state, k_pages, v_pages = run_poll(
        arrays, _state(state, (exchange.ctas, 4)), jnp.asarray(seen),
        jnp.asarray(k_pages), jnp.asarray(v_pages),
        polling=polling, config=config, backend=backend,
    )  # fmt: skip
    return Polled(shared=written or shared, state=state, k_pages=k_pages, v_pages=v_pages)


def receive(
    shared: Shared,
    state: Any,
    *,
    rows: Number | None = None,
    looks: Number = 1,
    backend: Kernel = "sm90",
) -> Received:
    """Wait for the next result, for at most `looks` of each CTA, and take it.

    Args:
      state: int32 [5], from the last `Sent` or `Received`.
      rows: of the task; None: the most.
      looks: most looks at an answer's number, from 1.

    Returns:
      Rows, statuses, and the state. After a `TIME_OUT` the state waits for the same task.

    Raises:
      ValueError: as `send`.
      KernelUnavailable: as `send`.
    """
    exchange, arrays = _start(shared, backend)
    most = exchange.slot.rows
    numbers = []
    for name, value, high in (
        ("rows", most if rows is None else rows, most),
        ("looks", looks, None),
    ):
        number = concrete(name, value, int)
        allowed = "a whole number above 0" if high is None else f"1 to {high}"
        expect(number is None or 1 <= number <= (high or 2**31 - 1), name, number, allowed)
        numbers.append(jnp.clip(jnp.asarray(value, jnp.int32), 1, high).reshape(1))
    out, codes, state = run_receive(
        arrays, _state(state, (5,)), *numbers, exchange=exchange, backend=backend
    )
    return Received(out=out, codes=codes, state=state)


@functools.partial(jax.jit, static_argnames=("exchange", "config", "backend"))
def run_send(
    shared: Shared, state: Any, rows: Any, q: Any, k: Any, v: Any,
    *, exchange: Exchange, config: SendConfig, backend: Kernel,
) -> tuple[Shared | None, jax.Array]:  # fmt: skip
    """Run the kernel; written in place, the shared arrays are None."""
    shared = jax.tree.map(host_ref, shared)
    tokens, many = q.shape[0], exchange.slot.outstanding * exchange.slot.rows
    kernel = sm90.build_send(exchange, config, tokens, interpret=interpret_settings(backend))
    sides = {"q": (many, -1), "k": (many, -1), "v": (many, -1), "asked": (-1,), "task": (1,)}
    arrays = {name: getattr(shared, name).reshape(shape) for name, shape in sides.items()}
    qkv = [array.reshape(tokens, -1) for array in (q, k, v)]
    state, written = _in_place(
        lambda refs: kernel(state, rows, *qkv, shared.version, *refs.values()),
        arrays, shared, backend,
    )  # fmt: skip
    return written, state


@functools.partial(
    jax.jit, static_argnames=("polling", "config", "backend"), donate_argnames=("k", "v")
)
def run_poll(
    shared: Shared, state: Any, windows: Any, k: Any, v: Any,
    *, polling: Polling, config: DecodeConfig, backend: Kernel,
) -> tuple[Shared | None, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Run the kernel, input and output pools aliased."""
    exchange, shared = polling.exchange, jax.tree.map(host_ref, shared)
    slot = exchange.slot
    kernel = sm90.build_poll(polling, config, interpret=interpret_settings(backend))
    rows = slot.outstanding * slot.rows * slot.kv_heads
    heads = (rows, exchange.group, slot.head_dim)
    requests, q = shared.asked.reshape(-1), shared.q.reshape(heads)
    new = [array.reshape(rows, slot.head_dim) for array in (shared.k, shared.v)]
    sides = {
        "out": (exchange.splits * rows, *heads[1:]),
        "lse": (slot.outstanding * exchange.ctas, -1),
        "status": (-1,),
        "done": (-1,),
    }
    arrays = {name: getattr(shared, name).reshape(shape) for name, shape in sides.items()}
    pools = [jax.new_ref(array) for array in (k, v)]
    state, written = _in_place(
        lambda refs: kernel(
            shared.task, shared.version, shared.lengths, shared.table, requests, q, *new,
            *refs.values(), windows, state, *pools,
        ),
        arrays, shared, backend,
    )  # fmt: skip
    k, v = map(jax.freeze, pools)
    return written, state, k, v


@functools.partial(jax.jit, static_argnames=("exchange", "backend"))
def run_receive(
    shared: Shared, state: Any, rows: Any, looks: Any, *, exchange: Exchange, backend: Kernel
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Run the kernel, and merge the splits."""
    slot, many = exchange.slot, exchange.slot.outstanding * exchange.ctas
    shared = jax.tree.map(host_ref, shared)
    kernel = sm90.build_receive(exchange, interpret=interpret_settings(backend))
    out, lse, codes, state = kernel(
        state, rows, looks, shared.out.reshape(many, -1), shared.lse.reshape(many, -1),
        shared.status.reshape(-1), shared.done,
    )  # fmt: skip
    parts = (exchange.splits, slot.rows, slot.heads)
    out = out.reshape(*parts, slot.head_dim)
    if exchange.splits > 1:
        sums = jnp.where(codes[:, None] == Status.DONE, lse[:, : exchange.group], -jnp.inf)
        out = merge_stacked(out, sums.reshape(parts)).out.astype(slot.dtype)
    codes = codes.reshape(exchange.splits, slot.rows, slot.kv_heads)
    return out.reshape(slot.rows, slot.heads, slot.head_dim), codes, state


def _in_place(
    run: Any, arrays: dict[str, jax.Array], shared: Shared, backend: Kernel
) -> tuple[Any, Shared | None]:
    """Run a kernel that writes to its arrays; return results and arrays."""
    if backend == "sm90":
        return run(arrays), None
    refs = {name: jax.new_ref(array) for name, array in arrays.items()}
    result = run(refs)
    written = {
        name: jax.freeze(ref).reshape(getattr(shared, name).shape) for name, ref in refs.items()
    }
    return result, replace(shared, **written)


def _start(shared: Any, backend: Any) -> tuple[Exchange, Shared]:
    expect(backend in get_args(Kernel), "backend", backend, "one of sm90, interpret")
    expect(isinstance(shared, Shared), "shared", type(shared).__name__, "Shared")
    here = device()
    if reason := missing(backend, here):
        instead = tuple(kernel for kernel in get_args(Kernel) if not missing(kernel, here))
        raise KernelUnavailable(backend, reason, instead)
    exchange = exchange_of(shared)

    def taken(array: Any) -> Any:
        data = array.data if isinstance(array, HostArray) else array
        if backend != "sm90":
            return weight_operand(jnp.asarray(data), backend=backend)
        is_host = isinstance(data, jax.Array) and in_host_memory(data)
        expect(is_host, "shared", type(data).__name__, "jax arrays in pinned host memory (to_host)")
        return host_ref(data)

    arrays = {name: taken(getattr(shared, name)) for name in exchange.shapes()}
    return exchange, Shared(**arrays)


def _state(state: Any, shape: tuple[int, ...]) -> jax.Array:
    got = (tuple(np.shape(state)), str(getattr(state, "dtype", type(state).__name__)))
    expect(got == (shape, "int32"), "state", got, f"int32 of shape {shape}")
    return jnp.asarray(state)
