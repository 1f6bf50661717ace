"""Copies of layers with weights in host memory (beyond the paper)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from c2c.cost import StepTable, calibration_for, load_constants, step_table
from c2c.hardware import Node, PeerLink, load_platform, slices
from c2c.hardware import link_gbps as link_gbps_of
from c2c.models import ModelSpec, kv_bytes_per_token, load_spec, weight_bytes
from c2c.ranges import Count, FromZero, Share
from c2c.systems.cocoserve import Devices, Placement, layer_bytes, step_time
from experiments.figure import SYSTEMS, Computed, Context, figure

__all__ = ["HostCopies", "compute"]

Where = Literal["device", "host"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """Experiment: chip, layout, model, batch, second slice, and times.

    Attributes:
      context: tokens of each row.
      most_rows: most rows of a batch.
      reserve_bytes: of each slice, for activations and a process.
      rooms: free shares of the second slice's memory.
      latency_s: of activations between slices.
      alphas: number of values of alpha.
    """

    platform: str
    mig: str
    model: str
    context: Count
    most_rows: Count
    reserve_bytes: FromZero
    rooms: dict[str, Share]
    latency_s: FromZero
    alphas: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """A model on a slice: memory, and step tables by location of weights."""

    of: HostCopies
    spec: ModelSpec
    room_bytes: float
    tables: dict[Where, StepTable]
    link_gbps: float


@figure("cocoserve.host_copies", title="CoCoServe with copies that read host memory",
        experiment=HostCopies, draw=".drawing_beyond.draw_host_copies", needs=SYSTEMS,
        beyond=True)  # fmt: skip
def compute(context: Context, experiment: HostCopies) -> Computed:
    """Return rows and tokens a second by method and layers, and the best."""
    here = _slice(context, experiment)
    rows = list(_rows(here))
    ways = dict.fromkeys(row["way"] for row in rows)
    best = [
        max((r for r in rows if r["way"] == way), key=lambda r: r["tokens_per_s"]) for way in ways
    ]
    top = max(best, key=lambda r: r["tokens_per_s"])
    alone = max((r for r in rows if r["layers"] == 0), key=lambda r: r["tokens_per_s"])
    return Computed(
        tables={
            "copies": pa.Table.from_pylist(rows),
            "best": pa.Table.from_pylist(best),
        },
        finding=(
            f"Most tokens/s, {top['tokens_per_s'] / alone['tokens_per_s']:.1f} times those of one "
            f"slice alone: {top['way']}"
        ),
        caption=(
            "Lines: tokens/s and rows of one model by layers copied to a second slice or read "
            f"from host memory, {context.link_text(here.link_gbps)}."
        ),
        assumptions=(
            f"The model is {here.spec.name} on a slice of layout {experiment.mig} of a GH200.",
            f"Rows have {experiment.context} tokens each, and a batch has as many rows as memory "
            "holds.",
            "Copies on the second slice compute half of the rows.",
            "Weights of copies are in the second slice's memory, or are read from host memory.",
            f"Activations between slices go through host memory in "
            f"{1e6 * experiment.latency_s:g} us, an assumption.",
            "Times are a roofline's, without queueing.",
            "One model uses the link.",
        ),
        results=(),
    )


def _slice(context: Context, experiment: HostCopies) -> _Slice:
    platform, spec = load_platform(experiment.platform), load_spec(experiment.model)
    constants = load_constants(calibration_for(platform.name))
    part, *_ = slices(platform, experiment.mig)
    link_gbps = link_gbps_of(platform.link, context.link_variant)
    tables: dict[Where, StepTable] = {}
    kinds: dict[Where, Literal["hbm", "host"]] = {"device": "hbm", "host": "host"}
    for where, weights in kinds.items():
        table = step_table(
            spec, part, constants, link_gbps, max_tokens=experiment.most_rows,
            max_rows=experiment.most_rows, alphas=np.linspace(0.0, 1.0, experiment.alphas),
            weights=weights,
        )  # fmt: skip
        best_s = table.body_s.min(axis=1, keepdims=True)
        head_s = table.head_s.min(axis=1, keepdims=True)
        tables[where] = replace(table, body_s=best_s, head_s=head_s)
    room = part.hbm_bytes - experiment.reserve_bytes
    return _Slice(of=experiment, spec=spec, room_bytes=room, tables=tables, link_gbps=link_gbps)


def _rows(here: _Slice) -> Iterator[dict[str, Any]]:
    spec = here.spec
    for layers in range(0, spec.layers + 1, 2):
        for where in here.tables:
            for name, share in here.of.rooms.items():
                way = f"copies in {where} memory, second slice {name}"
                batch = _batch(here, layers, where, share * here.room_bytes)
                yield _row(way, layers, batch, _copied(here, layers, where, batch))
        batch = _batch_alone(here, layers)
        yield _row("layers in host memory, no second slice", layers, batch,
                   _alone(here, layers, batch))  # fmt: skip


def _row(way: str, layers: int, batch: int, step_s: float) -> dict[str, Any]:
    rate = batch / step_s if batch else 0.0
    return {"way": way, "layers": layers, "rows": batch, "step_s": step_s, "tokens_per_s": rate}


def _row_bytes(here: _Slice) -> float:
    return float(here.of.context * kv_bytes_per_token(here.spec))


def _batch(here: _Slice, layers: int, where: Where, there_bytes: float) -> int:
    row_bytes, share = _row_bytes(here), layers / here.spec.layers
    first = (here.room_bytes - weight_bytes(here.spec)) / (row_bytes * (1.0 - share / 2.0))
    second = there_bytes - layers * layer_bytes(here.spec)[0] * (where == "device")
    if second < 0.0:
        return 0
    return int(
        min(first, second / (row_bytes * share / 2.0) if layers else first, here.of.most_rows)
    )


def _copied(here: _Slice, layers: int, where: Where, batch: int) -> float:
    if batch == 0:
        return 0.0
    link = PeerLink(
        name="host", kind="nvlink", gbps=here.link_gbps / 2.0, latency_s=here.of.latency_s
    )
    node = Node(name="slices", gpus=(here.of.platform, here.of.platform), links=(link,))
    tables = here.tables["device"], here.tables[where]
    devices = Devices(spec=here.spec, node=node, tables=tables)
    placement = Placement.unscaled(here.spec.layers)
    if layers and batch > 1:
        placement = placement.replicated(range(layers), 1)
    return step_time(placement, devices, batch=batch, context=here.of.context).seconds


def _batch_alone(here: _Slice, layers: int) -> int:
    freed = layers * layer_bytes(here.spec)[0]
    room = here.room_bytes - weight_bytes(here.spec) + freed
    return int(min(room / _row_bytes(here), here.of.most_rows))


def _alone(here: _Slice, layers: int, batch: int) -> float:
    share = layers / here.spec.layers
    resident, streamed = here.tables["device"], here.tables["host"]
    body_s = (1.0 - share) * resident.body_s[batch, 0] + share * streamed.body_s[batch, 0]
    kv_s = (
        resident.kv_read_s_per_token * batch * here.of.context + resident.decode_attention_s[batch]
    )
    return float(body_s + kv_s + resident.head_s[batch, 0] + resident.step_overhead_s)
