"""Serving system: a policy for each decision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, get_type_hints

from c2c.compiling.decision import DecisionPoint, policy_name
from c2c.compiling.entries import Nothing
from c2c.errors import SettingError
from c2c.policies.admit import ReserveAll, may_join
from c2c.policies.alpha import Feedback, adjust_alpha
from c2c.policies.batch import Reserved, fill
from c2c.policies.chunk import Profiled, chunk_tokens
from c2c.policies.evict import AfterWaiting, LeastRecentlyUsed, goes_before, should_drain
from c2c.policies.experts import AllExperts, NoPrefetch, expert_worth, prefetch_weight
from c2c.policies.keep import NothingKept, layers_to_keep
from c2c.policies.load import Stream, weights_in
from c2c.policies.option import Both, NoOption, on_request
from c2c.policies.order import FirstCome, rank
from c2c.policies.place import BandwidthAware, place
from c2c.policies.route import LeastOutstanding, route
from c2c.policies.scale import OneInstance, wants_another
from c2c.policies.traits import KINDS, Traits, traits_of
from c2c.policies.turn import One, urgency
from c2c.policies.vary import AsAlpha, variant
from c2c.ranges import check_fields, typed

__all__ = [
    "DECISIONS",
    "PREPARATION",
    "Nothing",
    "Own",
    "System",
    "check_policy",
    "make_policy",
    "policy_settings",
]


class System(NamedTuple):
    """Policies of the serving loop, by decision."""

    route: Any = LeastOutstanding()
    scale: Any = OneInstance()
    place: Any = BandwidthAware()
    evict: Any = LeastRecentlyUsed()
    preempt: Any = AfterWaiting()
    admit: Any = ReserveAll()
    turn: Any = One()
    chunk: Any = Profiled()
    alpha: Any = Feedback()
    vary: Any = AsAlpha()
    keep: Any = NothingKept()
    experts: Any = AllExperts()
    prefetch: Any = NoPrefetch()
    order: Any = FirstCome()
    batch: Any = Reserved()
    option: Any = NoOption()

    def decision(self, setting: str) -> DecisionPoint:
        """Return the decision point of a setting's policies."""
        return DECISIONS[setting]

    @property
    def traits(self) -> Traits:
        """Constant traits of the policies."""
        policies = tuple(getattr(self, name) for name in Traits._fields)
        try:
            return _traits(policies, tuple(map(type, policies)))
        except TypeError:  # a policy with a field that is no number, which is refused elsewhere
            return _traits.__wrapped__(policies, ())


@lru_cache(maxsize=64)
def _traits(policies: tuple[Any, ...], _types: tuple[type, ...]) -> Traits:
    return Traits(*map(traits_of, (KINDS[name] for name in Traits._fields), policies))


# Policies called before the start.
PREPARATION: Final[Mapping[str, Any]] = {
    "load": Stream(),
}

# Setting -> the decision point that every policy of this kind implements.
DECISIONS: Final[Mapping[str, DecisionPoint]] = {
    "route": route,
    "scale": wants_another,
    "place": place,
    "evict": goes_before,
    "preempt": should_drain,
    "admit": may_join,
    "turn": urgency,
    "chunk": chunk_tokens,
    "alpha": adjust_alpha,
    "vary": variant,
    "keep": layers_to_keep,
    "experts": expert_worth,
    "prefetch": prefetch_weight,
    "order": rank,
    "batch": fill,
    "option": on_request,
    "load": weights_in,
}


class Own(NamedTuple):
    """Own arrays of the policies, from their `memory(self, fleet)`."""

    route: Any = Nothing()
    place: Any = Nothing()
    turn: Any = Nothing()
    vary: Any = Nothing()
    option: Any = Nothing()


def policy_settings(policy_type: type) -> dict[str, Any]:
    """Return the settings of a policy with its default values.

    >>> policy_settings(AfterWaiting)
    {'policy': 'after_waiting', 'after_s': 10.0}
    """
    defaults: Any = policy_type
    missing = dict.fromkeys(defaults._fields, "???")
    return {"policy": policy_name(policy_type)} | missing | dict(defaults._field_defaults)


def make_policy(setting: str, values: Mapping[str, Any], where: str = "system") -> Any:
    """Return the policy for settings.

    >>> make_policy("preempt", {"policy": "after_waiting", "after_s": 3})
    AfterWaiting(after_s=3.0)

    Args:
      setting: one of `DECISIONS`.
      where: prefix of setting names in errors.

    Raises:
      SettingError: an unknown policy or field, or a wrong value.
    """
    policy = _policy(DECISIONS[setting], values, f"{where}.{setting}")
    check_policy(setting, policy, where)
    return policy


def _policy(point: DecisionPoint, values: Mapping[str, Any], place_of: str) -> Any:
    fields = dict(values)
    name = fields.pop("policy", None)
    if name not in point.policies:
        raise SettingError(
            f"{place_of}.policy", name, f"one of {', '.join(sorted(point.policies))}"
        )
    policy_type: Any = point.policies[name]
    hints = get_type_hints(policy_type, include_extras=True)
    for field, value in fields.items():
        if field not in policy_type._fields:
            names = ", ".join(policy_type._fields) or "no fields"
            raise SettingError(f"{place_of}.{field}", value, f"a field of {name} ({names})")
        if hints.get(field) is not Any:
            fields[field] = typed(value, hints.get(field, float), f"{place_of}.{field}")
        elif isinstance(value, Mapping):  # a policy of its own, as those of `Both`
            fields[field] = _policy(point, value, f"{place_of}.{field}")
    missing = [
        f for f in policy_type._fields if f not in fields and f not in policy_type._field_defaults
    ]
    if missing:
        raise SettingError(
            f"{place_of}.{missing[0]}", None, f"a value; {name} has no default for it"
        )
    return policy_type(**fields)


def check_policy(setting: str, policy: Any, where: str = "system") -> None:
    """Raise SettingError for a value that is no policy of a decision, or has invalid settings.

    >>> check_policy("place", FirstCome())
    Traceback (most recent call last):
    c2c.errors.SettingError: system.place=FirstCome(): expected a policy of place.
    """
    point, place_of = DECISIONS[setting], f"{where}.{setting}"
    if not point.knows(type(policy)):
        hint = ""
        if isinstance(policy, str):
            names = ", ".join(sorted(point.policies))
            hint = f"Set {where}/{setting}=<name>, one of {names}."
        raise SettingError(place_of, policy, f"a policy of {point.__name__}", hint)
    _check_fields(point, policy, place_of)
    if setting in KINDS:
        traits_of(KINDS[setting], policy)


def _check_fields(point: DecisionPoint, policy: Any, place_of: str) -> None:
    check_fields(policy, place_of)
    if hasattr(policy, "check"):
        policy.check(place_of)
    if isinstance(policy, Both):
        for field, one in policy._asdict().items():
            if not point.knows(type(one)):
                names = ", ".join(sorted(point.policies))
                raise SettingError(f"{place_of}.{field}", one, f"{{policy: <one of {names}>}}")
            _check_fields(point, one, f"{place_of}.{field}")
