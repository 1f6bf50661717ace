"""Optional parts of the event loop, compiled on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, get_type_hints

from c2c.jit import when_compiling

__all__ = ["PARTS", "Apart", "Part", "apart"]


class Apart(NamedTuple):
    """Addresses of the parts; 0: not needed."""

    turns: int = 0
    deal: int = 0
    answer: int = 0
    choose_home: int = 0
    take_home: int = 0
    settle_memories: int = 0
    want_version: int = 0
    on_relaid: int = 0
    count_step: int = 0
    step_experts: int = 0
    start_experts: int = 0
    share_works: int = 0
    follow_works: int = 0
    begin_start: int = 0
    begin_steps: int = 0
    stop_works: int = 0
    end_works: int = 0
    begin_relayout: int = 0
    end_relayout: int = 0
    hand_on: int = 0
    carry: int = 0
    join_come: int = 0
    carried: int = 0
    shared_places: int = 0
    claim_prefix: int = 0
    note_computed: int = 0
    let_prefix_go: int = 0
    trim_prefixes: int = 0
    leave_late: int = 0
    give_up: int = 0
    run_steps: int = 0
    end_by_length: int = 0
    drop_sent: int = 0
    act_on_request: int = 0
    act_on_steps: int = 0
    act_on_timer: int = 0
    is_stuck: int = 0
    free_stuck: int = 0
    return_spare: int = 0
    has_adapter_slot: int = 0
    claim_adapter: int = 0
    release_adapter: int = 0
    plan_adapters: int = 0


class Part(NamedTuple):
    """An optional part of the loop; `is_needed` tests a run's values."""

    function: Callable[..., Any]
    is_needed: Callable[[Mapping[type, Any]], bool]

    def takes(self) -> tuple[Any, ...]:
        """Return its arguments' types."""
        return _takes(self.function)


@cache
def _takes(function: Callable[..., Any]) -> tuple[Any, ...]:
    hints = get_type_hints(function)
    hints.pop("return", None)
    return tuple(hints.values())


# Name in `Apart` -> part.
PARTS: Final[dict[str, Part]] = {}


def apart(
    name: str, *, needed: Callable[[Mapping[type, Any]], bool]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function called at `rules.apart.<name>`.

    It takes numbers and tuples of the loop, including `rules`; `needed` tests these, by type.
    """

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        PARTS[name] = Part(function, needed)

        def either(*args: Any) -> Any:
            return function(*args)

        when_compiling("part", either, function, name, Apart._fields.index(name))
        either.__name__, either.__doc__ = function.__name__, function.__doc__
        return either

    return keep
