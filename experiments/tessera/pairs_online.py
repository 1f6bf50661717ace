"""GPT-oss 20B online on a pair: lanes of every way, and what a rate of requests gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from c2c.models import load_spec
from c2c.systems.tessera import (
    Arrival,
    Lane,
    Lanes,
    Monitor,
    Server,
    decode_only,
    load_pair,
    serve,
)
from experiments.tessera.workloads import GPT_OSS, MEDIANS, MXFP4_BYTES

__all__ = ["IN_FLIGHT", "ONLINE", "OnPair", "capacity_rps", "latency_s", "on_pair", "tessera_on"]

ONLINE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "left": "left GPU alone",
        "replicas": "two GPUs apart",
        "pd": "PD",
        "af": "AF",
        "tessera": "Tessera",
    }
)
IN_FLIGHT: Final = 2  # batches that share the continuous batch under the throughput policy
_CONTEXT: Final = MEDIANS[0] + MEDIANS[1] // 2


class OnPair:
    """GPT-oss 20B on a pair: lanes of each way, made when they are asked for."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes

    @cached_property
    def single(self) -> tuple[Lane, Lane]:
        """Each GPU alone."""
        return self.lanes.single(0), self.lanes.single(1)

    @cached_property
    def attention(self) -> tuple[Lane, Lane]:
        """Attention on the left GPU, and on the right one."""
        return self.lanes.attention_ffn(0), self.lanes.attention_ffn(1)

    @cached_property
    def latency(self) -> Lane:
        """The placement under the latency policy."""
        return self.lanes.placed("latency")

    @cached_property
    def throughput(self) -> Lane:
        """The placement under the throughput policy."""
        return self.lanes.placed("throughput")


@cache
def on_pair(name: str, gbps: float | None = None) -> OnPair:
    """Return GPT-oss 20B on a pair, at another rate of the link where one is given."""
    return OnPair(
        Lanes(
            spec=load_spec(GPT_OSS), pair=load_pair(name), context=_CONTEXT,
            expert_bytes=MXFP4_BYTES, gbps=gbps,
        )
    )  # fmt: skip


def capacity_rps(pair: OnPair) -> float:
    """Return what the left GPU alone sustains of median requests, 64 of them in a batch."""
    left, (prompt, output) = pair.single[0], MEDIANS
    return 1 / (left.prefill.at(prompt)[1] + output / 64 * left.decode.at(64)[1])


def tessera_on(pair: OnPair, monitor: Monitor) -> Server:
    """Return Tessera: one batch under the latency policy, several under the other."""
    return Server(
        {"latency": (pair.latency,), "throughput": (pair.throughput,) * IN_FLIGHT}, monitor
    )


def latency_s(pair: OnPair, way: str, arrivals: Sequence[Arrival]) -> float:
    """Return the mean latency a token; PD and AF in their better direction.

    `way` is one of `ONLINE`, or "light": Tessera's latency policy for good.
    """
    if way == "pd":
        return min(_apart(pair, arrivals, u) for u in (0, 1))
    if way == "af":
        servers = [Server({"latency": (lane,) * IN_FLIGHT}) for lane in pair.attention]
    elif way == "left":
        servers = [Server({"latency": pair.single[:1]})]
    elif way == "replicas":
        servers = [Server({"latency": pair.single})]
    elif way == "light":
        servers = [Server({"latency": (pair.latency,)})]
    else:
        servers = [tessera_on(pair, Monitor())]
    return min(_mean(server, arrivals) for server in servers)


def _mean(server: Server, arrivals: Sequence[Arrival]) -> float:
    return float(np.mean([done.per_token_s for done in serve(server, arrivals)[0]]))


def _apart(pair: OnPair, arrivals: Sequence[Arrival], prefill: Literal[0, 1]) -> float:
    """Return prefill on one GPU, one prompt after another, and decode on the other one."""
    gpu_s = link_s = 0.0
    handed = []
    for asked in arrivals:
        gpu_s = max(gpu_s, asked.at_s) + pair.single[prefill].prefill.at(asked.prompt)[1]
        link_s = max(link_s, gpu_s) + pair.lanes.handed_s(asked.prompt, prefill)
        handed.append(Arrival(link_s, asked.prompt, asked.output))
    server = Server({"latency": (decode_only(pair.single[1 - prefill]),)})
    done, _ = serve(server, handed)
    return float(
        np.mean([(d.ended_s - a.at_s) / a.output for d, a in zip(done, arrivals, strict=True)])
    )
