"""Programs of the configurations in use, for ahead-of-time compilation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pallas_kernels.attention.specs import MODEL_HEADS
from pallas_kernels.program import Argument, Program
from pallas_kernels.woven.api import run_poll, run_receive, run_send
from pallas_kernels.woven.config import (
    SendConfig,
    poll_bytes,
    poll_config,
    receive_bytes,
    send_bytes,
)
from pallas_kernels.woven.exchange import Exchange, Polling, Shared
from pallas_kernels.woven.slot import SlotShape

_ATTENDS = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "UBLKCP", "USETMAXREG"})
_MOVES = frozenset({"UBLKCP"})
_NO_ATTENTION = frozenset({"HGMMA", "UTMAREDG", "USETMAXREG"})

PAGE = 64  # tokens, as c2c has them
CONTEXT = 4096  # tokens of the longest sequence


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs of both sides."""
    del sm_count  # as many CTAs as sequences, heads and splits
    entries: list[Program] = []
    for model in ("llama-3.1-8b", "qwen3-30b-a3b", "llama-3.2-1b"):
        for rows, splits, outstanding in ((8, 4, 1), (128, 1, 1)):
            entries += _of(model, _exchange(model, rows, splits, outstanding), PAGE, 2)
    entries += _of("float16", _exchange("llama-3.1-70b", 16, 2, 3, dtype="float16"), 16, 1)
    return tuple(entries)


def _exchange(
    model: str, rows: int, splits: int, outstanding: int, *, dtype: str = "bfloat16"
) -> Exchange:
    heads, kv_heads, dim = MODEL_HEADS[model]
    pages = CONTEXT // (16 if dtype == "float16" else PAGE)
    slot = SlotShape(
        rows=rows, heads=heads, kv_heads=kv_heads, head_dim=dim, dtype=dtype,
        outstanding=outstanding, pages=pages,
    )  # fmt: skip
    return Exchange(slot=slot, splits=splits)


def _of(label: str, exchange: Exchange, page: int, layers: int) -> tuple[Program, ...]:
    s = exchange.slot
    polling = Polling(
        exchange=exchange, pages=s.rows * s.pages * layers, page=page,
        layers=layers,
    )  # fmt: skip
    return (
        send_program(label, exchange, SendConfig()),
        poll_program(label, polling),
        receive_program(label, exchange),
    )


def send_program(label: str, exchange: Exchange, config: SendConfig) -> Program:
    """Return the program that sends all rows."""
    s = exchange.slot
    run = functools.partial(run_send, exchange=exchange, config=config, backend="sm90")
    heads = (s.heads, s.kv_heads, s.kv_heads)
    qkv = [Argument(shape=(s.rows, h, s.head_dim), dtype=s.dtype) for h in heads]
    scalars = [Argument(shape=(size,), dtype="int32") for size in (5, 1)]
    return _program("send", label, exchange, run, (*scalars, *qkv), send_bytes(exchange, config))


def poll_program(label: str, polling: Polling) -> Program:
    """Return one poll's program, which donates the pools."""
    exchange, config = polling.exchange, poll_config(polling)
    s = exchange.slot
    run = functools.partial(run_poll, polling=polling, config=config, backend="sm90")
    pool = Argument(shape=(polling.pages, polling.page, s.kv_heads, s.head_dim), dtype=s.dtype)
    numbers = [
        Argument(shape=(exchange.ctas, 4), dtype="int32"),
        Argument(shape=(polling.layers,), dtype="int32"),
    ]
    return _program(
        "poll", f"{label} pages of {polling.page}", exchange, run, (*numbers, pool, pool),
        poll_bytes(polling, config), attends=True,
    )  # fmt: skip


def receive_program(label: str, exchange: Exchange) -> Program:
    """Return the program that takes a task's results."""
    run = functools.partial(run_receive, exchange=exchange, backend="sm90")
    scalars = [Argument(shape=(size,), dtype="int32") for size in (5, 1, 1)]
    return _program("receive", label, exchange, run, tuple(scalars), receive_bytes(exchange))


def _program(
    call: str, label: str, exchange: Exchange, run: Callable[..., Any],
    others: tuple[Argument, ...], shared_bytes: int, *, attends: bool = False,
) -> Program:  # fmt: skip
    shapes = exchange.shapes()
    host_args = tuple(Argument(shape=spec[0], dtype=spec[1], host=True) for spec in shapes.values())

    def function(*arrays: Any) -> Any:
        shared = Shared(**dict(zip(shapes, arrays, strict=False)))
        return run(shared, *arrays[len(shapes) :])

    s, count = exchange.slot, len(host_args) + len(others)
    return Program(
        op="woven",
        name=f"{call} {label} {s.rows} rows, {exchange.splits} splits, {s.outstanding} outstanding",
        function=function,
        arguments=(*host_args, *others),
        shared_bytes=shared_bytes,
        opcodes=_ATTENDS if attends else _MOVES,
        absent=frozenset({"UTMAREDG"}) if attends else _NO_ATTENTION,
        donated=(count - 2, count - 1) if attends else (),
    )
