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
      residents: most engines of a slice.
      bytes: HBM of each engine beyond the first.
      share: share of a slice's HBM for engines, of which at least one fits; inf: no bound.
      kv_host_bytes: host memory of a chip for waiting engines' KV caches; 0: they stay in HBM.
      kv_windows: whether a layer with a window reserves at most its window.
      turn_s: seconds of a change of the engine between two steps.
    """

    residents: Count = 1
    bytes: FromZero = 0.5e9
    share: Annotated[float, In("(0, 1]", or_inf=True)] = math.inf
    kv_host_bytes: FromZero = 0.0
    kv_windows: bool = True
    turn_s: FromZero = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prompts and decodes on separate devices: `system.disaggregation`.

    Attributes:
      prompt_share: share of devices (or of each chip's slices) for prompts alone; 0: each does
        both. KV caches go through host memory if `engines.kv_host_bytes` is above 0.
      hand_over_gbps: rate of a KV cache between chips, 1e9 bytes/s; slices of a chip use their
        link.
    """

    prompt_share: BelowOne = 0.0
    hand_over_gbps: AboveZero = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCache:
    """Cache in HBM of a mixture's experts: `system.expert_cache`.

    Attributes:
      share: share of the HBM beside dense weights and activations for experts; the rest is for KV.
      on_miss: copy a missing expert into the cache before its layer continues, or stream it.
      host_s: host seconds for an expert, which overlap with copies.
      host_per: event that costs `host_s`: use (each expert of a layer) or fetch (each copy).
      misses: source of a step's misses: exact (a walk through its layers), table (made before the
        start, for one request at a time) or auto (a table for more than 1,000 requests).
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
      prompt_tokens: length of the reference prompt.
      ttft_share: share of the TTFT target for prefill.
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
    """KV-cache blocks for later prompts, by requests' hashes: `system.prefix_cache`.

    Attributes:
      hbm: whether unused blocks stay in free HBM.
      host_bytes: host memory of a chip for ended requests' blocks.
    """

    hbm: bool = False
    host_bytes: FromZero = 0.0

    @property
    def is_on(self) -> bool:
        """True if any unused block is kept."""
        return self.hbm or self.host_bytes > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCache:
    """Adapters in HBM: `system.adapter_cache`.

    Attributes:
      slots: adapters of a model that a slice holds, each as large as the base's largest; 0: steps
        read them over the link.
    """

    slots: Index = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding, in the mean: `system.speculation`.

    Attributes:
      tokens: drafted tokens of a decode that a pass verifies; 0: no speculation.
      acceptance: probability that a draft is accepted where those before it were.
      drafts: drafting model, or `lookup` (n-grams, without cost), by a model's spec; other models
        do not speculate.
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


def as_group(name: str, value: object) -> Any:
    """Return a group from a group or mapping."""
    group: Any = GROUPS[name]
    if isinstance(value, group):
        check_fields(value, f"system.{name}")
        return value
    if not isinstance(value, Mapping):
        raise SettingError(f"system.{name}", value, "a mapping, such as {name: value}")
    check_keys(value, [f.name for f in fields(group)], f"system.{name}")
    return as_group(name, group(**value))
