"""Hashes of prompts' blocks, sessions and turns: from a trace to the columns that are simulated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.workloads import RequestBlock, build_workload, concatenate, describe, write_trace
from c2c.workloads.formats import open_trace
from tests.workloads.traces import CATALOG, build, json_lines


def keys_of(block: RequestBlock) -> list[list[int]]:
    assert block.block_first is not None
    assert block.block_keys is not None
    assert block.block_keys.dtype == np.uint64
    first = block.block_first.tolist()
    return [block.block_keys[a:b].tolist() for a, b in pairwise(first)]


def found_by_all(lists: list[list[Any]], prompts: list[int], size: int) -> int:
    """Return the tokens that a cache finds which keeps everything."""
    seen: set[Any] = set()
    result = 0
    for keys, prompt in zip(lists, prompts, strict=True):
        known = next((k for k, key in enumerate(keys) if key not in seen), len(keys))
        result += min(known * size, prompt)
        seen.update(keys)
    return result


def test_the_public_trace_finds_what_its_readme_counts(shared_part: Callable[[str], Path]) -> None:
    path = shared_part("traces/mooncake_synthetic.jsonl.gz")
    workload = build(path)
    block = concatenate(workload.blocks())
    keys = keys_of(block)
    assert (block.block_tokens, sum(map(len, keys))) == (512, 121_877)
    assert found_by_all(keys, block.prompt_tokens.tolist(), 512) == 39_852_661
    before: dict[int, tuple[int, int]] = {}  # a tree: each key follows one key, at one place
    for mine in keys:
        for k, key in enumerate(mine):
            assert before.setdefault(key, (k, mine[k - 1] if k else 0)) == (
                k,
                mine[k - 1] if k else 0,
            )
    assert len(before) == 43_924
    assert "prefixes: 121,877 blocks of 512 tokens in 3,993 requests" in describe(workload)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "timestamp": st.integers(0, 5),
            "model": st.sampled_from(["a", "b", "c"]),
            "input_length": st.integers(1, 40),
            "output_length": st.integers(1, 9),
        },
        optional={"hash_ids": st.lists(st.integers(0, 2), max_size=6)},
    ),
    min_size=1,
    max_size=12,
)


def expected(rows: list[dict[str, Any]], size: int) -> list[list[Any]]:
    """Return of each block what it stands for: model (of two), and all hashes up to it."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["model"]] = counts.get(row["model"], 0) + 1
    rank = sorted(counts, key=lambda name: -counts[name])
    return [
        [
            (rank.index(row["model"]) % 2, *row["hash_ids"][: k + 1])
            for k in range(min(len(row["hash_ids"]), -(-row["input_length"] // size)))
        ]
        for row in rows
    ]


def same_as(keys: list[list[int]], stands_for: list[list[Any]]) -> None:
    assert [len(mine) for mine in keys] == [len(mine) for mine in stands_for]
    pairs = {
        (key, what)
        for mine, his in zip(keys, stands_for, strict=True)
        for key, what in zip(mine, his, strict=True)
    }
    assert len(pairs) == len({key for key, _ in pairs}) == len({what for _, what in pairs})


@settings(max_examples=60)
@given(rows=ROWS, size=st.sampled_from([1, 3, 8]), cut=st.integers(1, 12))
def test_keys_are_equal_where_model_and_all_hashes_before_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], size: int, cut: int
) -> None:
    rows = sorted(rows, key=lambda row: row["timestamp"])
    for row in rows[:1]:
        row.setdefault("hash_ids", [0])
    folder = tmp_path_factory.mktemp("t")
    path = json_lines(folder / "t.jsonl", rows)
    full = [{"hash_ids": [], **row} for row in rows]
    told = {"block_tokens": size, "compression": 2.0, "assignment": "popularity_rank"}
    block = concatenate(build(path, **told).blocks())
    same_as(keys_of(block), expected(full, size))
    few = concatenate(build(path, **told, max_requests=cut).blocks())
    assert keys_of(few) == keys_of(block)[:cut]
    late = [k for k, row in enumerate(full) if row["timestamp"] >= full[0]["timestamp"] + 2]
    if late:
        window = concatenate(
            build(path, ("x",), **told | {"compression": 1.0}, start_s=0.002).blocks()
        )
        wanted = expected([{**row, "model": "a"} for row in full], size)
        same_as(keys_of(window), [wanted[k] for k in late])
    write_trace(folder / "t.parquet", build(path, **told))
    again = concatenate(build(folder / "t.parquet").blocks())
    assert again.block_tokens == size
    same_as(keys_of(again), expected(full, size))


@settings(max_examples=60)
@given(st.data())
def test_rows_take_their_blocks_along(data: st.DataObject) -> None:
    counts = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=9)))
    count = counts.size
    first = np.concatenate([[0], np.cumsum(counts)])
    ones = np.ones(count, np.int32)
    block = RequestBlock(
        arrival_s=np.arange(count) * 1.0, model=ones, prompt_tokens=ones * 4, output_tokens=ones,
        block_tokens=1, block_first=first, block_keys=np.arange(first[-1], dtype=np.uint64),
        session=np.arange(count), turn=ones,
    )  # fmt: skip
    keys = keys_of(block)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    order = np.array(data.draw(st.permutations(range(count))))
    begin, end = data.draw(st.integers(0, count)), data.draw(st.integers(0, count + 2))
    step = data.draw(st.sampled_from([None, 2, -1]))
    for rows in (mask, order, slice(begin, end), slice(None, None, step)):
        taken = block.take(rows)
        chosen = np.arange(count)[rows].tolist()
        assert keys_of(taken) == [keys[k] for k in chosen]
        assert taken.session is not None
        assert taken.session.tolist() == chosen
    parts = [block.take(slice(0, begin)), block.take(slice(begin, None))]
    assert keys_of(concatenate(parts)) == keys
    shorter = np.array(data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)))
    hashes = block.hashes()
    assert hashes is not None
    cut = hashes.upto(shorter)
    assert np.diff(cut.first).tolist() == np.minimum(counts, shorter).tolist()


