"""Exchange between the kernels of both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import jax
import numpy as np

from pallas_kernels.attention.specs import GROUP_ROWS, ROW_MULTIPLE, Decode
from pallas_kernels.hopper import INPUT_DTYPES, expect
from pallas_kernels.host_memory.layout import DTYPES
from pallas_kernels.integer_math import round_up
from pallas_kernels.woven.slot import SlotShape

LINE: Final = 128  # bytes between arrays: two lines of a cache


class Sends(IntEnum):
    """Words of a sender's state."""

    SENT = 0  # newest task
    LANE = 1  # rows of the next
    COLLECTED = 2  # newest result
    COLLECT_LANE = 3
    WENT = 4  # whether the last `send` was one: not if as many are outstanding as may be


class Polls(IntEnum):
    """Words of the state of a receiver's CTA."""

    ANSWERED = 0  # newest task
    LANE = 1  # rows of the next
    LAYER = 2  # of the next
    LOOKED = 3  # what the last look found, of `Looked`


class Looked(IntEnum):
    """Result of a look: no task, a done one, or an invalid number."""

    NOTHING = 0
    TOOK = 1
    JUMPED = 2


# The protocol is that of `slot.Slot`. One thing differs: a slot has one word for the answer, here
# each CTA of the receiver has its own, so that no CTA waits for another.
@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Sizes of the shared arrays.

    Attributes:
      splits: CTAs of one sequence and KV head.
    """

    slot: SlotShape
    splits: int = 1

    def __post_init__(self) -> None:
        heads, kv_heads = self.slot.heads, self.slot.kv_heads
        expect(heads % kv_heads == 0, "heads", heads, f"a multiple of kv_heads={kv_heads}")
        expect(type(self.splits) is int and self.splits >= 1, "splits", self.splits, "1 or more")

    @property
    def group(self) -> int:
        """Number of query heads per KV head."""
        return self.slot.heads // self.slot.kv_heads

    @property
    def ctas(self) -> int:
        """CTAs of the receiver, by split, sequence, KV head."""
        return self.splits * self.slot.rows * self.slot.kv_heads

    @property
    def out_dtype(self) -> str:
        """Type of results: float32 before a merge of splits."""
        return self.slot.dtype if self.splits == 1 else "float32"

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of each array of `Shared`."""
        s, lanes = self.slot, self.slot.outstanding
        return {
            "task": ((1,), "int32"),
            "version": ((1,), "int32"),
            "lengths": ((s.rows,), "int32"),
            "table": ((s.rows, s.pages), "int32"),
            "asked": ((lanes, 2), "int32"),
            "q": ((lanes, s.rows, s.heads, s.head_dim), s.dtype),
            "k": ((lanes, s.rows, s.kv_heads, s.head_dim), s.dtype),
            "v": ((lanes, s.rows, s.kv_heads, s.head_dim), s.dtype),
            "out": ((lanes, self.splits, s.rows, s.heads, s.head_dim), self.out_dtype),
            "lse": ((lanes, self.ctas, GROUP_ROWS), "float32"),
            "status": ((lanes, self.ctas), "int32"),
            "done": ((self.ctas,), "int32"),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, on cache lines of their own."""
        return sum(round_up(_nbytes(*one), LINE) for one in self.shapes().values())

    def over(self, pages: Any) -> Shared:
        """Return NumPy views of pages from `host_memory.pages.map_pages`.

        Raises:
          ValueError: fewer than `nbytes`.
        """
        length = memoryview(pages).nbytes
        expect(length >= self.nbytes, "pages", length, f"{self.nbytes} bytes or more")
        arrays, offset = {}, 0
        for name, (shape, dtype) in self.shapes().items():
            flat = np.frombuffer(pages, DTYPES[dtype], count=math.prod(shape), offset=offset)
            arrays[name] = flat.reshape(shape)
            offset += round_up(flat.nbytes, LINE)
        return Shared(**arrays)

    def new(self, pages: Any = None, *, first: int = 0) -> Shared:
        """Return the shared arrays before the first task, in NumPy.

        Args:
          pages: None: memory of this process.
          first: number before the first task's.
        """
        shared = self.over(bytearray(self.nbytes) if pages is None else pages)
        shared.task[:] = shared.done[:] = as_word(first)
        shared.table[:] = -1
        return shared

    def sender(self, *, first: int = 0) -> np.ndarray:
        """Return the initial state of a sender."""
        return np.array([as_word(first), 0, as_word(first), 0, 0], np.int32)

    def receiver(self, *, first: int = 0) -> np.ndarray:
        """Return the initial state of a receiver, a row for each CTA."""
        return np.tile(np.array([as_word(first), 0, 0, 0], np.int32), (self.ctas, 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Arrays of both sides, in pinned host memory for a GPU's kernels.

    Those write in place; interpret mode returns new ones.
    """

    # the sender's
    task: Any  # int32 [1]: number of the newest task
    version: Any  # int32 [1]: of the table
    lengths: Any  # int32 [rows]: tokens of each sequence, its newest one among them; 0: none
    table: Any  # int32 [rows, pages]: where in the pool its pages of the first layer are
    asked: Any  # int32 [outstanding, 2]: rows of the task, version of its table
    q: Any  # [outstanding, rows, heads, head_dim]
    k: Any  # [outstanding, rows, kv_heads, head_dim]
    v: Any
    # the receiver's
    out: Any  # [outstanding, splits, rows, heads, head_dim]
    lse: Any  # float32 [outstanding, ctas, 64], of which the heads of a group count
    status: Any  # int32 [outstanding, ctas], of `slot.Status`
    done: Any  # int32 [ctas]: number of the newest task that a CTA has answered

    def publish(self, table: np.ndarray, lengths: np.ndarray) -> None:
        """Write an iteration's table to NumPy arrays, without outstanding tasks.

        Raises:
          ValueError: too large a table.
        """
        rows = len(lengths)
        width = self.table.shape[1]
        expect(rows <= len(self.lengths), "rows", rows, f"at most {len(self.lengths)}")
        expect(table.shape == (rows, width), "table", table.shape, f"shape ({rows}, {width})")
        self.table[:rows] = table
        self.lengths[:rows] = lengths
        self.lengths[rows:] = 0
        self.version[:] = as_word(int(self.version[0]) + 1)


def exchange_of(shared: Shared) -> Exchange:
    """Return the sizes of shared arrays."""
    for name in ("q", "k", "out"):
        ndim, rank = len(getattr(shared, name).shape), 5 if name == "out" else 4
        expect(ndim == rank, f"shared.{name}.ndim", ndim, str(rank))
    (outstanding, rows, heads, dim), kv_heads = shared.q.shape, shared.k.shape[2]
    slot = SlotShape(
        rows=int(rows), heads=int(heads), kv_heads=int(kv_heads), head_dim=int(dim),
        dtype=str(shared.q.dtype), outstanding=int(outstanding), pages=int(shared.table.shape[-1]),
    )  # fmt: skip
    result = Exchange(slot=slot, splits=int(shared.out.shape[1]))
    for name, wanted_of in result.shapes().items():
        array = getattr(shared, name)
        got = (tuple(array.shape), str(array.dtype))
        expect(got == wanted_of, f"shared.{name}", got, str(wanted_of))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """Sizes of a poll: the exchange, and the pool for new rows and attention.

    A sequence's page of layer l is l * `stride` behind its first one.
    """

    exchange: Exchange
    pages: int
    page: int
    layers: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        for name in ("layers", "stride"):
            value = getattr(self, name)
            expect(type(value) is int and value >= 1, name, value, "a whole number above 0")
        last = (self.layers - 1) * self.stride
        expect(last < self.pages, "layers", self.layers, f"pages behind {last}, of {self.pages}")

    @property
    def attention(self) -> Decode:
        """Description of the poll's attention for its kernel."""
        s, group = self.exchange.slot, self.exchange.group
        fits = group < ROW_MULTIPLE or group % ROW_MULTIPLE == 0
        expect(s.dtype in INPUT_DTYPES, "dtype", s.dtype, f"one of {', '.join(INPUT_DTYPES)}")
        expect(fits, "heads", s.heads, f"fewer than 8 or a multiple of 8 a KV head, not {group}")
        return Decode(
            batch=s.rows, kv_heads=s.kv_heads, group=group, dim=s.head_dim, pages=self.pages,
            page=self.page, table=s.pages, dtype=s.dtype,
            out_dtype=self.exchange.out_dtype,
        )  # fmt: skip


def as_word(number: int) -> np.int32:
    """Return a number modulo 2^32 as the kernels' int32.

    >>> int(as_word(2**32 - 1)), int(as_word(7))
    (-1, 7)
    """
    return np.uint32(number & 0xFFFFFFFF).view(np.int32)


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize
