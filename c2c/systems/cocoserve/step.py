"""Seconds of a decode step with copies of layers on several devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

from c2c.cost import StepTable, cache_places, step_table
from c2c.cost.kernel_graph import TimedGpu, timed_node
from c2c.errors import SettingError
from c2c.hardware import Node
from c2c.models import ModelSpec
from c2c.systems.cocoserve.placement import Placement

__all__ = ["Devices", "StepTime", "devices_of", "step_time"]

Partition = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of a decode step.

    Attributes:
      layers_s: each layer on its slowest device.
      transfers_s: activations between devices.
      rest_s: logits and host, on the first device.
      transfers: changes of the partition, and transfers to parts and back.
    """

    layers_s: float
    transfers_s: float
    rest_s: float
    transfers: int
    moved_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds of the whole step, without overlap."""
        return self.layers_s + self.transfers_s + self.rest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """A model over a node's GPUs.

    Attributes:
      tables: of each GPU, with weights in its memory.
    """

    spec: ModelSpec
    node: Node
    tables: tuple[StepTable, ...]

    @property
    def most_rows(self) -> int:
        """Largest timed batch."""
        return self.tables[0].max_tokens

    def layer_s(self, device: int, rows: int, context: int) -> float:
        """Return a layer's seconds on a device by rows and tokens a row."""
        table = self.tables[device]
        tokens = rows * cache_places(context, table.cache) / table.token_places
        whole = float(table.body_s[rows, 0]) + float(table.decode_attention_s[rows])
        return (whole + table.kv_read_s_per_token * tokens) / self.spec.layers

    def rest_s(self, device: int, rows: int) -> float:
        """Return the seconds of logits and host on the last device."""
        return float(self.tables[device].head_s[rows, 0]) + self.tables[device].step_overhead_s

    def transfer_s(self, before: Partition, after: Partition) -> tuple[float, int]:
        """Return seconds and bytes of a change that moves the fewest rows.

        Raises:
          SettingError: two devices without a link.
        """
        row = self.spec.hidden * self.spec.dtype_bytes
        busy_s: dict[str, float] = {}
        latency_s, moved = 0.0, 0
        for source, device, rows in _flows(before, after):
            link = self.node.link(source, device)
            if link is None:
                raise SettingError("device", device, f"a device with a link to device {source}")
            moved += rows * row
            latency_s = max(latency_s, link.latency_s)
            for way in self.node.ways(source, device):
                busy_s[way] = busy_s.get(way, 0.0) + rows * row / (link.gbps * 1e9)
        return latency_s + max(busy_s.values(), default=0.0), moved


def devices_of(
    spec: ModelSpec, node: Node, *, most_rows: int, gpus: tuple[TimedGpu, ...] = ()
) -> Devices:
    """Return a model over a node's GPUs, timed up to a batch.

    Args:
      most_rows: largest batch.
      gpus: GPUs with their constants; (): the node's, from `conf`.
    """
    table_of: dict[TimedGpu, StepTable] = {}
    timed = gpus or timed_node(node)
    for gpu in timed:
        if gpu not in table_of:
            table_of[gpu] = step_table(
                spec, gpu.part, gpu.constants, 1.0, max_tokens=most_rows, max_rows=most_rows,
                alphas=[0.0], weights="hbm",
            )  # fmt: skip
    return Devices(spec=spec, node=node, tables=tuple(table_of[gpu] for gpu in timed))


def step_time(placement: Placement, devices: Devices, *, batch: int, context: int) -> StepTime:
    """Return the time of a placement's decode step; layers end with their slowest copy.

    Args:
      context: tokens of KV a row.

    Raises:
      SettingError: other layers, an unknown device, no link, or too large a batch.
    """
    if placement.layers != devices.spec.layers:
        raise SettingError(
            "copies", placement.layers, f"{devices.spec.layers}, the layers of {devices.spec.name}"
        )
    if not 1 <= batch <= devices.most_rows:
        raise SettingError("batch", batch, f"1 to {devices.most_rows} rows")
    count = len(devices.tables)
    for device in placement.devices:
        if not 0 <= device < count:
            raise SettingError("device", device, f"0 to {count - 1} of {devices.node.name}")
    first, parts = placement.first, placement.partitions(batch)
    whole: Partition = {first: batch}
    layers_s = sum(
        len(list(run)) * max(devices.layer_s(d, rows, context) for d, rows in part.items())
        for part, run in groupby(parts)
    )
    crossings = [(a, b) for a, b in pairwise([whole, *parts, whole]) if a != b]
    for away in placement.parts:
        there: Partition = {away.device: batch}
        crossings += [(parts[away.layer], there), (there, parts[away.layer])]
    sent = [devices.transfer_s(a, b) for a, b in crossings]
    return StepTime(
        layers_s=layers_s,
        transfers_s=sum(seconds for seconds, _ in sent),
        rest_s=devices.rest_s(first, batch),
        transfers=len(sent),
        moved_bytes=sum(nbytes for _, nbytes in sent),
    )


def _flows(before: Partition, after: Partition) -> Iterator[tuple[int, int, int]]:
    surplus = {d: n - after.get(d, 0) for d, n in before.items() if n > after.get(d, 0)}
    for device, rows in sorted(after.items()):
        missing = rows - before.get(device, 0)
        for source in sorted(surplus):
            sent = min(missing, surplus[source])
            if sent > 0:
                yield source, device, sent
                missing -= sent
                surplus[source] -= sent
