"""Laws of the schedule: everybody gets what is theirs, nobody overtakes, no page is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.transformer.schedule import Size, begin, end, next_step, width_of

PAGE = 16
SIZES = st.lists(
    st.builds(Size, prompt=st.integers(1, 90), new=st.integers(1, 40)), min_size=1, max_size=9
)


@given(
    sizes=SIZES,
    rows=st.integers(1, 5),
    chunk=st.sampled_from([16, 32, 64]),
    spare=st.integers(0, 12),
    early=st.lists(st.integers(1, 40), min_size=9, max_size=9),
)
def test_every_request_is_computed_once_and_every_page_comes_back(
    sizes: list[Size], rows: int, chunk: int, spare: int, early: list[int]
) -> None:
    pages = max(-(-size.stored // PAGE) for size in sizes) + spare
    schedule = begin(sizes, rows=rows, chunk=chunk, pages=pages, page_tokens=PAGE)
    done, drawn = [0] * len(sizes), [0] * len(sizes)
    admitted: list[int] = []
    while not schedule.over:
        schedule, step = next_step(schedule)
        assert step.chunks or step.decode  # it never stands still
        widths = {width_of(part.tokens) for part in step.chunks}
        assert len(widths) <= 1
        padded_rows = 1 << (len(step.chunks) - 1).bit_length() if step.chunks else 0
        assert sum(widths) * padded_rows <= chunk
        assert len(schedule.running) + len(schedule.filling) <= rows
        for part in step.chunks:
            assert part.first == done[part.request]
            done[part.request] += part.tokens
            assert part.last == (done[part.request] == sizes[part.request].prompt)
            if part.first == 0:
                admitted.append(part.request)
        ready = [part.request for part in step.chunks if part.last]
        assert len({*step.decode, *ready}) == len(step.decode) + len(ready)
        for request in (*step.decode, *ready):
            assert done[request] == sizes[request].prompt
            drawn[request] += 1
            held = len(schedule.table.owned[request]) * PAGE
            assert held >= sizes[request].prompt + drawn[request] - 1
            if drawn[request] == min(sizes[request].new, early[request]):
                schedule = end(schedule, request)
        owned = [page for mine in schedule.table.owned.values() for page in mine]
        assert sorted([*owned, *schedule.table.free]) == list(range(pages))
        assert set(schedule.table.owned) == {
            *schedule.running,
            *(request for request, _ in schedule.filling),
        }
    assert schedule.table.used == 0
    assert drawn == [min(size.new, most) for size, most in zip(sizes, early, strict=False)]
    assert sorted(admitted) == list(range(len(sizes)))


def test_requests_are_admitted_in_their_order() -> None:
    # The second needs all pages: the third, which would find room, does not overtake it.
    sizes = [Size(prompt=16, new=1), Size(prompt=64, new=1), Size(prompt=8, new=1)]
    schedule = begin(sizes, rows=3, chunk=64, pages=4, page_tokens=PAGE)
    order = []
    while not schedule.over:
        schedule, step = next_step(schedule)
        for part in step.chunks:
            order.append(part.request)
            schedule = end(schedule, part.request)
    assert order == [0, 1, 2]


def test_what_can_never_work_is_refused() -> None:
    sizes = [Size(prompt=40, new=8)]
    with pytest.raises(SettingError, match=r"requests\[0\]='40 \+ 8 tokens': .* at most 33"):
        begin(sizes, rows=1, chunk=16, pages=2, page_tokens=PAGE)
    assert not begin(sizes, rows=1, chunk=16, pages=3, page_tokens=PAGE).over
    for settings, name in (({"rows": 0, "chunk": 16}, "rows"), ({"rows": 1, "chunk": 24}, "chunk")):
        with pytest.raises(SettingError, match=name):
            begin(sizes, pages=8, page_tokens=PAGE, **settings)
    schedule = begin(sizes, rows=1, chunk=16, pages=3, page_tokens=PAGE)
    with pytest.raises(ValueError, match="request=0"):
        end(schedule, 0)
