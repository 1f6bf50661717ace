"""The kernels as compiled for a Hopper GPU: order of accesses, one thread that looks, no copies."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.compiler import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]

LOOK = ["all threads", "one thread", "skip", "acquire", "hand on"]
TELL = ["one thread", "skip", "proxy", "fence", "release"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Findings of each program, by its first word."""
    lines = run("tests.pallas_kernels.woven.compiled", limit_s=300.0)
    return {line["name"].split()[0]: line for line in lines}


def places(events: list[str], name: str) -> list[int]:
    return [at for at, event in enumerate(events) if event == name]


@pytest.mark.parametrize("name", ["send", "poll", "receive"])
def test_one_launch_without_copies_spills_or_atomic_additions(
    found: dict[str, Any], name: str
) -> None:
    one = found[name]
    assert one["problems"] == []
    assert one["operations"] == ["kernel"]
    assert one["host_bytes"] == one["held"]
    assert "atomic" not in one["events"]
    assert one["aliased"] == (2 if name == "poll" else 0)  # the pools, to the results


def test_a_poll_looks_by_one_thread_before_and_tells_after_all_else(found: dict[str, Any]) -> None:
    events = found["poll"]["events"]
    (look,), (tell,) = places(events, "acquire"), places(events, "release")
    assert events[look - 3 : look + 2] == LOOK
    assert events[-5:] == TELL
    loads, stores, stored = (places(events, name) for name in ("load", "store", "stored"))
    fences = places(events, "proxy")
    assert look < fences[0] < loads[0]
    assert stores[-1] < stored[-1] < tell
    # The new row of K and V: brought, stored, and all that is loaded after it sees it.
    assert loads[1] < stores[0] < stores[1] < stored[0] < fences[1] < loads[2]
    # Nothing of the task is read before the number: only this CTA's state may be.
    assert look < places(events, "word")[0]


def test_a_receiver_looks_by_one_thread_and_takes_then(found: dict[str, Any]) -> None:
    events = found["receive"]["events"]
    (look,) = places(events, "acquire")
    assert events[look - 3 : look + 2] == LOOK
    assert look < places(events, "proxy")[0] < places(events, "load")[0]
    assert "release" not in events


def test_a_sender_tells_once_all_its_ctas_have_stored(found: dict[str, Any]) -> None:
    events = found["send"]["events"]
    assert "acquire" not in events
    assert events[-5:] == TELL
    (stored,), (arrive,) = places(events, "stored"), places(events, "arrive")
    assert places(events, "store")[-1] < stored < places(events, "proxy")[0] < arrive
    assert arrive < places(events, "release")[0]


def test_polls_stay_between_operators_that_they_are_tied_to(found: dict[str, Any]) -> None:
    def order(name: str) -> list[str]:
        run_of = ("kernel" if one == "kernel" else "operator" for one in found[name]["operations"])
        return [one for one, _ in itertools.groupby(run_of)]

    assert order("tied") == ["operator", "kernel"] * 3
    assert order("loose") != ["operator", "kernel"] * 3  # as XLA would have it
    for name in ("tied", "loose"):
        assert found[name]["temporary_bytes"] < found[name]["pool"] // 4
