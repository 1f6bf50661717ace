"""Device with known answers: a token is a hash of its sequence's contents in the KV cache."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from c2c.models import ModelSpec
from c2c.transformer import KvPool, Lease, OnDevice
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.transformer.running.sampling_stages import DRAW, FEED, SCORE, SCORED, SEAT

__all__ = ["Device", "Executables", "Model", "score", "undisturbed"]


# The worker's own code runs over it. A token is right only if every position before it was written
# once, by the right token, to a block that still belongs to its sequence.
class Device(Protocol):
    """Calls of a computation to the world."""

    def begin(self, chunk: int) -> float:
        """Begin a call with `chunk` tokens of a prompt; return the time of its results."""

    def wait_until(self, at_s: float) -> None:
        """Make the process wait until a time."""


def _token(prefix: bytes, model: int, count: int, vocab: int, barred: Collection[int]) -> int:
    found = zlib.crc32(prefix, model) ^ (count * 2654435761 & 0xFFFFFFFF)
    token = found % vocab
    while token in barred:
        token = (token + 1) % vocab
    return token


def undisturbed(
    ids: Sequence[int], new: int, stop: Collection[int], least: int, model: int, vocab: int
) -> tuple[list[int], str]:
    """Return the tokens that a request draws without faults, and the reason for its end.

    Args:
      ids: prompt.
      new: largest number of tokens.
      stop: tokens that end the answer.
      least: number of draws before which the answer does not stop.
      model: number that identifies the model's weights.
      vocab: size of the model's vocabulary.
    """
    held, found = list(ids), []
    for count in range(new):
        prefix = np.asarray(held, np.int32).tobytes()
        token = _token(prefix, model, count, vocab, stop if count < least else ())
        found.append(token)
        held.append(token)
        if token in stop:
            return found, "stop"
    return found, "length"


class _Memory:
    """KV memory of a pool: the token that was fed at each position."""

    def __init__(self) -> None:
        self._blocks: dict[int, np.ndarray] = {}
        self._owner: dict[int, int] = {}  # model by superblock

    def block(self, first: int, superblock: int, model: int) -> np.ndarray:
        """Return a block by its first element, cleared if another model owned its superblock."""
        number = first // superblock
        if self._owner.get(number) != model:
            self._owner[number] = model
            for at in [at for at in self._blocks if at // superblock == number]:
                del self._blocks[at]
        return self._blocks.setdefault(first, np.full(PAGE_TOKENS, -1, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Logits:
    """Contents of the KV cache that determine each row's next token."""

    prefixes: list[bytes]
    model: int
    vocab: int
    ready_s: float
    device: Device

    def block_until_ready(self) -> None:
        self.device.wait_until(self.ready_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    values: np.ndarray
    ready_s: float
    device: Device

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        del dtype, copy
        self.device.wait_until(self.ready_s)
        return self.values


class Executables:
    """Python functions in place of compiled executables."""

    compiled = loaded = 0

    def __init__(self, device: Device) -> None:
        """Store the device that the functions run on."""
        self.device = device

    def on(self, device: Any) -> Executables:
        """Return self: a process has a single device."""
        del device
        return self

    def bind(self, stage: Any) -> Callable[..., Any]:
        """Return the Python function that replaces a stage."""
        if stage.name == "zeros":
            return lambda **_: _Memory()
        found: dict[str, Callable[..., Any]] = {
            SEAT.name: _seat, FEED.name: _feed, DRAW.name: _draw, SCORE.name: _score,
        }  # fmt: skip
        return found[stage.name]


def _seat(seats: Any, seat: Any, held: Any, tokens: Any, values: Any) -> Any:
    del held
    biased, bias = np.array(seats.biased), np.array(seats.bias)
    biased[int(seat)], bias[int(seat)] = tokens, values
    return replace(seats, drawn=np.array(seats.drawn), biased=biased, bias=bias)


def _feed(given: np.ndarray, drawn: np.ndarray, source: np.ndarray) -> Any:
    return np.where(source >= 0, drawn[np.maximum(source, 0)], given)


def _draw(logits: _Logits, seats: Any, rows: Any, stands: np.ndarray, *, hot: bool) -> Any:
    del rows, hot
    values, drawn = np.zeros(len(stands), np.int32), seats.drawn.copy()
    for row, prefix in enumerate(logits.prefixes):
        count, seat, least, biased = stands[row].tolist()
        if seat >= len(drawn):
            continue
        barred = set(seats.biased[seat, :biased].tolist()) if count < least else ()
        values[row] = _token(prefix, logits.model, count, logits.vocab, barred)
        drawn[seat] = values[row]
    found = _Tokens(values=values, ready_s=logits.ready_s, device=logits.device)
    return found, replace(seats, drawn=drawn)


def score(prefix: bytes, token: int, count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the score of a token after a prefix, and the `count` likeliest tokens with scores."""
    found = zlib.crc32(np.int32(token).tobytes(), zlib.crc32(prefix))
    return -(found % 997) / 8, tuple(((found + k) % 96, -float(k)) for k in range(count))


def _score(logits: _Logits, token: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens = token.values if isinstance(token, _Tokens) else token
    rows = [score(prefix, int(tokens[row]), SCORED) for row, prefix in enumerate(logits.prefixes)]
    return (
        np.array([own for own, _ in rows], np.float32),
        np.array([[which for which, _ in top] for _, top in rows], np.int32),
        np.array([[value for _, value in top] for _, top in rows], np.float32),
    )


class _Computed(OnDevice):
    """The engine's own executor of a model, with the computation replaced."""

    executables: Any

    def __init__(self, model: Model, pool: KvPool, lease: Lease | None) -> None:
        self.params: Any = model.number
        self.spec, self.pool, self.executables = model.spec, pool, model.device_code
        self.lease = pool.lease(model.spec) if lease is None else lease
        self.device, self.ends_apart = pool.device, False
        self._blocks = {}

    def _run(self, laid: Any, tokens: Any, wanted: Any, tables: np.ndarray, **more: Any) -> Any:
        memory, spec = self.pool.arrays.k, self.spec
        page, has_logits = PAGE_TOKENS * spec.kv_heads * spec.head_dim, more["has_logits"]
        first = int(laid.chunk > 0)
        ends_s = self.executables.device.begin(laid.chunk)

        def block(row: int, number: int) -> Any:
            at = int(tables[row][number]) * page
            return memory.block(at, self.pool.superblock, self.params)

        def row_of(k: int) -> int:
            return 0 if k < laid.chunk else first + k - laid.chunk

        for k in np.flatnonzero(laid.positions >= 0).tolist():
            at = int(laid.positions[k])
            block(row_of(k), at // PAGE_TOKENS)[at % PAGE_TOKENS] = tokens[k]
        prefixes = []
        for k in wanted.tolist():
            at = int(laid.positions[k])
            parts = [block(row_of(k), b) for b in range(at // PAGE_TOKENS + 1)] if at >= 0 else []
            held = np.concatenate(parts)[: at + 1] if parts and has_logits else np.zeros(0)
            prefixes.append(held.astype(np.int32).tobytes())
        found = _Logits(
            prefixes=prefixes, model=self.params, vocab=spec.vocab, ready_s=ends_s,
            device=self.executables.device,
        )  # fmt: skip
        return found, self.pool.arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Loaded model, with the attributes that residents use.

    Attributes:
      number: number that identifies its weights.
      spec: spec of the model.
      device_code: functions that its steps run.
      executables: None, since nothing is compiled ahead.
      tokenizer: None.
    """

    number: int
    spec: ModelSpec
    device_code: Executables
    executables: None = None
    tokenizer: None = None

    def executor(self, pool: KvPool, lease: Lease | None = None) -> OnDevice:
        """Return the executor of a runner's steps."""
        return _Computed(self, pool, lease)
