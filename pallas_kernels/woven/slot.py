"""`Slot`: shared pages for a receiver's attention of a sender's sequences."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from pallas_kernels.host_memory import files
from pallas_kernels.host_memory.errors import HostMemoryError, PoolCorruptError, PoolStaleError
from pallas_kernels.host_memory.layout import DTYPES
from pallas_kernels.host_memory.pages import map_pages, release_or_leave
from pallas_kernels.woven.words import Word, ahead

__all__ = ["Receiver", "Sender", "Slot", "SlotError", "SlotShape", "Status", "Task", "TaskFailed"]

_MAGIC: Final = b"c2cwove1"
_LINE: Final = 128  # bytes between words of different writers: two lines of a cache
_TASK, _COMPLETION, _VERSION, _FIRST, _HEADER = (k * _LINE for k in range(1, 6))


class SlotError(HostMemoryError):
    """An invalid request to a slot, or invalid words in it."""


class TaskFailed(SlotError):
    """A task without a result, with its status as reason."""

    def __init__(self, task: int, status: Status) -> None:
        super().__init__(f"task {task}: status {status.name}, expected DONE")
        self.task = task
        self.status = status


class Status(IntEnum):
    """End of a task."""

    DONE = 0
    TIME_OUT = 1
    OTHER_TABLE = 2
    NO_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShape:
    """Shape of a slot.

    Attributes:
      rows: most sequences of a task.
      dtype: one of `DTYPES`.
      outstanding: most tasks sent and not collected.
      pages: most pages of a sequence.
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    outstanding: int = 1
    pages: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SlotError(f"dtype={self.dtype!r}: expected one of {', '.join(DTYPES)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "dtype" and (type(value) is not int or not 0 < value < 2**31):
                raise SlotError(f"{field.name}={value!r}: expected a whole number above 0")

    @property
    def sent_bytes(self) -> int:
        """Bytes of Q, K and V of a sequence and layer.

        >>> shape = SlotShape(rows=1, heads=32, kv_heads=8, head_dim=128)  # Llama 3 8B
        >>> shape.sent_bytes, shape.returned_bytes
        (12288, 8192)
        """
        heads = self.heads + 2 * self.kv_heads
        return heads * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def returned_bytes(self) -> int:
        """Bytes of the result of a sequence and layer."""
        return self.heads * self.head_dim * DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the slot."""
        return self.lanes_at + self.outstanding * self.lane_bytes

    @property
    def lanes_at(self) -> int:
        """Bytes before the first task's rows."""
        return _HEADER + _padded(4 * self.rows * (1 + self.pages))

    @property
    def lane_bytes(self) -> int:
        """Bytes of one task's rows and results."""
        sent, back = self.rows * self.sent_bytes, self.rows * self.returned_bytes
        return _LINE + _padded(sent) + _LINE + _padded(back)

    def header(self) -> bytes:
        """Return the header of a file of this shape."""
        numbers = [v for v in asdict(self).values() if type(v) is int]
        return (
            _MAGIC + np.array(numbers, np.uint32).tobytes() + self.dtype.encode().ljust(32, b"\0")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task that a receiver has taken.

    Attributes:
      q, k, v: views of the slot, [row, head, size], until the answer.
      pages: [row, page], a view.
      lengths: [row], a view.
    """

    number: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    pages: np.ndarray
    lengths: np.ndarray


class Slot:
    """Shared pages of one sender and one receiver, from `create` or `open`; a context manager.

        sender:    payload -> number of the task (release) ... number of results (acquire) -> result
        receiver:  number of the task (acquire) -> payload ... result -> number of results (release)

    Each word has one writer. Numbers wrap at 2^32. Tasks, up to `outstanding`, are answered in
    order.

    The sender writes the table of its sequences once per iteration, with a version that tasks name.
    It may do so only while no task is outstanding.
    """

    def __init__(self, path: Path, shape: SlotShape, fd: int) -> None:
        self.path, self.shape = path, shape
        self._pages = map_pages(fd, shape.nbytes, writable=True)
        start = self._pages.address
        self.task, self.completion, self.version = (
            Word(start + offset) for offset in (_TASK, _COMPLETION, _VERSION)
        )
        self.first = int(self._view(np.uint32, _FIRST, (1,))[0])
        rows = shape.rows
        self.lengths = self._view(np.int32, _HEADER, (rows,))
        self.table = self._view(np.int32, _HEADER + 4 * rows, (rows, shape.pages))
        self.lanes = [self._lane(k) for k in range(shape.outstanding)]

    @classmethod
    def create(cls, path: Path | str, shape: SlotShape, *, first: int = 0) -> Slot:
        """Create a slot; it appears at `path` complete or not at all.

        Args:
          path: new file, such as of `shared_memory_path`.
          first: number before the first task's.

        Raises:
          SlotError: an existing path.
          PoolSpaceError: too little space.
        """
        path = Path(path)
        with files.new_file(path, wait_s=0.0) as fd:
            if fd is None:
                raise SlotError(f"{path}: exists already; open it, or remove it first")
            files.reserve(fd, shape.nbytes, path)
            pages = map_pages(os.dup(fd), shape.nbytes, writable=True)
            header = shape.header()
            pages[: len(header)] = header
            for offset in (_TASK, _COMPLETION, _FIRST):
                pages[offset : offset + 4] = int(first & 0xFFFFFFFF).to_bytes(4, "little")
            release_or_leave(pages)
        return cls(path, shape, fd)

    @classmethod
    def open(cls, path: Path | str, shape: SlotShape) -> Slot:
        """Open another process's slot.

        Raises:
          PoolError: no file.
          PoolCorruptError: no slot.
          PoolStaleError: another shape.
        """
        path = Path(path)
        fd = files.open_file(path)
        header = shape.header()
        content = os.pread(fd, len(header), 0)
        if content != header or os.fstat(fd).st_size != shape.nbytes:
            os.close(fd)
            if not content.startswith(_MAGIC):
                raise PoolCorruptError(f"{path}: is no slot")
            raise PoolStaleError(f"{path}: is a slot of another shape than {shape}")
        return cls(path, shape, fd)

    def close(self) -> None:
        """Unmap the pages, at once or after the last view."""
        self.lanes, self.lengths, self.table = [], np.empty(0), np.empty(0)
        release_or_leave(self._pages)

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _view(self, dtype: Any, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        count = int(np.prod(shape))
        return np.frombuffer(self._pages, dtype, count=count, offset=offset).reshape(shape)

    def _lane(self, number: int) -> _Lane:
        s = self.shape
        offset, dtype = s.lanes_at + number * s.lane_bytes, DTYPES[s.dtype]
        size = dtype.itemsize * s.rows * s.head_dim
        back = offset + _LINE + _padded(s.rows * s.sent_bytes)
        q, kv = (s.rows, s.heads, s.head_dim), (s.rows, s.kv_heads, s.head_dim)
        payload = offset + _LINE
        return _Lane(
            asked=self._view(np.uint32, offset, (2,)),
            q=self._view(dtype, payload, q),
            k=self._view(dtype, payload + s.heads * size, kv),
            v=self._view(dtype, payload + (s.heads + s.kv_heads) * size, kv),
            status=self._view(np.uint32, back, (1,)),
            out=self._view(dtype, back + _LINE, q),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """Rows of one outstanding task; `asked` has their number and the table's version."""

    asked: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    status: np.ndarray
    out: np.ndarray


class Sender:
    """Sender's end of a slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.sent = 0
        self.collected = 0
        self._seen = 0  # results that are there
        self._rows = 0  # of the table

    def publish(self, pages: np.ndarray, lengths: np.ndarray) -> None:
        """Write an iteration's table of sequences.

        Raises:
          SlotError: an outstanding task, or too large a table.
        """
        if self.collected != self.sent:
            raise SlotError(f"{self.sent - self.collected} tasks outstanding: expected none")
        rows = len(lengths)
        if rows > self.slot.shape.rows or pages.shape != (rows, self.slot.shape.pages):
            raise SlotError(
                f"table of {rows} rows, pages {pages.shape}: expected at most "
                f"{self.slot.shape.rows} rows of {self.slot.shape.pages} pages"
            )
        self.slot.table[:rows] = pages
        self.slot.lengths[:rows] = lengths
        self._rows = rows
        self.slot.version.store(self.slot.version.load() + 1)

    def send(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> int:
        """Send a task of the table's rows; return its number.

        Raises:
          SlotError: too many tasks, no table, or other rows or head sizes.
        """
        shape = self.slot.shape
        if self.sent - self.collected >= shape.outstanding:
            raise SlotError(f"{shape.outstanding} tasks outstanding: collect one first")
        rows = self._rows
        lane = self.slot.lanes[self.sent % shape.outstanding]
        for name, value, into in (("q", q, lane.q), ("k", k, lane.k), ("v", v, lane.v)):
            if rows == 0 or value.shape != (rows, *into.shape[1:]) or value.dtype != into.dtype:
                raise SlotError(
                    f"{name} is {value.dtype}{list(value.shape)}: expected "
                    f"{into.dtype}{[rows, *into.shape[1:]]}, the rows of the table"
                )
            into[:rows] = value
        lane.asked[:] = rows, self.slot.version.load()
        self.sent += 1
        self.slot.task.store(self.slot.first + self.sent)
        return self.sent - 1

    def collect(self) -> np.ndarray | None:
        """Return the next result, in order of tasks, or None.

        Raises:
          TaskFailed: no result; the next call is for the next task.
          SlotError: an impossible number of results.
        """
        if self.collected == self._seen:
            word = self.slot.completion.load()
            new = ahead(word, self.slot.first + self._seen)
            if new > self.sent - self._seen:
                raise SlotError(_jumped("completion", word, self.slot.first + self._seen))
            self._seen += new
            if new == 0:
                return None
        number = self.collected
        lane = self.slot.lanes[number % self.slot.shape.outstanding]
        status = int(lane.status[0])
        if status != Status.DONE:
            self.collected += 1
            raise TaskFailed(number, Status(status))
        result = lane.out[: self._rows].copy()
        self.collected += 1
        return result

    def wait(self, limit_s: float) -> np.ndarray:
        """Return the next result.

        Raises:
          TaskFailed: no result, or late: the slot is then unusable.
        """
        end = time.monotonic() + limit_s
        while (result := self.collect()) is None:
            if time.monotonic() > end:
                raise TaskFailed(self.collected, Status.TIME_OUT)
            time.sleep(0)
        return result


class Receiver:
    """Receiver's end of a slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.taken = 0
        self.answered = 0

    def poll(self) -> Task | None:
        """Return the next task, or None if none.

        A task of another version gets `OTHER_TABLE`.

        Raises:
          SlotError: an invalid number of tasks.
        """
        slot = self.slot
        word = slot.task.load()
        new = ahead(word, slot.first + self.taken)
        if new > slot.shape.outstanding - (self.taken - self.answered):
            raise SlotError(_jumped("task", word, slot.first + self.taken))
        if new == 0:
            return None
        lane = slot.lanes[self.taken % slot.shape.outstanding]
        rows, version = map(int, lane.asked)
        if version != slot.version.load():
            if self.answered < self.taken:
                return None
            self.taken += 1
            self.fail(Status.OTHER_TABLE)
            return None
        self.taken += 1
        return Task(
            number=self.taken - 1, q=lane.q[:rows], k=lane.k[:rows], v=lane.v[:rows],
            pages=slot.table[:rows], lengths=slot.lengths[:rows],
        )  # fmt: skip

    def answer(self, out: np.ndarray) -> None:
        """Write the oldest taken task's result.

        Raises:
          SlotError: none taken, or another shape or type.
        """
        lane = self._oldest()
        rows = int(lane.asked[0])
        if out.shape != lane.out[:rows].shape or out.dtype != lane.out.dtype:
            raise SlotError(
                f"result is {out.dtype}{list(out.shape)}: expected "
                f"{lane.out.dtype}{list(lane.out[:rows].shape)}"
            )
        lane.out[:rows] = out
        self._end(lane, Status.DONE)

    def fail(self, status: Status) -> None:
        """Answer the oldest taken task with a status instead of a result.

        Raises:
          SlotError: none taken.
        """
        self._end(self._oldest(), status)

    def _oldest(self) -> _Lane:
        if self.answered == self.taken:
            raise SlotError("no task is taken: expected one to answer")
        return self.slot.lanes[self.answered % self.slot.shape.outstanding]

    def _end(self, lane: _Lane, status: Status) -> None:
        lane.status[0] = status
        self.answered += 1
        self.slot.completion.store(self.slot.first + self.answered)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def _jumped(name: str, word: int, before: int) -> str:
    back = ahead(before, word)
    way = f"backwards by {back}" if back < 2**31 else f"ahead by {ahead(word, before)}"
    return f"counter {name} jumped {way}, to {word}: more than tasks can be outstanding"