ROW = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}


def test_lengths_that_are_drawn_anew_drop_the_hashes(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "t.jsonl", [ROW])
    workload = build(path, lengths="fixed")
    (block,) = workload.blocks()
    assert (block.block_tokens, block.block_first, block.block_keys) == (0, None, None)
    said = describe(workload)
    assert "prefixes: none, as hash_ids do not fit drawn lengths" in said
    assert "columns not used: input_length, output_length, hash_ids" in said


def test_a_trace_without_hashes_has_no_arrays(tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key != "hash_ids"}
    workload = build(json_lines(tmp_path / "t.jsonl", [row]))
    (block,) = workload.blocks()
    assert (block.block_tokens, block.block_first, block.session) == (0, None, None)
    assert not [line for line in describe(workload) if line.startswith(("prefixes", "sessions"))]
    write_trace(tmp_path / "t.parquet", workload)
    assert pq.read_schema(tmp_path / "t.parquet").names[-1] == "output_tokens"


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (3, "unreadable"), ("x", "unreadable"), ([1, "x"], "unreadable"), ([1.5], "unreadable"),
        ([[1]], "unreadable"), ([None], "unreadable"), (True, "unreadable"), ([1, -2], "negative"),
        ([2**64], "unreadable"),
    ],
)  # fmt: skip
def test_hashes_that_are_no_list_of_whole_numbers_are_a_bad_row(
    tmp_path: Path, cell: object, kind: str
) -> None:
    path = json_lines(tmp_path / "t.jsonl", [ROW, {**ROW, "hash_ids": cell}])
    with pytest.raises(DataError, match=rf"1 of 2 rows are bad: {kind}_hash_ids 1 \(rows 2\)"):
        build(path)
    (block,) = build(path, on_bad_row="skip").blocks()
    assert list(map(len, keys_of(block))) == [2]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([[1], [2]]), ""), (pa.array([[1], [2**64 - 1]], pa.list_(pa.uint64())), ""),
        (pa.array([[1], None], pa.large_list(pa.int16())), ""), (pa.array(["[1]", "[ 2 ]"]), ""),
        (pa.array(["[1]", "[]"]), ""), (pa.array([[1], [-1]]), "negative"),
        (pa.array([[1], [None]], pa.list_(pa.int64())), "unreadable"),
        (pa.array([["1"], ["b"]]), "unreadable"),
    ],
)  # fmt: skip
def test_lists_of_a_parquet_file_and_texts_are_alike(
    tmp_path: Path, column: pa.Array, kind: str
) -> None:
    table = {"arrival_s": [0.0, 1.0], "prompt_tokens": [9, 9], "output_tokens": [1, 1]}
    pq.write_table(pa.table({**table, "hash_ids": column}), tmp_path / "t.parquet")
    with pytest.raises(
        SettingError, match=r"workload\.block_tokens=0: expected the tokens per block"
    ):
        build(tmp_path / "t.parquet")
    if kind:
        with pytest.raises(DataError, match=f"{kind}_hash_ids 1"):
            build(tmp_path / "t.parquet", block_tokens=8)
    else:
        block = concatenate(build(tmp_path / "t.parquet", block_tokens=8).blocks())
        assert len(keys_of(block)[0]) == 1


