"""Compile-time configuration of the kernel: pieces of rows, pipeline depth, grid."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.counting import ceil_div, round_up
from pallas_kernels.gather_rows.specs import ROW_BYTES, GatherRows
from pallas_kernels.hopper import BARRIER_BYTES, MOST_BARRIERS, check_shared_bytes, expect

_MAX_PIECE_BYTES = 65_536  # far below what a barrier counts: 2**20 - 1 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Size of pieces and number of copies in flight. Changing any of them recompiles.

    A row is fetched in pieces of at most `piece_bytes`, each by one bulk copy into a ring of
    `stages`, and stored by another. A CTA has `stages - 1` loads in flight, so that the latency of
    the link is paid once: 132 SMs have 3 MB in flight with the defaults; 400 GB/s for 2 us need
    0.8 MB.
    """

    piece_bytes: int = 8192
    stages: int = 4
    sm_count: int = 132

    def __post_init__(self) -> None:
        whole = self.piece_bytes % ROW_BYTES == 0
        expect(
            whole and ROW_BYTES <= self.piece_bytes <= _MAX_PIECE_BYTES,
            "piece_bytes",
            self.piece_bytes,
            f"a multiple of {ROW_BYTES} up to {_MAX_PIECE_BYTES}",
        )
        allowed = f"a number from 2 to {MOST_BARRIERS}"
        expect(2 <= self.stages <= MOST_BARRIERS, "stages", self.stages, allowed)
        expect(self.sm_count >= 1, "sm_count", self.sm_count, "a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A row in `pieces` of `width` columns; the last one overlaps if they do not divide the row."""

    pieces: int
    width: int


def cut(config: Config, gather: GatherRows) -> Cut:
    """Return the cut of the rows of `gather`: few, equal pieces."""
    longest = config.piece_bytes // gather.itemsize
    pieces = int(ceil_div(gather.columns, longest))
    return Cut(pieces=pieces, width=round_up(int(ceil_div(gather.columns, pieces)), gather.unit))


def grid(config: Config, gather: GatherRows) -> int:
    """Return the number of CTAs of the launch, at most the number of pieces."""
    return min(config.sm_count, gather.tokens * cut(config, gather).pieces)


def choose(gather: GatherRows, *, sm_count: int) -> Config:
    """Return the configuration for a device of `sm_count` SMs; the same for every size so far."""
    config = Config(sm_count=sm_count)
    check_fits(config, gather)
    return config


def shared_bytes(config: Config, gather: GatherRows) -> int:
    """Return the shared memory of one CTA in bytes: the ring and its barriers."""
    return config.stages * cut(config, gather).width * gather.itemsize + BARRIER_BYTES


def check_fits(config: Config, gather: GatherRows) -> None:
    """Check that a CTA has the shared memory that `config` needs for `gather`.

    Raises:
      ValueError: the need exceeds the limit.
    """
    need = shared_bytes(config, gather)
    check_shared_bytes(need, f"piece_bytes={config.piece_bytes} or stages={config.stages}")
