"""Groups of a system's settings, each of which checks its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from c2c.errors import SettingError, unknown_name

__all__ = [
    "GROUPS",
    "Disaggregation",
    "Engines",
    "ExpertCache",
    "PrefixCache",
    "Profile",
    "as_group",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Engines of a slice, which take turns: `system.engines`.

    Attributes:
      residents: that a slice may hold.
      bytes: HBM of each beyond the first.
      share: of a slice's HBM that engines may take; a slice holds as many as that has room for, at
        least one and at most `residents`; inf: as many as `residents` says.
      kv_host_bytes: of a chip's host memory for KV caches of engines that wait for their turn,
        which go there when another engine needs the room; 0: KV caches stay in HBM.
      kv_windows: a layer with a window reserves no more than the window of a request; False: all
        tokens, as every other layer.
      turn_s: what changing the engine between two steps takes.
      tick_s: starts of engines begin at whole multiples of it; 0: at once.
    """

    residents: int = 1
    bytes: float = 0.5e9
    share: float = math.inf
    kv_host_bytes: float = 0.0
    kv_windows: bool = True
    turn_s: float = 0.0
    tick_s: float = 0.0

    def __post_init__(self) -> None:
        where = "system.engines"
        if self.residents < 1:
            raise SettingError(f"{where}.residents", self.residents, "a whole number above 0")
        for name in ("bytes", "kv_host_bytes", "turn_s", "tick_s"):
            if not getattr(self, name) >= 0.0:
                raise SettingError(f"{where}.{name}", getattr(self, name), "at least 0")
        if not (0.0 < self.share <= 1.0 or self.share == math.inf):
            raise SettingError(f"{where}.share", self.share, "a number in (0, 1], or inf")
        if not self.tick_s < math.inf:
            raise SettingError(f"{where}.tick_s", self.tick_s, "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prompts and decodes on devices of their own: `system.disaggregation`.

    Attributes:
      prompt_share: of the devices, for prompts only; the others decode what these hand over, with
        its KV cache, through host memory where `engines.kv_host_bytes` gives some, else from device
        to device. 0, or a single device: each does both. Of each chip's slices where it has
        several.
      hand_over_gbps: at which a KV cache goes from one chip to another; between slices of a chip
        the slower one's own share of the link decides.
    """

    prompt_share: float = 0.0
    hand_over_gbps: float = 50.0

    def __post_init__(self) -> None:
        where = "system.disaggregation"
        if not 0.0 <= self.prompt_share < 1.0:
            raise SettingError(f"{where}.prompt_share", self.prompt_share, "a share in [0, 1)")
        if not 0.0 < self.hand_over_gbps < math.inf:
            raise SettingError(f"{where}.hand_over_gbps", self.hand_over_gbps, "GB/s above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCache:
    """Experts of a mixture that HBM holds, where `experts` caches some: `system.expert_cache`.

    Attributes:
      share: of the HBM beside dense weights and activations, for cached experts; the rest is for KV
        caches. 1 leaves them what does not make an expert.
      on_miss: a missing expert is copied into the cache before its layer goes on (copy), or the
        kernel reads it from host memory and the cache stays as it is (stream).
      host_s: the host's work for an expert, which copies hide and which hides copies.
      host_per: it is done for each expert that a layer runs (use), or for each that it copies from
        host memory (fetch).
      misses: what a step lacks is found by walking its layers (exact), or taken from a table that
        the exact walk makes before the start (table), for long traces: one request at a time.
        auto: a table for a run of more than 1,000 requests, where there is one; else exact.
    """

    share: float = 0.9
    on_miss: str = "copy"
    host_s: float = 0.0
    host_per: str = "use"
    misses: str = "exact"

    def __post_init__(self) -> None:
        where = "system.expert_cache"
        if not 0.0 < self.share <= 1.0:
            raise SettingError(f"{where}.share", self.share, "a number in (0, 1]")
        if not self.host_s >= 0.0:
            raise SettingError(f"{where}.host_s", self.host_s, "at least 0")
        pairs = {"on_miss": "copy stream", "host_per": "use fetch", "misses": "exact table auto"}
        for name, pair in pairs.items():
            if getattr(self, name) not in pair.split():
                allowed = " or ".join(pair.split())
                raise SettingError(f"{where}.{name}", getattr(self, name), allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The table that `chunk` chooses from, C2CServe section 6.3: `system.profile`.

    Attributes:
      chunks: sizes in it.
      prompt_tokens: prompt that it is made with.
      ttft_share: of the TTFT target that prefill may take; the rest is left for queueing.
    """

    chunks: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096)
    prompt_tokens: int = 1024
    ttft_share: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", tuple(self.chunks))
        where = "system.profile"
        if not self.chunks or min(self.chunks) < 1:
            raise SettingError(f"{where}.chunks", self.chunks, "whole numbers above 0")
        if self.prompt_tokens < 1:
            raise SettingError(
                f"{where}.prompt_tokens", self.prompt_tokens, "a whole number above 0"
            )
        if not 0.0 < self.ttft_share <= 1.0:
            raise SettingError(f"{where}.ttft_share", self.ttft_share, "a number in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """Blocks of KV caches that later prompts with the same beginning use: `system.prefix_cache`.

    Only requests that carry block hashes have such blocks. Blocks that a request uses are shared in
    any case where the cache is on.

    Attributes:
      hbm: blocks that no request uses stay in what HBM has left.
      host_bytes: of a chip's host memory, for copies of the blocks of requests that have ended.
    """

    hbm: bool = False
    host_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.host_bytes < math.inf:
            raise SettingError(
                "system.prefix_cache.host_bytes", self.host_bytes, "bytes, 0 or more"
            )

    @property
    def is_on(self) -> bool:
        """True if anything is kept."""
        return self.hbm or self.host_bytes > 0.0


GROUPS: Final[Mapping[str, type]] = {
    "engines": Engines,
    "disaggregation": Disaggregation,
    "expert_cache": ExpertCache,
    "profile": Profile,
    "prefix_cache": PrefixCache,
}


def as_group(name: str, given: object) -> Any:
    """Return a group, which may be given as a mapping of its settings.

    Raises:
      SettingError: neither, or an unknown key.
    """
    group = GROUPS[name]
    if isinstance(given, group):
        return given
    if not isinstance(given, Mapping):
        raise SettingError(f"system.{name}", given, "a mapping, such as {name: value}")
    known = [f.name for f in fields(group)]
    for key, value in given.items():
        if key not in known:
            raise unknown_name(f"system.{name}.{key}", value, known, str(key), "a key among")
    return group(**given)
