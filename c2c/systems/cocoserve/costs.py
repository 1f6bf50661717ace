"""Bytes and seconds of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from c2c.cost import Source, read_constants
from c2c.errors import SettingError
from c2c.hardware import Node
from c2c.hardware.conf import conf_dir, conf_file, conf_names
from c2c.models import ModelSpec
from c2c.ranges import FromZero, check_fields
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
    "operations_lines",
    "static_host_s",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCosts:
    """Fixed costs of operations on a chip, from `conf/operations/<chip>.yaml`.

    Attributes:
      operation_s: of replication and migration beside the copy.
      coordination_s: further, of a replication.
    """

    process_bytes: FromZero
    operation_s: FromZero
    coordination_s: FromZero


OPERATIONS_CHIP: Final = "a100_40"  # the paper's, for chips without a file


def _operations_chip(chip: str) -> str:
    return chip if chip in conf_names("operations") else OPERATIONS_CHIP


def operations_lines(chips: Sequence[str]) -> tuple[str, ...]:
    """Return a line if the paper's chip is assumed."""
    others = [name for name in chips if _operations_chip(name) != name]
    return (
        f"operations: seconds and bytes of {OPERATIONS_CHIP} stand for those of "
        f"{', '.join(others)} (no file in operations/)",
    )[: bool(others)]


def operation_costs(chip: str = OPERATIONS_CHIP) -> OperationCosts:
    """Return the fixed costs of operations on a chip, by default the paper's.

    Raises:
      DataError: a missing, negative or unsourced value.
    """
    path = conf_file("operations", _operations_chip(chip))
    constants = read_constants(path, [f.name for f in fields(OperationCosts)])
    costs = OperationCosts(**{name: value for name, (value, _) in constants.items()})
    check_fields(costs, str(path))
    return costs


def _static() -> dict[str, tuple[float, Source]]:
    return read_constants(conf_dir() / "calibration" / "cocoserve" / "static.yaml", ["host_s"])


def static_host_s() -> float:
    """Return the fitted host seconds of a static batch's step."""
    return _static()["host_s"][0]


def fitted_claims() -> frozenset[str]:
    """Return the published values of the fit."""
    path = conf_dir() / "operations" / f"{OPERATIONS_CHIP}.yaml"
    constants = read_constants(path, [f.name for f in fields(OperationCosts)]) | _static()
    return frozenset(claim for _, source in constants.values() for claim in source.claims)


def moved_bytes(operation: Operation, spec: ModelSpec, kv_tokens: int = 0) -> int:
    """Return an operation's link bytes.

    Args:
      kv_tokens: tokens of KV moved with each layer.
    """
    weights = 0 if operation.kind == "evict" else module_of(spec, operation.module).bytes
    kv = kv_bytes(spec, kv_tokens) if operation.with_kv else 0
    return len(operation.layers) * (weights + kv)


def operation_bytes(operation: Operation, spec: ModelSpec, costs: OperationCosts) -> int:
    """Return an operation's block bytes on its target, without KV."""
    if operation.kind == "evict":
        return 0
    module_bytes = module_of(spec, operation.module).allocated_bytes
    return int(costs.process_bytes) + len(operation.layers) * module_bytes


def operation_s(
    operation: Operation, spec: ModelSpec, node: Node, costs: OperationCosts, kv_tokens: int = 0
) -> float:
    """Return the seconds of an operation on an idle link."""
    if operation.kind not in ("replicate", "migrate", "evict"):
        return 0.0
    source, device, count = operation.source, operation.device, len(node.gpus)
    for one in (source, device):
        if not 0 <= one < count:
            raise SettingError("device", one, f"0 to {count - 1} of {node.name}")
    if node.link(source, device) is None:
        raise SettingError("device", device, f"a device with a link to device {source}")
    copied_s = node.seconds(moved_bytes(operation, spec, kv_tokens), source, device)
    fixed_s = 0.0 if operation.kind == "evict" else costs.operation_s
    return fixed_s + copied_s + (costs.coordination_s if operation.kind == "replicate" else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes that a model takes on a device.

    Attributes:
      kv: KV of rows computed there.
      process: 0 on the first device.
    """

    weights: int
    kv: int
    process: int

    @property
    def total(self) -> int:
        """Bytes of weights, KV and process."""
        return self.weights + self.kv + self.process


def memory_of(
    placement: Placement, spec: ModelSpec, costs: OperationCosts, *, batch: int, context: int
) -> dict[int, Held]:
    """Return each device's bytes; off the first one in whole blocks.

    Args:
      context: tokens of KV a row.
    """
    size, outside = layer_bytes(spec)
    copied, first = module_of(spec, LAYER).allocated_bytes, placement.first
    weights, kv = dict.fromkeys(placement.devices, 0), dict.fromkeys(placement.devices, 0)
    weights[first] += outside
    row = kv_bytes(spec, context)
    away = {(p.layer, p.module): p.device for p in placement.parts}
    for layer, rows in enumerate(placement.partitions(batch)):
        for device in placement.copies[layer]:
            weights[device] += size if device == first else copied
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


def check_room(memory: Mapping[int, Held], capacity: Mapping[int, float]) -> None:
    """Refuse a placement that exceeds free memory.

    Raises:
      SettingError: a device without room.
    """
    for device, needed in sorted(memory.items()):
        free = capacity.get(device, 0.0)
        if needed.total > free:
            raise SettingError(
                "device", device,
                f"a device with room: {needed.total:,} bytes are needed, {int(free):,} are free",
            )  # fmt: skip
