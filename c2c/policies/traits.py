"""Traits: what is true of a policy at any time, as data. A policy's type carries those of its kind.

The event loop reads them from `Rules.traits`; what depends on the state is a decision. Their
attributes' order and types are those of compiled code.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

from c2c.compiling.decision import implementations
from c2c.compiling.guard import Returns, fits, located, where_is
from c2c.errors import PolicyError
from c2c.policies.returns import (
    A_CHUNK,
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
    "ChunkTraits",
    "ExpertsTraits",
    "ForgetTraits",
    "KeepTraits",
    "LoadTraits",
    "PlaceTraits",
    "PreemptTraits",
    "PrefetchTraits",
    "RecutTraits",
    "RouteTraits",
    "ScaleTraits",
    "StepTraits",
    "Traits",
    "TurnTraits",
    "VaryTraits",
    "instead_of",
    "traits_of",
]


class RouteTraits(NamedTuple):
    """Of a policy of `route`.

    Attributes:
      reads_end_times: whether `ends_s` of the rows is to be found for it.
    """

    reads_end_times: bool = False


class ScaleTraits(NamedTuple):
    """Of a policy of `scale`.

    Attributes:
      keep_alive_s: for how long an instance without work serves a request that comes; inf: any
        time.
    """

    keep_alive_s: float = math.inf


class PlaceTraits(NamedTuple):
    """Of a policy of `place`.

    Attributes:
      link_is_promised: whether inactive models give way until the promised link rates fit the
        budget.
      reads_promises: whether rows' `link_left_gbps`, `is_alone` and `unpromised_gbps` are read.
        They take a look at every instance of a chip, and are not filled in where nothing reads
        them.
      link_headroom: share of the link that may be promised.
      assumes_one_link: whether it takes links and disks of all chips to be the same; a fleet where
        they are not refuses it.
    """

    link_is_promised: bool = False
    reads_promises: bool = True
    link_headroom: float = 1.0
    assumes_one_link: bool = False


class PreemptTraits(NamedTuple):
    """Of a policy of `preempt`.

    Attributes:
      look_every_s: after how long a chip looks again whether a model has waited too long.
      sets_aside: whether requests give up their slice for a more urgent one that finds none.
      assumes_one_link: whether it takes links and disks of all chips to be the same; a fleet where
        they are not refuses it.
    """

    look_every_s: float
    sets_aside: bool = False
    assumes_one_link: bool = False


class AdmitTraits(NamedTuple):
    """Of a policy of `admit`.

    Attributes:
      kv_floor: share of a slice's room for KV caches that stays open for each of its models.
      kv_ceiling: share of it that one of its models may have.
      joins_decodes: whether a request joins a batch that decodes; else it waits until all of it
        ends.
    """

    kv_floor: float = 0.0
    kv_ceiling: float = 1.0
    joins_decodes: bool = True


class TurnTraits(NamedTuple):
    """Of a policy of `turn`.

    Attributes:
      takes_turns: whether a slice may have several engines with work, of which one is chosen.
      link_gate: share of the chip's link at which steps that only decode wait; inf: never. Such a
        step starts while the steps under way on the chip demand less than this.
      protected_share: share of the link up to which active engines are protected; 0: none is.
      goes_by_order: whether nothing of engines' rows is read but `order`; the rest is then not
        filled in. Only where no step waits for the link, and no engine is protected.
      reads_token_lines: whether `token_due_s` of engines' rows is read; it takes a look at every
        sequence.
    """

    takes_turns: bool = True
    link_gate: float = math.inf
    protected_share: float = 0.0
    goes_by_order: bool = False
    reads_token_lines: bool = True


class ChunkTraits(NamedTuple):
    """Of a policy of `chunk`.

    Attributes:
      smallest_chunk: the smallest that is weighed against `chunk_tokens` and its halves; 0: none.
    """

    smallest_chunk: int = 0


class AlphaTraits(NamedTuple):
    """Of a policy of `alpha`.

    Attributes:
      initial: alpha when a model is activated. Source: C2CServe section 6.4, alpha = 0; section
        6.1 step 4 would take it from the profiling table, which `Roofline` does at every step.
      knows_costs: whether alpha is chosen anew at every step from the cost model's predictions.
      others_weight: seconds that a second counts as by which a step under way elsewhere is delayed.
        At 0 the steps under way are not looked at. Read where costs are known.
      horizon_steps: after how many steps of a run of decode steps the choice is made anew.
    """

    initial: float = 0.0
    knows_costs: bool = False
    others_weight: float = 0.0
    horizon_steps: int = 1 << 60


class VaryTraits(NamedTuple):
    """Of a policy of `vary`.

    Attributes:
      follows_waits: whether it is told of requests that end, and chooses the variant.
      timer_s: when each chip's timer is due first; inf: it needs none.
    """

    follows_waits: bool = False
    timer_s: float = math.inf


class KeepTraits(NamedTuple):
    """Of a policy of `keep`.

    Attributes:
      keeps_weights: whether weights are ever kept.
      engines_kept: engines of a slice that may have layers in HBM, those that ran last; 0: all.
      displacing_share: from which share of its weights on, that it then would have in HBM, a model
        takes the room of others' kept layers; inf: never. An engine that has done so keeps its room
        as long as the policy of turns says (`c2c.policies.stay_s`).
      spreads_kept: whether so many layers' worth of weights is a share of every matrix.
    """

    keeps_weights: bool = True
    engines_kept: int = 0
    displacing_share: float = math.inf
    spreads_kept: bool = False


class ExpertsTraits(NamedTuple):
    """Of a policy of `experts`.

    Attributes:
      caches_experts: whether HBM holds some of the experts only.
      reads_probability: whether what an expert is worth depends on its `probability`; where it does
        not, a new prediction leaves open no question of who gives way.
    """

    caches_experts: bool = True
    reads_probability: bool = True


class PrefetchTraits(NamedTuple):
    """Of a policy of `prefetch`: what it stores of past sequences, and how it compares them.

    Attributes:
      rows: matrices [layer, expert] of tokens that took an expert; 0: nothing is stored.
      of_token: a matrix is of one step, else of a whole sequence.
      compares_seen: by the layers that have run; else by none, and all are equally far.
      embedded: layers at the start that are predicted by the requests' embeddings; 0: none.
      ahead: layers that a prediction reaches; 0: all.
    """

    rows: int = 0
    of_token: bool = False
    compares_seen: bool = True
    embedded: int = 0
    ahead: int = 0


class ForgetTraits(NamedTuple):
    """Of a policy of `forget`.

    Attributes:
      weights_first: whether kept weights have HBM before blocks that nobody uses.
      looks_at: blocks that are weighed, those unused for longest.
    """

    weights_first: bool = True
    looks_at: int = 1


class LoadTraits(NamedTuple):
    """Of a policy of `load`, read before the start.

    Attributes:
      swaps_weights: whether the engines of a slice share one room in HBM for their weights.
      fetches_ahead: whether the next engine's weights are copied into a second room during a turn.
    """

    swaps_weights: bool = False
    fetches_ahead: bool = False


class RecutTraits(NamedTuple):
    """Of a policy of `recut`, read before the start.

    Attributes:
      requests: that layouts are weighed by, the last ones that came; 0: the layout stays.
      before: requests that came before these and fill the chips.
      margin: share of them below which a difference between two layouts changes nothing. While the
        layout that is there has all but so many in time, the others are not weighed.
      drain: requests that compute on a slice that goes end there, or they begin again elsewhere.
    """

    requests: int = 0
    before: int = 0
    margin: float = 0.0
    drain: bool = True


class StepTraits(NamedTuple):
    """Of a policy of `step`, read before the start.

    Attributes:
      mixes: whether a step with prompt tokens computes the decodes, too; else they wait.
    """

    mixes: bool = True


class Traits(NamedTuple):
    """The traits of a system's policies, by setting, as the event loop reads them."""

    route: RouteTraits
    scale: ScaleTraits
    place: PlaceTraits
    preempt: PreemptTraits
    admit: AdmitTraits
    turn: TurnTraits
    chunk: ChunkTraits
    alpha: AlphaTraits
    vary: VaryTraits
    keep: KeepTraits
    experts: ExpertsTraits
    prefetch: PrefetchTraits
    forget: ForgetTraits


