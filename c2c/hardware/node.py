"""Nodes: GPUs with links, from `conf/node` or a chip's slices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args

from c2c.errors import SettingError, check_keys, unknown_name
from c2c.hardware.conf import conf_name, read_fields, read_yaml
from c2c.hardware.mig import MigConfig
from c2c.hardware.platform import Platform, load_platform
from c2c.hardware.slices import Slice, slices
from c2c.ranges import AboveZero, check_fields

__all__ = ["Node", "PeerLink", "cut_node", "load_node", "node_from_mapping"]

LinkKind = Literal["network", "nvlink", "pcie"]
_HOST: Final = "host"  # kind of the link between slices: the chip's, to host memory
_KEYS: Final = ("name", "gpus", "links", "usd_per_hour")  # of a file
_PORTS: Final = {"network": "card", "pcie": "slot"}  # a GPU's port, which its transfers share


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """Links of one kind in a node.

    Attributes:
      name: key in the node's file.
      kind: "network" or "pcie", shared by a GPU's transfers; "nvlink", wires between each two GPUs.
      gbps: rate each way, 1e9 bytes a second.
      between: joined GPUs; (): all.
    """

    name: str
    kind: str
    gbps: AboveZero
    latency_s: AboveZero
    between: tuple[int, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Node:
    """Several GPUs of one host, and their links.

    Attributes:
      gpus: names in `conf/hardware`, in order.
      links: of several between two GPUs the first is used.
      usd_per_hour: with the host; None: the GPUs' sum.
      chip: chip of sliced GPUs, see `cut_node`; None: whole.
      parts: slices, the largest first.
    """

    name: str
    gpus: tuple[str, ...]
    links: tuple[PeerLink, ...] = ()
    usd_per_hour: AboveZero | None = None
    chip: Platform | None = None
    parts: tuple[Slice, ...] = ()

    def __post_init__(self) -> None:
        where, count = f"node.{self.name}", len(self.gpus)
        if count < 2:
            raise SettingError(f"{where}.gpus", list(self.gpus), "two or more names")
        kinds: tuple[str, ...] = (_HOST,)
        if self.chip is None:
            kinds = get_args(LinkKind)
            named = tuple(conf_name("hardware", gpu, f"{where}.gpus") for gpu in self.gpus)
            object.__setattr__(self, "gpus", named)
        check_fields(self, where)
        for link in self.links:
            here = f"{where}.links.{link.name}"
            if link.kind not in kinds:
                raise unknown_name(f"{here}.kind", link.kind, kinds)
            check_fields(link, here)
            joined = set(link.between)
            is_one = len(joined) < max(2, len(link.between))
            if link.between and (is_one or not joined <= {*range(count)}):
                raise SettingError(
                    f"{here}.between", list(link.between),
                    f"two or more different numbers of GPUs, 0 to {count - 1}",
                )  # fmt: skip

    @cached_property
    def platforms(self) -> tuple[Platform, ...]:
        """Platforms of the GPUs, with equal parts of the node's price, slices by SMs."""
        if self.chip is not None:
            sms = sum(part.sm_count for part in self.parts)
            return tuple(_cut(self.chip, part, part.sm_count / sms) for part in self.parts)
        result = tuple(map(load_platform, self.gpus))
        if self.usd_per_hour is None:
            return result
        gpu_usd = self.usd_per_hour / len(result)
        return tuple(replace(one, gpu=replace(one.gpu, usd_per_hour=gpu_usd)) for one in result)

    @property
    def chips(self) -> tuple[str, ...]:
        """Names of the GPUs' chips, each once."""
        return (self.chip.name,) if self.chip else tuple(dict.fromkeys(self.gpus))

    def link(self, source: int, target: int) -> PeerLink | None:
        """Return the link between two GPUs, or None."""
        ends = {source, target}
        if len(ends) < 2:
            return None
        return next((k for k in self.links if not k.between or ends <= set(k.between)), None)

    def seconds(self, nbytes: float, source: int, target: int) -> float:
        """Return the seconds of a transfer alone; infinity without a link."""
        link = self.link(source, target)
        return math.inf if link is None else link.latency_s + nbytes / (link.gbps * 1e9)

    def ways(self, source: int, target: int) -> tuple[str, ...]:
        """Return a transfer's resources; shared names contend."""
        link = self.link(source, target)
        if link is None:
            return ()
        if link.kind == _HOST:
            return ("link",)
        port = _PORTS.get(link.kind)
        if port is None:
            return (f"{link.name} {source} to {target}",)
        return (f"{port} out of {source}", f"{port} into {target}")


