"""The allocation that an address belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from c2c.systems.medusa import first_match
from c2c.systems.medusa.owners import Owners
from c2c.systems.program import AllocationId, Event


def name(number: int) -> AllocationId:
    return AllocationId("main", "", number)


def walked_backwards(events: Sequence[Event], address: int) -> tuple[int, int] | None:
    """Section 4.1, as it is written."""
    for event in reversed(events):
        if not event.is_free and event.address <= address < event.address + event.nbytes:
            return event.allocation.number, address - event.address
    return None


@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans()), max_size=30),
    asked=st.lists(st.integers(0, 60), min_size=1),
)
def test_the_index_answers_what_a_walk_backwards_would(
    steps: list[tuple[int, int, bool]], asked: list[int]
) -> None:
    events: list[Event] = []
    live: dict[int, tuple[int, int]] = {}
    for begin, nbytes, is_free in steps:
        if is_free and live:
            number = min(live)
            address, _ = live.pop(number)
            events.append(Event("main", name(number), 0, address))
            continue
        if any(begin < a + n and a < begin + nbytes for a, n in live.values()):
            continue  # an allocator gives no memory twice
        number = sum(not e.is_free for e in events)
        live[number] = (begin, nbytes)
        events.append(Event("main", name(number), nbytes, begin))
    owners = Owners({name(k): k for k in range(len(events))})
    for event in events:
        owners.take(event)
    for address in asked:
        assert owners.latest(address) == walked_backwards(events, address)
        wanted = {(k, address - a) for k, (a, n) in live.items() if a <= address <= a + n}
        assert sorted(owners.live(address)) == sorted(wanted)


def test_sec41_false_positive() -> None:
    """Fig. 6: of two allocations at one address the later is meant; a first match is stale."""
    events = [Event("main", name(0), 512, 4096), Event("main", name(0), 0, 4096)]
    events.append(Event("main", name(1), 512, 4096))
    owners = Owners({name(0): 0, name(1): 1})
    for event in events:
        owners.take(event)
    assert owners.latest(4100) == (1, 4)
    assert first_match(events, 4100) == 0
