"""The table of a prefix cache's blocks, against a model in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.serving.tables.block_table import (
    ENDED,
    NO_ROW,
    Blocks,
    add,
    clear,
    find,
    give_way,
    keep_copy,
    new_blocks,
    pin,
    unpin,
)

# A family of prompts: each is a path of letters from the root, a block a letter.
PATHS = st.text("abc", min_size=1, max_size=5)


def key(path: str) -> int:
    return int.from_bytes(path.encode(), "little")


def begin(b: Blocks, pool: int, path: str, size: float = 10.0) -> list[int] | None:
    """Pin the blocks of a prompt, adding those that are not there; None: the table is full."""
    rows: list[int] = []
    for j in range(len(path)):
        k = find(b, pool, key(path[: j + 1]))
        if k >= 0:
            pin(b, k)
        else:
            k = add(b, pool, key(path[: j + 1]), rows[-1] if rows else NO_ROW, 4, size)
            if k < 0:
                end(b, rows)
                return None
        rows.append(k)
    return rows


def end(b: Blocks, rows: list[int]) -> None:
    for k in reversed(rows):
        unpin(b, k, ENDED)


def check_sums(b: Blocks) -> None:
    """Sums of pools are those of their entries, lists and buckets hold each once."""
    begun = int(b.table[0].begun)
    free, k = set(), int(b.table[0].free)
    while k >= 0:
        assert k not in free
        free.add(k)
        k = int(b.entry[k].chain)
    used = [k for k in range(begun) if k not in free]
    for p, pool in enumerate(b.pool):
        mine = [k for k in used if b.entry[k].pool == p]
        idle = [k for k in mine if b.entry[k].pins == 0]
        assert pool.rows == len(mine)
        assert pool.bytes == sum(b.entry[k].bytes for k in mine)
        assert pool.idle_bytes == sum(b.entry[k].bytes for k in idle)
        listed, k = [], int(pool.oldest)
        while k >= 0:
            listed.append(k)
            k = int(b.entry[k].newer)
        assert sorted(listed) == idle
        for k in mine:
            assert find(b, p, int(b.entry[k].key)) == k
            parent = int(b.entry[k].parent)
            assert parent == NO_ROW or parent in mine
            assert b.entry[k].children == sum(b.entry[j].parent == k for j in mine)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["begin", "end", "way", "clear"]), PATHS)))
def test_table_holds_what_its_requests_left(steps: list[tuple[str, str]]) -> None:
    b, open_now = new_blocks(3, rows=64), []
    for what, path in steps:
        pool = len(path) % 2
        if what == "begin":
            rows = begin(b, pool, path)
            assert rows is not None
            open_now.append(rows)
        elif what == "end" and open_now:
            end(b, open_now.pop(0))
        elif what == "way":
            give_way(b, pool, 20.0)
            assert b.pool[pool].idle_bytes <= 20.0
        elif what == "clear" and not open_now:
            clear(b, pool)
            assert b.pool[pool].rows == 0
        check_sums(b)
    for rows in open_now:
        end(b, rows)
    for p in range(3):
        clear(b, p)
    check_sums(b)
    assert b.pool.rows.sum() == 0
    assert b.pool.bytes.sum() == 0.0


def test_blocks_give_way_from_the_end_of_the_prompt_longest_unused_first() -> None:
    b = new_blocks(1, rows=16)
    for path in ("abc", "abd", "x"):
        rows = begin(b, 0, path)
        assert rows is not None
        end(b, rows)
    left, order = ["a", "ab", "abc", "abd", "x"], []
    while left:
        give_way(b, 0, b.pool[0].idle_bytes - 1.0)
        (gone,) = [p for p in left if find(b, 0, key(p)) < 0]
        left.remove(gone)
        order.append(gone)
    assert order == ["abc", "abd", "ab", "a", "x"]


def test_pinned_blocks_never_give_way() -> None:
    b = new_blocks(1, rows=16)
    rows, others = begin(b, 0, "abc"), begin(b, 0, "ad")
    assert rows is not None
    assert others is not None
    end(b, others)
    give_way(b, 0, 0.0)
    assert [find(b, 0, key(p)) >= 0 for p in ("a", "ab", "abc", "ad")] == [True, True, True, False]


def test_copies_go_as_far_as_they_fit() -> None:
    b = new_blocks(2, np.array([35.0]), rows=32)
    rows = begin(b, 0, "abcde")
    assert rows is not None
    parent, copies = NO_ROW, []
    for k in rows:
        parent = keep_copy(b, 1, k, parent)
        if parent < 0:
            break
        copies.append(parent)
    assert len(copies) == 3
    assert b.pool[1].in_bytes == 30.0
    end(b, copies)
    other = begin(b, 0, "xy")
    assert other is not None
    first = keep_copy(b, 1, other[0], NO_ROW)
    assert first >= 0
    assert b.pool[1].evicted == 1  # the end of the longer one
    assert find(b, 1, key("abc")) < 0 <= find(b, 1, key("ab"))


def test_a_full_table_adds_nothing() -> None:
    b = new_blocks(1, rows=2)
    rows: Any = begin(b, 0, "ab")
    assert add(b, 0, key("c"), NO_ROW, 4, 10.0) == NO_ROW
    end(b, rows)
    give_way(b, 0, 10.0)
    assert add(b, 0, key("c"), NO_ROW, 4, 10.0) >= 0


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (9, 4), (3, 9)])
def test_columns_grow_and_keep_what_they_hold(slots: int, most: int) -> None:
    b = new_blocks(1, slots=3, most=4)
    b.keys[:] = np.arange(12).reshape(3, 4)
    grown = b.grown(slots, most)
    assert grown.keys.shape == (max(3, slots), max(4, most))
    assert np.array_equal(grown.keys[:3, :4], b.keys)
    assert grown.keys.sum() == b.keys.sum()
