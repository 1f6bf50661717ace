"""The page allocator: nothing leaks, nothing is owned twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from c2c.errors import SettingError
from c2c.transformer.pages import (
    OutOfPages,
    PageTable,
    block_tables,
    can_hold,
    empty,
    hold,
    release,
)

PAGES, PAGE_TOKENS = 12, 3
names = st.integers(0, 5)


class Allocator(RuleBasedStateMachine):
    """Random growth and release of a few sequences, checked against plain counting."""

    def __init__(self) -> None:
        super().__init__()
        self.table: PageTable = empty(PAGES, PAGE_TOKENS)
        self.tokens: dict[int, int] = {}

    @rule(name=names, tokens=st.integers(0, PAGES * PAGE_TOKENS + 4))
    def grow(self, name: int, tokens: int) -> None:
        before = self.table
        own = -(-self.tokens.get(name, 0) // PAGE_TOKENS)
        others = sum(-(-t // PAGE_TOKENS) for n, t in self.tokens.items() if n != name)
        needed = max(own, -(-tokens // PAGE_TOKENS))
        fits = needed + others <= PAGES
        assert can_hold(before, name, tokens) == fits
        if not fits:
            with pytest.raises(OutOfPages) as caught:
                hold(before, name, tokens)
            assert caught.value.free == PAGES - own - others
            return
        self.table = hold(before, name, tokens)
        kept = before.owned.get(name, ())
        assert self.table.owned[name][: len(kept)] == kept  # what is written stays in place
        self.tokens[name] = max(tokens, self.tokens.get(name, 0))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        self.table = release(self.table, name)
        del self.tokens[name]
        with pytest.raises(KeyError, match="released twice"):
            release(self.table, name)

    @invariant()
    def every_page_is_free_or_owned_once(self) -> None:
        owned = [page for pages in self.table.owned.values() for page in pages]
        assert sorted([*owned, *self.table.free]) == list(range(PAGES))
        assert self.table.used == len(owned)

    @invariant()
    def sequences_own_what_they_need(self) -> None:
        for name, tokens in self.tokens.items():
            assert len(self.table.owned[name]) == -(-tokens // PAGE_TOKENS)


TestAllocator = Allocator.TestCase


def test_functions_leave_their_argument_alone() -> None:
    first = hold(empty(4, 2), "a", 3)
    second = hold(first, "a", 8)
    assert len(first.owned["a"]) == 2
    assert len(second.owned["a"]) == 4
    assert release(second, "a").used == 0
    assert second.used == 4


def test_block_tables_name_the_pages_in_order() -> None:
    table = hold(hold(empty(8, 2), "a", 3), "b", 2)
    table = hold(table, "a", 5)
    rows = block_tables(table, ["b", "nobody", "a"], 4)
    assert rows.dtype == np.int32
    assert rows[0].tolist() == [*table.owned["b"], -1, -1, -1]
    assert rows[1].tolist() == [-1] * 4
    assert rows[2].tolist() == [*table.owned["a"], -1]
    with pytest.raises(ValueError, match="width=2: expected at least 3"):
        block_tables(table, ["a"], 2)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_sizes_are_checked(sizes: tuple[int, int]) -> None:
    with pytest.raises(SettingError, match="above 0"):
        empty(*sizes)
