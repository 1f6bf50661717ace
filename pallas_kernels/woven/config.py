"""Compile-time configuration of `send`."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.attention.config import DecodeConfig, decode_shared_bytes
from pallas_kernels.attention.specs import GROUP_ROWS, itemsize
from pallas_kernels.hopper import BARRIER_BYTES, CLUSTERS, MOST_BARRIERS, check_shared_bytes, expect
from pallas_kernels.integer_math import round_up
from pallas_kernels.woven.exchange import Exchange, Polling

_ALIGNED = 1024  # bytes of shared memory that each array begins at a multiple of


@dataclass(frozen=True, slots=True, kw_only=True)
class SendConfig:
    """One cluster of `cluster` CTAs sends; each has `stages - 1` rows in flight."""

    cluster: int = 4
    stages: int = 4

    def __post_init__(self) -> None:
        expect(self.cluster in CLUSTERS, "cluster", self.cluster, "1, 2, 4 or 8")
        allowed = f"a number from 2 to {MOST_BARRIERS}"
        expect(2 <= self.stages <= MOST_BARRIERS, "stages", self.stages, allowed)


def poll_config(polling: Polling) -> DecodeConfig:
    """Return a poll's tiles: decode attention's, with the exchange's splits."""
    stages = 4 if polling.exchange.slot.head_dim == 128 else 6
    return DecodeConfig(stages=stages, splits=polling.exchange.splits)


def check_poll(polling: Polling, config: DecodeConfig) -> None:
    """Check that a CTA can poll as configured."""
    splits = polling.exchange.splits
    expect(config.splits == splits, "splits", config.splits, f"{splits} as in shared.out")
    check_shared_bytes(
        poll_bytes(polling, config), f"stages={config.stages} or block_kv={config.block_kv}"
    )


def poll_bytes(polling: Polling, config: DecodeConfig) -> int:
    """Return a polling CTA's shared memory."""
    spec = polling.attention
    row = 2 * spec.dim * itemsize(spec.dtype)
    return (
        round_up(decode_shared_bytes(spec, config), _ALIGNED) + round_up(row, _ALIGNED) + _ALIGNED
    )


def send_bytes(exchange: Exchange, config: SendConfig) -> int:
    """Return a sending CTA's shared memory: its ring."""
    need = config.stages * exchange.slot.sent_bytes + BARRIER_BYTES
    check_shared_bytes(need, f"stages={config.stages}")
    return need


def receive_bytes(exchange: Exchange) -> int:
    """Return a receiving CTA's shared memory: rows, sums, word."""
    rows = exchange.group * exchange.slot.head_dim * itemsize(exchange.out_dtype)
    sums = GROUP_ROWS * itemsize("float32")
    return round_up(rows, _ALIGNED) + round_up(sums, _ALIGNED) + _ALIGNED + BARRIER_BYTES