def test_the_size_of_a_block_is_told_or_seen(tmp_path: Path) -> None:
    rows = [{**ROW, "input_length": n, "hash_ids": list(range(-(-n // 64)))} for n in range(70, 90)]
    path = json_lines(tmp_path / "t.jsonl", rows)
    said = describe(build(path))
    assert "prefixes: 40 blocks of 64 tokens in 20 requests" in said
    told = concatenate(build(path, block_tokens=16).blocks())
    assert told.block_tokens == 16
    (line,) = (one for one in describe(build(path, block_tokens=16)) if one.startswith("prefixes"))
    assert line.endswith("of which 20 have fewer hashes than blocks (workload.block_tokens)")
    with pytest.raises(SettingError, match=r"workload\.block_tokens=-1: expected a whole number"):
        build(path, block_tokens=-1)
    bare = json_lines(tmp_path / "b.jsonl", [{k: v for k, v in ROW.items() if k != "hash_ids"}])
    with pytest.raises(SettingError, match=r"block_tokens=16: expected 0: b\.jsonl has no column"):
        build(bare, block_tokens=16)
    with pytest.raises(SettingError, match=r"block_tokens=16: expected 0 with kind=poisson"):
        build_workload({"kind": "poisson", "block_tokens": 16}, CATALOG, 0)


def test_copies_of_a_trace_share_no_prefixes_and_no_sessions(tmp_path: Path) -> None:
    rows = [{**ROW, "timestamp": 10 * k, "session_id": f"s{k % 3}"} for k in range(9)]
    path = json_lines(tmp_path / "t.jsonl", rows)
    once = concatenate(build(path).blocks())
    thrice = concatenate(build(path, replicas=3).blocks())
    assert {key for keys in keys_of(once) for key in keys} < {
        k for ks in keys_of(thrice) for k in ks
    }
    assert len({tuple(keys) for keys in keys_of(thrice)}) == 3
    assert thrice.session is not None
    assert np.unique(thrice.session, return_counts=True)[1].tolist() == [3] * 9


BAILIAN = {"timestamp": 0.0, "input_length": 40, "output_length": 5, "type": "text"}


def test_turns_of_a_chat_are_one_session(tmp_path: Path) -> None:
    chats = [(159, -1, 1), (160, -1, 1), (161, 159, 2), (162, 160, 2), (163, 161, 3), (164, 99, 4)]
    rows = [
        {**BAILIAN, "chat_id": chat, "parent_chat_id": parent, "turn": turn, "hash_ids": [1, 2, 3]}
        for chat, parent, turn in chats
    ]
    path = json_lines(tmp_path / "t.jsonl", rows)
    assert open_trace(path).format.name == "bailian"
    workload = build(path)
    block = concatenate(workload.blocks())
    assert block.session is not None
    assert block.turn is not None
    assert block.session.tolist() == [0, 1, 0, 1, 0, 2]
    assert block.turn.tolist() == [1, 1, 2, 2, 3, 4]
    assert block.block_tokens == 16
    assert "sessions: 3" in describe(workload)
    assert "columns not used: type" in describe(workload)


def test_turns_are_counted_where_they_are_not_told(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{**ROW, "session_id": s} for s in ("b", "a", "b", None, "b")]
    workload = build(json_lines(tmp_path / "t.jsonl", rows))
    block = concatenate(workload.blocks())
    assert block.session is not None
    assert block.turn is not None
    assert block.session.tolist() == [0, 1, 0, -1, 0]
    assert block.turn.tolist() == [1, 1, 2, 0, 3]
    write_trace(tmp_path / "t.parquet", workload)
    again = concatenate(build(tmp_path / "t.parquet").blocks())
    assert again.session is not None
    assert again.turn is not None
    assert (again.session.tolist(), again.turn.tolist()) == ([0, 1, 0, -1, 0], [1, 1, 2, 0, 3])
    rows[2]["turn"] = -1
    with pytest.raises(DataError, match="negative_turn 1"):
        build(json_lines(tmp_path / "t.jsonl", rows))


def test_rows_that_are_dropped_or_moved_take_their_blocks_along(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"timestamp": at, "input_length": 600, "output_length": output, "hash_ids": [at, 9]}
        for at, output in ((3, 1), (1, 5_000), (0, 1), (2, 0), (4, 1))
    ]
    path = json_lines(tmp_path / "t.jsonl", rows)
    told: dict[str, Any] = {"sort": True, "max_total_tokens": 2_000, "on_bad_row": "skip"}
    block = concatenate(build(path, models=("x",), **told).blocks())
    assert block.arrival_s.tolist() == [0.0, 0.003, 0.004]
    same_as(keys_of(block), [[(at, 0), (at, 9)] for at in (0, 3, 4)])
