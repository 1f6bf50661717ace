"""Requests before and during changes of the layout."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import jax
import numpy as np

from c2c.errors import SettingError
from c2c.ranges import Count, In, Index, check_fields
from c2c.systems.cocoserve.live.relayout import Moved, Relayout, ready_to_move
from c2c.systems.cocoserve.live.spread import OverDevices, Spread, layer_bytes
from c2c.transformer import (
    KvPool,
    Model,
    OnDevice,
    Request,
    Runner,
    Shapes,
    block_elements,
    serve,
)
from c2c.transformer.executables import in_host_memory
from c2c.transformer.layers.pages import PAGE_TOKENS, OutOfPages
from c2c.transformer.over_pools import Path
from c2c.transformer.running.stays import Laid
from experiments.random_requests import random_requests

__all__ = ["Change", "Done", "Load", "scaled"]

_jax: Any = jax  # parts of it are untyped


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of layout: kind, spread after it, and requests' paths."""

    kind: str
    layers: int
    spread: Spread
    homes: Mapping[int, Path]


Drawn = Callable[[OverDevices, random.Random], Change | None]


@dataclass
class Load:
    """Requests, and changes of layout.

    Attributes:
      requests: number of requests, with random prompts.
      operations: most changes, one after another.
      rows: most requests in a step.
      prompt: most tokens of a prompt.
      new: most tokens of an answer.
      piece_bytes: bytes that a change copies between two steps; null: half of a layer.
      seed: of prompts, lengths and changes.
    """

    requests: Count = 48
    operations: Index = 60
    rows: Annotated[int, In("[2, inf)")] = 16
    prompt: Count = 96
    new: Count = 48
    piece_bytes: Count | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(slots=True)
class Done:
    """Results of requests and operations.

    Attributes:
      logits: digest of each step's logits.
      operations: a row for each that ended.
      failed: operations without enough memory.
      compiled: executables compiled after the warm-up.
      counts: steps, changes of rows' devices and transitions.
      unequal: operations with unpredicted memory.
      left: blocks still held at the end.
    """

    texts: list[list[int]]
    logits: list[str] = field(default_factory=list)
    steps: int = 0
    operations: list[dict[str, Any]] = field(default_factory=list)
    failed: int = 0
    compiled: int = 0
    loaded: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    unequal: int = 0
    left: int = 0


def shapes_of(settings: Load) -> Shapes:
    """Return both runs' shapes, groups padded to all rows."""
    width = -(-(settings.prompt + settings.new) // PAGE_TOKENS)
    return Shapes(rows=(settings.rows,), budgets=(64,), width=width, mixes=False)


def _done(runner: Runner, requests: Sequence[Request]) -> Iterator[Done]:
    done = Done(texts=[])
    _record(runner, done.logits)
    for served in serve(runner, requests):
        done.texts, done.steps = served.texts, served.steps
        yield done


def _record(runner: Runner, logits: list[str]) -> None:
    executor: Any = runner.executor
    compute = executor.compute

    def noted(laid: Laid, tokens: Any, logit_indices: Any, *, has_logits: bool = True) -> Any:
        result = compute(laid, tokens, logit_indices, has_logits=has_logits)
        if has_logits:
            rows = [row for row, stay in enumerate(laid.drawing) if stay is not None]
            logits.append(hashlib.sha256(np.asarray(result)[rows].tobytes()).hexdigest())
        return result

    executor.compute = noted


def scaled(
    model: Model,
    settings: Load,
    devices: Sequence[Any],
    drawn: Drawn,
    *,
    report: Callable[[int], None] = lambda _: None,
) -> tuple[Done, Done]:
    """Serve requests on one device, then during changes; return both results."""
    executables = model.executables
    assert executables is not None
    spec, shapes, dtype = model.spec, shapes_of(settings), model.params.dtype
    requests = random_requests(
        settings.requests, prompt=settings.prompt, new=settings.new, vocab=spec.vocab,
        seed=settings.seed,
    )  # fmt: skip
    blocks = (settings.rows + 2) * shapes.width

    def pool(device: Any) -> KvPool:
        return KvPool(
            blocks, block_elements(spec), dtype=dtype, executables=executables, device=device
        )

    plain = OnDevice(model.params, spec, model.linear, pool(devices[0]), executables=executables)
    runner = Runner(plain, shapes)
    runner.warm(draws=(False,), scores=False)
    *_, alone = _done(runner, requests)
    over = OverDevices(
        model.params, spec, model.linear, tuple(map(pool, devices)), shapes,
        executables=executables,
    )  # fmt: skip
    runner = Runner(over, shapes)
    runner.warm(draws=(False,), scores=False)
    ready_to_move(over)
    for device in devices[1:]:  # a first transfer sets the device up; it is no step
        _jax.block_until_ready(jax.device_put(np.zeros(1, np.float32), device))
    sizes = [layer_bytes(over.weights[n, 0]) for n in range(spec.layers)]
    piece_bytes = settings.piece_bytes or max(1, max(sizes) // 2)
    draws = random.Random(settings.seed)  # noqa: S311
    before = executables.compiled, executables.loaded
    under_way: Relayout | None = None
    row: dict[str, Any] = {}
    done = alone
    for done in _done(runner, requests):
        if under_way is None and len(done.operations) + done.failed < settings.operations:
            change = drawn(over, draws)
            if change is not None:
                under_way = _begun(over, change, piece_bytes)
                row = {"kind": change.kind, "layers": change.layers, "pause_s": 0.0}
                done.failed += under_way is None
        if under_way is None:
            continue
        begun_s = time.perf_counter()
        try:
            moved = under_way.advance()
        except OutOfPages:
            under_way, done.failed = None, done.failed + 1
            continue
        row["pause_s"] = max(row["pause_s"], time.perf_counter() - begun_s)
        if moved is not None:
            under_way = None
            if len({*devices}) == len(devices):
                done.unequal += not _as_predicted(over, sizes)
            done.operations.append(row | _counted(moved))
            report(len(done.operations) + done.failed)
    if under_way is not None:
        under_way.cancel()
    done.compiled, done.loaded = executables.compiled - before[0], executables.loaded - before[1]
    done.counts = over.counts
    done.left = sum(lease.held for lease in over.leases)
    return alone, done


def _begun(over: OverDevices, change: Change, piece_bytes: int) -> Relayout | None:
    try:
        return Relayout(over, change.spread, change.homes, piece_bytes=piece_bytes)
    except SettingError as error:
        if "blocks" in str(error):  # no free KV blocks: the operation has to wait
            return None
        raise


def _counted(moved: Moved) -> dict[str, Any]:
    return {
        "weight_bytes": moved.weight_bytes, "kv_bytes": moved.kv_bytes, "pieces": moved.pieces,
        "requests": moved.requests,
    }  # fmt: skip


def _as_predicted(over: OverDevices, sizes: Sequence[int]) -> bool:
    device_bytes: Counter[Any] = Counter()
    for array in _jax.live_arrays():
        if len(array.devices()) == 1 and not in_host_memory(array):
            device_bytes[next(iter(array.devices()))] += array.nbytes
    return all(
        device_bytes[pool.device]
        == over.held_bytes(d)
        == pool.nbytes + sum(sizes[n] for n, on in enumerate(over.spread.copies) if d in on)
        for d, pool in enumerate(over.pools)
        if d
    )
