"""The loop's state before the first event."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.policies import CANDIDATE_DTYPE, ENGINE_DTYPE, HOME_DTYPE, ROUTE_DTYPE, WATCH_DTYPE
from c2c.serving.memory.adapters import new_slots
from c2c.serving.tables.block_table import new_blocks
from c2c.serving.tables.cache_lines import spread_rows
from c2c.serving.tables.state import (
    ABSENT,
    CHIP_DTYPE,
    COUNT_DTYPE,
    DEVICE_DTYPE,
    HELD,
    HOLD_DTYPE,
    INBOUND_DTYPE,
    INSTANCE_DTYPE,
    MODEL_DTYPE,
    NOBODY,
    PLAN_DTYPE,
    RECORD_DTYPE,
    RELAYOUT_DTYPE,
    REPORT_DTYPE,
    REQUEST_DTYPE,
    Fleet,
    Serving,
)

__all__ = ["new_serving"]


def _records(dtype: np.dtype[Any], size: int) -> Any:
    return np.zeros(size, dtype).view(np.recarray)


def new_serving(
    fleet: Fleet,
    chip_of: np.ndarray,
    kind_of: np.ndarray,
    *,
    link_gbps: np.ndarray,
    budget_gbps: np.ndarray,
    host_bytes: np.ndarray,
    host_copies: np.ndarray,
    slots: int = 1024,
    buffer: int = 65536,
) -> Serving:
    """Return the state before the first event.

    Args:
      chip_of: [devices] ascending; kind_of: slice type.
      link_gbps: f8[chips], 1e9 bytes/s.
      budget_gbps: f8[chips] to promise, 1e9 bytes/s.
      host_copies: [homes] whether weights are in host memory.
      slots: initial request slots.
      buffer: most records held.
    """
    n_devices, n_chips = len(chip_of), int(chip_of[-1]) + 1
    n_instances = n_devices * fleet.residents
    device = _records(DEVICE_DTYPE, n_devices)
    first = np.arange(n_devices) * fleet.residents
    device.chip, device.kind, device.first = chip_of, kind_of, first
    device.running, device.last, device.holder, device.until_s = -1, -1, -1, np.inf
    instance = _records(INSTANCE_DTYPE, n_instances)
    instance.on_device = np.repeat(np.arange(n_devices), fleet.residents)
    instance.chip, instance.kind = chip_of[instance.on_device], kind_of[instance.on_device]
    instance.looked_at = -1
    for field in ("model", "next_same", "wait_head", "wait_tail"):
        instance[field] = -1
    chip = _records(CHIP_DTYPE, n_chips)
    chip.first = np.searchsorted(chip_of, np.arange(n_chips), side="left")
    chip.last = np.searchsorted(chip_of, np.arange(n_chips), side="right")
    chip.link_gbps, chip.budget_gbps, chip.claim = link_gbps, budget_gbps, -1
    model = _records(MODEL_DTYPE, len(fleet.deployment))
    for field in ("active", "wait_head", "wait_tail", "claim_chip"):
        model[field] = -1
    chip.host_bytes, chip.kv_room_bytes = host_bytes, fleet.kv_host_bytes
    hold = _records(HOLD_DTYPE, len(fleet.home_chip))
    hold.state = np.where(host_copies, HELD, ABSENT)
    held_bytes = fleet.weight_bytes[fleet.home_model] * host_copies
    chip.free_bytes = host_bytes - np.bincount(fleet.home_chip, held_bytes, n_chips)
    count = _records(COUNT_DTYPE, 1)
    count[0].free_slots, count[0].events = slots, 1
    request = _records(REQUEST_DTYPE, slots)
    request.id = NOBODY
    homes, ways = fleet.kv.moved_bytes.shape[1], fleet.kv.moved_bytes.shape[3]
    widest = int((chip.last - chip.first).max()) * fleet.residents
    return Serving(
        device=device,
        instance=instance,
        inbound=_records(INBOUND_DTYPE, n_instances),
        plan=_records(PLAN_DTYPE, n_devices),
        report=_records(REPORT_DTYPE, n_devices),
        chip=chip,
        hold=hold,
        model=model,
        waiting=np.zeros(len(fleet.home_chip), np.int64),
        request=request,
        free_slots=np.arange(slots - 1, -1, -1, dtype=np.int64),
        prefilling=np.zeros((n_instances, spread_rows(8, fleet.max_batch)), np.int64),
        decoding=np.zeros((n_instances, spread_rows(24, fleet.max_batch), 3), np.int64),
        count=count,
        actions=np.zeros((4 * n_instances + fleet.max_batch + slots + 16, 2), np.int64),
        timer_s=np.full(1 + n_chips, np.inf),
        taken=np.zeros((n_devices, len(fleet.kv.room_bytes))),
        split=np.zeros((n_devices, homes, 4), np.int64),
        relayout=_records(RELAYOUT_DTYPE, n_devices),
        sent_bytes=np.zeros((n_devices, ways)),
        blocks=new_blocks(n_devices + n_chips),
        adapters=new_slots(n_instances, fleet),
        asked=np.zeros(n_devices, np.int64),
        records=_records(RECORD_DTYPE, max(buffer, 2 * fleet.max_batch + 4)),
        routes=_records(ROUTE_DTYPE, n_instances),
        candidates=_records(CANDIDATE_DTYPE, n_devices),
        homes=_records(HOME_DTYPE, homes),
        engines=_records(ENGINE_DTYPE, widest),
        watched=_records(WATCH_DTYPE, widest),
        ranked=np.zeros((widest, 2)),
        alone_s=np.zeros(fleet.costs.body_s.shape[2]),
        link_bytes=np.zeros(fleet.costs.body_s.shape[2]),
    )
