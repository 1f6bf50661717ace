"""Schedule of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from c2c.errors import SettingError
from c2c.systems.program import Slice
from c2c.systems.tessera.touches import Touch

__all__ = ["Schedule", "Segment", "Send", "schedule"]


@dataclass(frozen=True, slots=True)
class Send:
    """A transfer between GPUs.

    Attributes:
      part: slice sent.
      after: its writer.
    """

    part: Slice
    source: int
    target: int
    after: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive launches of a GPU, and sends waited for.

    Attributes:
      sends: before the first launch.
      holds: segments whose sends end before an overwrite.
    """

    gpu: int
    launches: tuple[int, ...]
    sends: tuple[Send, ...]
    holds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Segments in program order, then last sends: results and carried values."""

    segments: tuple[Segment, ...]
    last: tuple[Send, ...]

    @property
    def nbytes(self) -> int:
        """Bytes sent in a step."""
        sends = [send for segment in self.segments for send in segment.sends]
        return sum(send.part.nbytes for send in [*sends, *self.last])


def schedule(
    touches: Sequence[Touch],
    gpu_of: Sequence[int],
    count: int,
    *,
    outputs: Sequence[Slice] = (),
    carried: Sequence[Slice] = (),
) -> Schedule:
    """Return a placement's segments (CUDA graphs) and sends.

    Args:
      count: of GPUs, all with the earlier content.
      outputs: slices on the first GPU in the end.
      carried: slices for the next step, such as KV.

    Raises:
      SettingError: another length, or an unknown GPU.

    Source: Tessera, section III-C. Ours: sends of missing bytes alone.
    """
    where = list(gpu_of)
    if len(where) != len(touches) or not all(0 <= g < count for g in where):
        raise SettingError("gpu_of", where, f"{len(touches)} numbers from 0 to {count - 1}")
    versions, segments, read = _Versions(), list[Segment](), list[tuple[int, Send]]()
    for run in _runs(where):
        gpu, number = where[run[0]], len(segments)
        sends = []
        written: list[Slice] = []
        for k in run:
            for part in touches[k].reads:
                sends += versions.bring(part, gpu)
            for part in touches[k].writes:
                versions.wrote(part, gpu, number)
                written.append(part)
        holds = {
            reader for reader, send in read
            if send.source == gpu and any(_overlap(send.part, part) for part in written)
        }  # fmt: skip
        segments.append(Segment(gpu, run, tuple(sends), tuple(sorted(holds))))
        read += [(number, send) for send in sends]
    last = [send for part in outputs for send in versions.bring(part, 0)]
    for part in carried:
        readers = {
            gpu for gpu, touch in zip(where, touches, strict=True)
            if any(_overlap(part, read) for read in touch.reads)
        }  # fmt: skip
        last += [send for gpu in sorted(readers) for send in versions.bring(part, gpu)]
    return Schedule(tuple(segments), tuple(last))


def _runs(where: Sequence[int]) -> list[tuple[int, ...]]:
    runs: list[list[int]] = []
    for k, gpu in enumerate(where):
        if runs and where[runs[-1][0]] == gpu:
            runs[-1].append(k)
        else:
            runs.append([k])
    return [tuple(run) for run in runs]


def _overlap(one: Slice, other: Slice) -> bool:
    return (
        one.buffer == other.buffer
        and one.offset < other.offset + other.nbytes
        and other.offset < one.offset + one.nbytes
    )


@dataclass(slots=True)
class _Versions:
    _newest: dict[int, list[_Version]] = field(default_factory=dict)

    def bring(self, part: Slice, gpu: int) -> list[Send]:
        sends, versions = [], []
        begin, end = part.offset, part.offset + part.nbytes
        for version in self._newest.get(part.buffer, []):
            x, y = max(version.begin, begin), min(version.end, end)
            if x >= y or gpu in version.holders:
                versions.append(version)
                continue
            sends.append(Send(Slice(part.buffer, x, y - x), version.home, gpu, version.segment))
            versions += version.outside(x, y)
            versions.append(replace(version, begin=x, end=y, holders=version.holders | {gpu}))
        self._newest[part.buffer] = versions
        return sends

    def wrote(self, part: Slice, gpu: int, segment: int) -> None:
        begin, end = part.offset, part.offset + part.nbytes
        versions = self._newest.get(part.buffer, [])
        pieces = [piece for version in versions for piece in version.outside(begin, end)]
        addition = _Version(begin, end, gpu, segment, frozenset({gpu}))
        self._newest[part.buffer] = [*pieces, addition]


@dataclass(frozen=True, slots=True)
class _Version:
    """A range of a buffer: writer, and GPUs with it."""

    begin: int
    end: int
    home: int
    segment: int
    holders: frozenset[int]

    def outside(self, begin: int, end: int) -> list[_Version]:
        parts = ((self.begin, min(self.end, begin)), (max(self.begin, end), self.end))
        return [replace(self, begin=x, end=y) for x, y in parts if x < y]
