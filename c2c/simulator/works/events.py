"""Search for the next event by a tournament."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c2c.policies import inlined
from c2c.serving.tables.cache_lines import in_lines

__all__ = ["FLEET", "Tournament", "new_tournament", "next_end", "replay"]

FLEET: Final = 1  # the root over all chips

_CHILDREN: Final = 8  # of a node; node k has _CHILDREN * k and those that follow


# Each group of chips has a subtree of its own, so that the next event of a group is read from the
# same tree. A chip is replayed once, after the event; every node above it compares its children's
# times, which are adjacent in one cache line.
class Tournament(NamedTuple):
    """Nodes over chips; each has the first end below: device and time."""

    end_s: Any  # f8[nodes]
    device: Any  # i8[nodes]
    leaf: Any  # i8[chips] the node of each
    roots: Any  # i8[groups] the node above the chips of each


def new_tournament(firsts: NDArray[np.int64], chips: int) -> Tournament:
    """Return the tournament before any phase has begun."""
    starts, widths, end = [], [], 0
    for size in np.diff(np.append(firsts, chips)):
        widths.append(_width(int(size)))
        starts.append(-(-end // widths[-1]) * widths[-1])  # where a subtree may stand
        end = starts[-1] + widths[-1]
    leaves = _width(end)
    leaf = np.zeros(chips, np.int64)
    for first, last, start in zip(firsts, np.append(firsts[1:], chips), starts, strict=True):
        leaf[first:last] = leaves + start + np.arange(last - first)
    roots = [(leaves + start) // width for start, width in zip(starts, widths, strict=True)]
    return Tournament(
        end_s=in_lines(np.full(2 * leaves, np.inf)),
        device=np.zeros(2 * leaves, np.int64),
        leaf=leaf,
        roots=np.array(roots, np.int64),
    )


def _width(chips: int) -> int:
    width = 1
    while width < chips:
        width *= _CHILDREN
    return width


@inlined
def replay(
    tournament: Tournament, c: int, ends_s: Any, first: int, last: int, beside: int
) -> None:  # fmt: skip
    """Update the nodes above chip `c` from the ends of its devices [first, last)."""
    end_s, device = tournament.end_s, tournament.device
    best, best_s = first, ends_s[first]
    for d in range(first + 1, last):
        if ends_s[d] < best_s:
            best, best_s = d, ends_s[d]
    if beside > 0:
        for d in range(beside + first, beside + last):
            if ends_s[d] < best_s:
                best, best_s = d, ends_s[d]
    node = tournament.leaf[c]
    end_s[node] = best_s
    device[node] = best
    while node > FLEET:
        node //= _CHILDREN
        winner = node * _CHILDREN
        for child in range(winner + 1, winner + _CHILDREN):
            if end_s[child] < end_s[winner]:
                winner = child
        end_s[node] = end_s[winner]
        device[node] = device[winner]


@inlined
def next_end(tournament: Tournament, root: int) -> tuple[int, float]:
    """Return the device or wire below `root` that ends first, and when; inf: none."""
    return int(tournament.device[root]), float(tournament.end_s[root])
