"""The next event: a tournament over the devices' end times, ties to the lowest device.

Each group of devices has a subtree of its own, so that the next event of the fleet and that of one
group are read from the same tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.policies import inlined

__all__ = ["FLEET", "new_tournament", "next_device", "set_end"]

FLEET = 1  # the root over all devices


def new_tournament(
    firsts: NDArray[np.int64], devices: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the tree, the leaf of each device and the root of each group.

    Node k has children 2k and 2k+1; a node holds the device that wins below it.

    Args:
      firsts: the first device of each group, ascending from 0; a group's devices are neighbours.
      devices: how many there are.
    """
    sizes = np.diff(np.append(firsts, devices))
    widths = [1 << int(size - 1).bit_length() for size in sizes]
    starts, end = [], 0
    for width in widths:
        starts.append(-(-end // width) * width)  # where a subtree of this width may stand
        end = starts[-1] + width
    leaves = 1 << (end - 1).bit_length()
    leaf = np.zeros(devices, np.int64)
    tree = np.zeros(2 * leaves, np.int64)
    for first, size, start in zip(firsts, sizes, starts, strict=True):
        leaf[first : first + size] = leaves + start + np.arange(size)
        # Leaves of no device, up to the next group, repeat the last one's: all that is above both
        # of them is above it, and hence replayed with it.
        rest = leaves - start
        tree[leaves + start :] = first + np.minimum(np.arange(rest), size - 1)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]
    roots = [(leaves + start) // width for start, width in zip(starts, widths, strict=True)]
    return tree, leaf, np.array(roots, np.int64)


@inlined
def set_end(world: Any, d: int, at_s: float) -> None:
    """Set the end time of device `d` and replay its matches: O(log devices)."""
    tree, end_s = world.tree, world.end_s
    end_s[d] = at_s
    node = world.leaf[d] // 2
    while node >= 1:
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = right if end_s[right] < end_s[left] else left
        node //= 2


@inlined
def next_device(world: Any, root: int) -> int:
    """Return the device below `root` whose phase ends first."""
    return int(world.tree[root])