_ALLOWED: Final[Mapping[str, Returns]] = {
    "keep_alive_s": SECONDS,
    "link_headroom": A_SHARE,
    "look_every_s": SECONDS,
    "kv_floor": A_SHARE_OR_NONE,
    "kv_ceiling": A_SHARE,
    "link_gate": SHARE_OR_NEVER,
    "protected_share": A_SHARE_OR_NONE,
    "smallest_chunk": A_COUNT,
    "looks_at": A_CHUNK,
    "initial": UNIT,
    "others_weight": SECONDS,
    "horizon_steps": A_CHUNK,
    "timer_s": SHARE_OR_NEVER,
    "engines_kept": A_COUNT,
    "displacing_share": SHARE_OR_NEVER,
    "rows": A_COUNT,
    "embedded": A_COUNT,
    "ahead": A_COUNT,
    "requests": A_COUNT,
    "before": A_COUNT,
    "margin": A_SHARE_OR_NONE,
}
# Setting -> the type of its policies' traits.
KINDS: Final[Mapping[str, Any]] = get_type_hints(Traits) | {
    "load": LoadTraits,
    "recut": RecutTraits,
    "step": StepTraits,
}
_BY_TYPE: Final[Mapping[type, Returns]] = {bool: YES_OR_NO, float: A_NUMBER, int: A_COUNT}


