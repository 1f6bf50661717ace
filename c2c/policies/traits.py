"""Traits: constants of a policy."""

from __future__ import annotations

import linecache
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

from c2c.compiling.decision import implementations
from c2c.compiling.guard import Returns, fits, where_is
from c2c.errors import PolicyError, located
from c2c.policies.returns import (
    A_COUNT,
    A_NUMBER,
    A_SHARE,
    A_SHARE_OR_NONE,
    SECONDS,
    SHARE_OR_NEVER,
    UNIT,
    YES_OR_NO,
)

__all__ = [
    "KINDS",
    "AdmitTraits",
    "AlphaTraits",
    "BatchTraits",
    "ExpertsTraits",
    "KeepTraits",
    "LoadTraits",
    "PlaceTraits",
    "PreemptTraits",
    "PrefetchTraits",
    "RouteTraits",
    "Traits",
    "TurnTraits",
    "VaryTraits",
    "traits_of",
]


class RouteTraits(NamedTuple):
    """Traits of a `route` policy.

    Attributes:
      reads_end_times: whether it reads `ends_s` of the rows.
    """

    reads_end_times: bool = False


class PlaceTraits(NamedTuple):
    """Traits of a `place` policy.

    Attributes:
      link_is_promised: whether idle models are evicted for promised rates.
      reads_promises: whether it reads `link_left_gbps`, `is_alone` and `unpromised_gbps`.
      link_headroom: share of the link to promise.
    """

    link_is_promised: bool = False
    reads_promises: bool = True
    link_headroom: float = 1.0


class PreemptTraits(NamedTuple):
    """Traits of a `preempt` policy.

    Attributes:
      look_every_s: between a chip's checks for long waits.
      sets_aside: whether requests yield their slice to more urgent ones.
    """

    look_every_s: float
    sets_aside: bool = False


class AdmitTraits(NamedTuple):
    """Traits of an `admit` policy.

    Attributes:
      kv_floor: share of a slice's KV room open to each model.
      kv_ceiling: share of a slice's KV room for one model.
      joins_decodes: whether requests join decodes.
    """

    kv_floor: float = 0.0
    kv_ceiling: float = 1.0
    joins_decodes: bool = True


class TurnTraits(NamedTuple):
    """Traits of a `turn` policy.

    Attributes:
      takes_turns: whether several engines may have work.
      link_gate: link use at which decode-only steps wait; inf: never.
      protected_share: link use up to which active engines are protected.
      goes_by_order: whether it reads only `order` of rows; without gate and protection.
      reads_token_lines: whether it reads `token_due_s`.
    """

    takes_turns: bool = True
    link_gate: float = math.inf
    protected_share: float = 0.0
    goes_by_order: bool = False
    reads_token_lines: bool = True


class AlphaTraits(NamedTuple):
    """Traits of an `alpha` policy.

    Attributes:
      initial: alpha of an activated model. Source: C2CServe section 6.4, alpha = 0.
      knows_costs: whether alpha is chosen at every step.
    """

    initial: float = 0.0
    knows_costs: bool = False


class VaryTraits(NamedTuple):
    """Traits of a `vary` policy.

    Attributes:
      follows_waits: whether it sees ended requests.
      timer_s: first time of each chip's timer; inf: no timer.
      caps_batch: whether it bounds a batch's requests.
    """

    follows_waits: bool = False
    timer_s: float = math.inf
    caps_batch: bool = False


class KeepTraits(NamedTuple):
    """Traits of a `keep` policy.

    Attributes:
      keeps_weights: whether any weights are kept.
      engines_kept: a slice's engines with layers in HBM, those that ran last; 0: all.
      displacing_share: share of its weights in HBM from which a model may take others' room; inf:
        never.
    """

    keeps_weights: bool = True
    engines_kept: int = 0
    displacing_share: float = math.inf


class BatchTraits(NamedTuple):
    """Traits of a `batch` policy.

    Attributes:
      is_default: whether it is `Reserved`.
      grows: whether KV caches grow with answers; else they are reserved whole.
    """

    is_default: bool = False
    grows: bool = True


class OptionTraits(NamedTuple):
    """Traits of an `option`.

    Attributes:
      acts: whether there is one.
      acts_when_idle: whether its timer also runs while no request is open.
    """

    acts: bool = True
    acts_when_idle: bool = False


