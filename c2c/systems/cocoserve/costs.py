"""Bytes and seconds of operations, and the memory that a placement takes of each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from c2c.cost import Source, read_constants
from c2c.errors import SettingError
from c2c.hardware import Node
from c2c.hardware.conf import conf_dir
from c2c.models import ModelSpec
from c2c.systems.cocoserve.modules import KV, LAYER, kv_bytes, layer_bytes, module_of
from c2c.systems.cocoserve.operations import Operation
from c2c.systems.cocoserve.placement import Placement

__all__ = [
    "Held",
    "OperationCosts",
    "check_room",
    "fitted_claims",
    "memory_of",
    "moved_bytes",
    "operation_bytes",
    "operation_costs",
    "operation_s",
    "static_host_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCosts:
    """Costs of an operation beside its layers: `conf/calibration/cocoserve/operations.yaml`.

    Attributes:
      process_bytes: of the device that layers go to.
      operation_s: of every replication and migration.
      coordination_s: of a replication.
    """

    process_bytes: float
    operation_s: float
    coordination_s: float


_FILES: Final = {
    "operations": ["process_bytes", "operation_s", "coordination_s"],
    "static": ["host_s"],
}


@cache
def _fitted(name: str) -> Mapping[str, tuple[float, Source]]:
    path = conf_dir() / "calibration" / "cocoserve" / f"{name}.yaml"
    return read_constants(path, _FILES[name])


def operation_costs() -> OperationCosts:
    """Return what operations take beside their layers, as it is fitted."""
    return OperationCosts(**{name: value for name, (value, _) in _fitted("operations").items()})


def static_host_s() -> float:
    """Return what a step of a library's static batches takes of the host, as it is fitted."""
    return _fitted("static")["host_s"][0]


def fitted_claims() -> frozenset[str]:
    """Return the published values that costs of operations are fitted to: they are in-sample."""
    return frozenset(
        claim for name in _FILES for _, source in _fitted(name).values() for claim in source.claims
    )


def moved_bytes(operation: Operation, spec: ModelSpec, kv_tokens: int = 0) -> int:
    """Return the bytes that an operation sends over the link.

    Args:
      operation: which; one that copies nothing sends none.
      spec: the model.
      kv_tokens: of the KV of each layer that goes along.
    """
    if operation.kind not in ("replicate", "migrate", "evict"):
        return 0
    weights = 0 if operation.kind == "evict" else module_of(spec, operation.module).bytes
    kv = kv_bytes(spec, kv_tokens) if operation.with_kv else 0
    return len(operation.layers) * (weights + kv)


def operation_bytes(operation: Operation, spec: ModelSpec, costs: OperationCosts) -> int:
    """Return the memory that an operation takes of the device that layers go to, without KV.

    Each matrix has whole blocks of the allocator: a layer of 605 MiB takes 608.
    """
    if operation.kind not in ("replicate", "migrate"):
        return 0
    each = module_of(spec, operation.module).allocated_bytes
    return int(costs.process_bytes) + len(operation.layers) * each


def operation_s(
    operation: Operation, spec: ModelSpec, node: Node, costs: OperationCosts, kv_tokens: int = 0
) -> float:
    """Return the seconds of an operation on an idle link.

    Raises:
      SettingError: the node lacks a device, or no link joins the two.
    """
    if operation.kind not in ("replicate", "migrate", "evict"):
        return 0.0
    source, device, count = operation.source, operation.device, len(node.gpus)
    for one in (source, device):
        if not 0 <= one < count:
            raise SettingError("device", one, f"0 to {count - 1}, those of {node.name}")
    if node.link(source, device) is None:
        raise SettingError("device", device, f"a device that a link joins to device {source}")
    copied_s = node.seconds(moved_bytes(operation, spec, kv_tokens), source, device)
    fixed_s = 0.0 if operation.kind == "evict" else costs.operation_s
    return fixed_s + copied_s + (costs.coordination_s if operation.kind == "replicate" else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of a device that a model takes.

    Attributes:
      weights: of its layers; of the first device also of all that is outside layers.
      kv: of the rows that it computes.
      process: of a process beside the first.
    """

    weights: int
    kv: int
    process: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.process


def memory_of(
    placement: Placement, spec: ModelSpec, costs: OperationCosts, *, batch: int, context: int
) -> dict[int, Held]:
    """Return the bytes that each device of a placement holds.

    Layers that were copied or moved have whole blocks of the allocator for each matrix; those that
    are where the model was loaded have their bytes. A part away from its layer is where it went.

    Args:
      placement: of the layers.
      spec: the model.
      costs: of operations.
      batch: rows of a step.
      context: tokens of KV of each row.
    """
    each, outside = layer_bytes(spec)
    copied, first = module_of(spec, LAYER).allocated_bytes, placement.first
    weights, kv = dict.fromkeys(placement.devices, 0), dict.fromkeys(placement.devices, 0)
    weights[first] += outside
    row = kv_bytes(spec, context)
    away = {(p.layer, p.module): p.device for p in placement.parts}
    for layer, rows in enumerate(placement.partitions(batch)):
        for device in placement.copies[layer]:
            weights[device] += each if device == first else copied
        for device, count in rows.items():
            kv[away.get((layer, KV), away.get((layer, "attention"), device))] += count * row
    for part in placement.parts:
        module = module_of(spec, part.module)
        weights[placement.copies[part.layer][0]] -= module.bytes
        weights[part.device] += module.allocated_bytes
    return {
        d: Held(weights=weights[d], kv=kv[d], process=0 if d == first else int(costs.process_bytes))
        for d in placement.devices
    }


def check_room(held: Mapping[int, Held], capacity: Mapping[int, float]) -> None:
    """Refuse a placement that needs more memory of a device than there is.

    Raises:
      SettingError: names the device, the bytes that it needs and those that it has.
    """
    for device, needed in sorted(held.items()):
        free = capacity.get(device, 0.0)
        if needed.total > free:
            raise SettingError(
                "device", device,
                f"a device with room: {needed.total:,} bytes are needed, {int(free):,} are free",
            )  # fmt: skip