def traits_of(kind: Any, policy: Any) -> Any:
    """Return a policy's traits, each as the type that compiled code reads.

    Args:
      kind: one of the types above.
      policy: without `traits` of its own it has the kind's defaults.

    Raises:
      PolicyError: they are of another kind or a value is not allowed; names file and line.
    """
    name = type(policy).__name__
    try:
        found = getattr(policy, "traits", None) or kind()
    except Exception as error:
        raise PolicyError(name, _reason(error, type(policy), kind)) from error
    if type(found) is not kind:
        raise PolicyError(
            name, f"{_where(type(policy))}: traits is {found!r}, not a {kind.__name__}"
        )
    hints, values = get_type_hints(kind), {}
    for field, value in found._asdict().items():
        allowed = _ALLOWED.get(field, _BY_TYPE[hints[field]])
        if not fits(value, allowed.kind) or (allowed.test and not allowed.test(value)):
            problem = f"the trait {field} is {value!r}, not {allowed.allowed}"
            raise PolicyError(name, f"{_where(type(policy))}: {problem}")
        values[field] = allowed.kind(value)
    return kind(**values)


def _reason(error: Exception, policy_type: type, kind: Any) -> str:
    own = getattr(policy_type, "traits", None)
    if isinstance(own, property) and own.fget is not None:
        return located(error, own.fget)
    needed = ", ".join(f"{f}=..." for f in kind._fields if f not in kind._field_defaults)
    return f"{_where(policy_type)}: it says no traits = {kind.__name__}({needed})"


def _where(policy_type: type) -> str:
    """Return file and line of a policy's traits, of its class where they are plain data."""
    own = getattr(policy_type, "traits", None)
    if isinstance(own, property) and own.fget is not None:
        return where_is(own.fget)
    made = implementations(policy_type)
    if not made:
        return policy_type.__module__
    file = made[0].__code__.co_filename
    linecache.checkcache(file)
    for number, line in enumerate(linecache.getlines(file), 1):
        if line.startswith((f"class {policy_type.__name__}(", f"class {policy_type.__name__}:")):
            return f"{Path(file).name}, line {number}"
    return where_is(made[0])


# Decisions of earlier versions whose answer is a trait now.
_OLD_NAMES: Final[Mapping[str, str]] = {
    "initial_alpha": "AlphaTraits(initial=...)",
    "tracing": "PrefetchTraits(rows=..., of_token=..., ...)",
} | {field: f"{kind.__name__}({field}=...)" for kind in KINDS.values() for field in kind._fields}


def instead_of(old: str) -> str | None:
    """Return what stands for a decision of an earlier version that is a trait now, None: nothing.

    >>> instead_of("takes_turns")
    'TurnTraits(takes_turns=...)'
    """
    return _OLD_NAMES.get(old)