def cut_node(chip: Platform, mig: MigConfig | str, *, gbps: float, latency_s: float) -> Node:
    """Return the slices of a chip as a node, the largest first.

    A transfer goes through host memory, over the chip's link.

    Args:
      mig: of at least two slices.
      gbps: of a transfer alone, 1e9 bytes a second; `latency_s` likewise.

    Raises:
      SettingError: no such layout, or one slice.
    """
    parts = tuple(sorted(slices(chip, mig), key=lambda part: -part.hbm_bytes))
    name = mig if isinstance(mig, str) else mig.name
    if len(parts) < 2:
        raise SettingError("mig", name, "a layout of at least two slices, as a node's GPUs")
    link = PeerLink(name="link", kind=_HOST, gbps=gbps, latency_s=latency_s)
    gpus = tuple(part.name for part in parts)
    return Node(name=f"{chip.name}/{name}", gpus=gpus, links=(link,), chip=chip, parts=parts)


def _cut(chip: Platform, part: Slice, share: float) -> Platform:
    gpu, sms = chip.gpu, part.sm_count / chip.gpu.sm_count

    def of(whole: float | None, shared: float) -> float | None:
        return None if whole is None else whole * shared

    cut = replace(
        gpu, name=part.name, sm_count=part.sm_count, hbm_bytes=part.hbm_bytes,
        hbm_gbps=part.hbm_gbps, bf16_tflops=part.bf16_tflops, l2_bytes=part.l2_bytes,
        fp32_tflops=of(gpu.fp32_tflops, sms), l2_gbps=of(gpu.l2_gbps, sms),
        usd_per_hour=of(gpu.usd_per_hour, share), power_w=of(gpu.power_w, share),
        idle_w=of(gpu.idle_w, share),
    )  # fmt: skip
    return replace(chip, name=part.name, gpu=cut)


def load_node(name: str) -> Node:
    """Return the node of `conf/node/<name>.yaml`.

    Raises:
      SettingError: there is none, or an invalid value.
    """
    return node_from_mapping(read_yaml("node", name))


def node_from_mapping(data: Mapping[str, Any]) -> Node:
    """Build a node from data as in `conf/node/*.yaml`.

    Raises:
      SettingError: a missing, unknown or invalid field.
    """
    check_keys(data, _KEYS, "node")
    name, gpus, links = data.get("name"), data.get("gpus"), data.get("links") or {}
    if not isinstance(name, str) or not name:
        raise SettingError("node.name", name, "the node's name")
    named = _all_of(str, gpus, f"node.{name}.gpus", "a list of names of conf/hardware")
    if not isinstance(links, Mapping):
        raise SettingError(f"node.{name}.links", links, "a mapping from names to links")
    peer_links = tuple(_link(str(k), v, f"node.{name}.links.{k}") for k, v in links.items())
    return Node(name=name, gpus=named, links=peer_links, usd_per_hour=data.get("usd_per_hour"))


def _link(name: str, data: Any, where: str) -> PeerLink:
    if not isinstance(data, Mapping):
        raise SettingError(where, data, "a mapping")
    numbers = data.get("between") or ()
    between = _all_of(int, numbers, f"{where}.between", "a list of numbers of GPUs")
    flat = {key: value for key, value in data.items() if key != "between"}
    return replace(read_fields(PeerLink, {**flat, "name": name}, where), between=between)


def _all_of[T](kind: type[T], value: Any, where: str, allowed: str) -> tuple[T, ...]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or any(type(one) is not kind for one in value):
        raise SettingError(where, value, allowed)
    return tuple(value)