class ExpertsTraits(NamedTuple):
    """Traits of an `experts` policy.

    Attributes:
      caches_experts: whether HBM holds only some experts.
      reads_probability: whether an expert's worth depends on its `probability`.
    """

    caches_experts: bool = True
    reads_probability: bool = True


class PrefetchTraits(NamedTuple):
    """Traits of a `prefetch` policy.

    Attributes:
      rows: stored matrices [layer, expert] of past tokens; 0: none.
      of_token: whether of a step, not a sequence.
      embedded: first layers, by embeddings; 0: none.
      ahead: layers that a prediction reaches; 0: all.
    """

    rows: int = 0
    of_token: bool = False
    embedded: int = 0
    ahead: int = 0


class LoadTraits(NamedTuple):
    """Traits of a `load` policy.

    Attributes:
      swaps_weights: whether a slice's engines share one room for weights.
      fetches_ahead: whether the next engine's weights are copied during a turn.
    """

    swaps_weights: bool = False
    fetches_ahead: bool = False


# The loop reads them from `Rules.traits`; compiled code depends on the order and types of fields.
class Traits(NamedTuple):
    """Traits of a system's policies, by setting."""

    route: RouteTraits
    place: PlaceTraits
    preempt: PreemptTraits
    admit: AdmitTraits
    turn: TurnTraits
    alpha: AlphaTraits
    vary: VaryTraits
    keep: KeepTraits
    experts: ExpertsTraits
    prefetch: PrefetchTraits
    batch: BatchTraits
    option: OptionTraits


_ALLOWED: Final[Mapping[str, Returns]] = {
    "link_headroom": A_SHARE,
    "look_every_s": SECONDS,
    "kv_floor": A_SHARE_OR_NONE,
    "kv_ceiling": A_SHARE,
    "link_gate": SHARE_OR_NEVER,
    "protected_share": A_SHARE_OR_NONE,
    "initial": UNIT,
    "timer_s": SHARE_OR_NEVER,
    "engines_kept": A_COUNT,
    "displacing_share": SHARE_OR_NEVER,
    "rows": A_COUNT,
    "embedded": A_COUNT,
    "ahead": A_COUNT,
}
# Setting -> the type of its policies' traits.
KINDS: Final[Mapping[str, Any]] = get_type_hints(Traits) | {
    "load": LoadTraits,
}
_HINTS: Final = {kind: get_type_hints(kind) for kind in KINDS.values()}
_BY_TYPE: Final[Mapping[type, Returns]] = {bool: YES_OR_NO, float: A_NUMBER, int: A_COUNT}


def traits_of(kind: Any, policy: Any) -> Any:
    """Return a policy's traits for compiled code.

    Raises:
      PolicyError: wrong traits or values, with file and line.
    """
    name = type(policy).__name__
    try:
        traits = getattr(policy, "traits", None) or kind()
    except Exception as error:
        raise PolicyError(name, _reason(error, type(policy), kind)) from error
    if type(traits) is not kind:
        raise PolicyError(
            name, f"{_where(type(policy))}: traits is {traits!r}, not a {kind.__name__}"
        )
    hints, values = _HINTS[kind], {}
    for field, value in traits._asdict().items():
        allowed = _ALLOWED.get(field, _BY_TYPE[hints[field]])
        if not fits(value, allowed.kind) or (allowed.test and not allowed.test(value)):
            problem = f"the trait {field} is {value!r}, not {allowed.allowed}"
            raise PolicyError(name, f"{_where(type(policy))}: {problem}")
        values[field] = allowed.kind(value)
    return kind(**values)


def _reason(error: Exception, policy_type: type, kind: Any) -> str:
    attribute = getattr(policy_type, "traits", None)
    if isinstance(attribute, property) and attribute.fget is not None:
        return located(error, attribute.fget)
    needed = ", ".join(f"{f}=..." for f in kind._fields if f not in kind._field_defaults)
    return f"{_where(policy_type)}: it says no traits = {kind.__name__}({needed})"


def _where(policy_type: type) -> str:
    attribute = getattr(policy_type, "traits", None)
    if isinstance(attribute, property) and attribute.fget is not None:
        return where_is(attribute.fget)
    functions = implementations(policy_type)
    if not functions:
        return policy_type.__module__
    file = functions[0].__code__.co_filename
    linecache.checkcache(file)
    for number, line in enumerate(linecache.getlines(file), 1):
        if line.startswith((f"class {policy_type.__name__}(", f"class {policy_type.__name__}:")):
            return f"{Path(file).name}, line {number}"
    return where_is(functions[0])
