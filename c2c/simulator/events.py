"""The next event: a tournament over the devices' end times, ties to the lowest device."""

from __future__ import annotations

from typing import Any

import numpy as np

from c2c.policies import inlined

__all__ = ["new_tournament", "next_device", "set_end"]


def new_tournament(devices: int) -> np.ndarray:
    """Return the tree for `devices` entries: node k has children 2k and 2k+1, leaves last."""
    leaves = 1
    while leaves < devices:
        leaves *= 2
    tree = np.zeros(2 * leaves, np.int64)
    tree[leaves:] = np.minimum(np.arange(leaves), devices - 1)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]
    return tree


@inlined
def set_end(tree: Any, end_s: Any, i: int, at_s: float) -> None:
    """Set the end time of device `i` and replay its matches: O(log devices)."""
    end_s[i] = at_s
    node = (len(tree) // 2 + i) // 2
    while node >= 1:
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = right if end_s[right] < end_s[left] else left
        node //= 2


@inlined
def next_device(tree: Any) -> int:
    """Return the device whose phase ends first."""
    return int(tree[1])
