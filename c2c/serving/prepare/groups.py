"""Setting groups of a system."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

from c2c.cost import tokens_a_pass
from c2c.errors import SettingError, check_keys
from c2c.ranges import (
    AboveZero,
    BelowOne,
    Count,
    FromZero,
    In,
    Index,
    OneOf,
    SomeShare,
    check_fields,
)

__all__ = [
    "GROUPS",
    "AdapterCache",
    "Disaggregation",
    "Engines",
    "ExpertCache",
    "PrefixCache",
    "Profile",
    "Speculation",
    "as_group",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Engines of a slice, which take turns: `system.engines`.

    Attributes:
      residents: maximum engines of a slice.
      bytes: HBM of each engine beyond the first.
      share: share of a slice's HBM for engines; it bounds their number to what fits, at least one
        and at most `residents`; inf: `residents` is the only bound.
      kv_host_bytes: bytes of a chip's host memory for KV caches of waiting engines, which move
        there when another engine needs the room; 0: KV caches stay in HBM.
      kv_windows: whether a layer with a window reserves at most its window of a request; False: all
        tokens, as every other layer.
      turn_s: seconds that a change of the engine between two steps takes.
    """

    residents: Count = 1
    bytes: FromZero = 0.5e9
    share: Annotated[float, In("(0, 1]", or_inf=True)] = math.inf
    kv_host_bytes: FromZero = 0.0
    kv_windows: bool = True
    turn_s: FromZero = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Disaggregation of prompts and decodes onto separate devices: `system.disaggregation`.

    Attributes:
      prompt_share: share of devices (of each chip's slices if it has several) for prompts only. The
        others decode; they get the KV cache through host memory if `engines.kv_host_bytes` is above
        0, else from device to device. 0, or a single device: each does both.
      hand_over_gbps: rate of a KV cache between chips, 1e9 bytes/s; between slices of a chip the
        slower one's own share of the link decides.
    """

    prompt_share: BelowOne = 0.0
    hand_over_gbps: AboveZero = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCache:
    """Cache in HBM of a mixture's experts, if `experts` caches some: `system.expert_cache`.

    Attributes:
      share: share of the HBM beside dense weights and activations for cached experts; the rest is
        for KV caches. 1 leaves KV caches only the remainder below one expert.
      on_miss: handling of a missing expert: copied into the cache before its layer continues
        (copy), or read by the kernel from host memory with the cache unchanged (stream).
      host_s: host seconds for an expert, which overlap with copies.
      host_per: event that costs `host_s`: each expert that a layer runs (use), or each expert
        copied from host memory (fetch).
      misses: source of a step's misses: a walk through its layers (exact), or a table that the
        exact walk makes before the start (table), for long traces with one request at a time. auto:
        a table for more than 1,000 requests if there is one; else exact.
    """

    share: SomeShare = 0.9
    on_miss: Annotated[str, OneOf("copy", "stream")] = "copy"
    host_s: FromZero = 0.0
    host_per: Annotated[str, OneOf("use", "fetch")] = "use"
    misses: Annotated[str, OneOf("exact", "table", "auto")] = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The table from which `chunk` chooses, C2CServe section 6.3: `system.profile`.

    Attributes:
      chunks: chunk sizes in tokens.
      prompt_tokens: length of the reference prompt.
      ttft_share: share of the TTFT target for prefill; the rest is left for queueing.
    """

    chunks: tuple[Count, ...] = (128, 256, 512, 1024, 2048, 4096)
    prompt_tokens: Count = 1024
    ttft_share: SomeShare = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", tuple(self.chunks))
        if not self.chunks:
            raise SettingError("system.profile.chunks", self.chunks, "whole numbers above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """Reuse of KV-cache blocks by later prompts with the same beginning: `system.prefix_cache`.

    Only requests with block hashes have such blocks. With the cache on, blocks in use are always
    shared.

    Attributes:
      hbm: whether unused blocks stay in the free part of HBM.
      host_bytes: bytes of a chip's host memory for copies of ended requests' blocks.
    """

    hbm: bool = False
    host_bytes: FromZero = 0.0

    @property
    def is_on(self) -> bool:
        """True if any unused block is kept."""
        return self.hbm or self.host_bytes > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCache:
    """Adapters in HBM, if the catalog has some: `system.adapter_cache`.

    Attributes:
      slots: adapters of a model that a slice holds, each with the room of the base's largest; 0:
        each step reads its adapters over the link.
    """

    slots: Index = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding, in the mean: `system.speculation`.

    A step yields one token of each decode. It is a part of a pass that verifies `tokens` drafted
    ones and yields (1 - a^(tokens + 1)) / (1 - a) tokens in the mean, a the acceptance. Weights and
    KV caches of drafts are in HBM.

    Attributes:
      tokens: drafted tokens of a decode that a pass verifies; 0: no speculation.
      acceptance: probability that a drafted token is accepted where those before it were.
      drafts: the model that drafts, or `lookup` (of n-grams in the text, which costs nothing), by
        the name of a model's spec; models without one do not speculate.
    """

    tokens: Annotated[int, In("[0, 16]")] = 0
    acceptance: Annotated[float, In("[0, 1]")] = 0.7
    drafts: Mapping[str, str] = field(default_factory=dict)

    @property
    def passes(self) -> float:
        """Passes of a model for a token of a decode."""
        return 1.0 / tokens_a_pass(self.tokens, self.acceptance)


GROUPS: Final[Mapping[str, type]] = {
    "engines": Engines,
    "disaggregation": Disaggregation,
    "expert_cache": ExpertCache,
    "profile": Profile,
    "prefix_cache": PrefixCache,
    "adapter_cache": AdapterCache,
    "speculation": Speculation,
}


def as_group(name: str, given: object) -> Any:
    """Return a group from a group or a mapping of its settings."""
    group: Any = GROUPS[name]
    if isinstance(given, group):
        check_fields(given, f"system.{name}")
        return given
    if not isinstance(given, Mapping):
        raise SettingError(f"system.{name}", given, "a mapping, such as {name: value}")
    check_keys(given, [f.name for f in fields(group)], f"system.{name}")
    return as_group(name, group(**given))
