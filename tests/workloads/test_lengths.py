"""Length sources: files, text, the synthetic pairs, filter and drawing."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.workloads.lengths import LengthFilter, fixed_lengths, read_lengths, synthetic_lengths
from c2c.workloads.streams import stream_of
from tests.workloads.traces import stored

ANY = LengthFilter(min_tokens=1, max_prompt_tokens=10**6, max_total_tokens=10**7)


def pairs(path: Path, **options: float) -> list[tuple[int, int]]:
    pool = read_lengths(path, ANY, **options)
    return list(zip(pool.prompt_tokens.tolist(), pool.output_tokens.tolist(), strict=True))


@pytest.mark.parametrize(
    "names", [("prompt_tokens", "output_tokens"), ("prompt_len", "output_len")]
)
@pytest.mark.parametrize("lines", [True, False])
def test_json_with_lengths(tmp_path: Path, names: tuple[str, str], lines: bool) -> None:
    records = [{names[0]: 5 + i, names[1]: 7, "id": "x"} for i in range(3)]
    path = tmp_path / "l.json"
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=1)
    assert pairs(stored(path, text)) == [(5, 7), (6, 7), (7, 7)]


def test_json_longer_than_a_piece_reads_whole(tmp_path: Path) -> None:
    records = [{"prompt_len": i + 1, "output_len": 3, "pad": "é" * (i % 700)} for i in range(6000)]
    records.append({"prompt_len": 9, "output_len": 9, "pad": "z" * (3 << 20)})
    path = stored(tmp_path / "l.json", json.dumps(records, ensure_ascii=False))
    assert path.stat().st_size > 3 << 20
    assert [p for p, _ in pairs(path)] == [*range(1, 6001), 9]


def test_json_is_read_as_traces_are(tmp_path: Path) -> None:
    path = stored(tmp_path / "l.jsonl", '{"Input Length": "5", "output_length": 7}\n{cut\n')
    assert pairs(path) == [(5, 7)]
    assert (read_lengths(path, ANY).read, read_lengths(path, ANY).dropped) == (2, 1)
    path.write_text('{"input_lens": [4, 5], "output_lens": [6, 7], "completed": 2}')
    assert pairs(path) == [(4, 6), (5, 7)]


def test_text_needs_a_stated_rule(tmp_path: Path) -> None:
    def said(*messages: tuple[str, str]) -> dict[str, object]:
        return {"conversations": [{"from": who, "value": text} for who, text in messages]}

    path = tmp_path / "sharegpt.json"
    records = [
        said(("human", "a" * 10), ("gpt", "b" * 21), ("human", "more")),
        said(("gpt", "continues"), ("human", "?")),
        said(("human", "alone")),
    ]
    with pytest.raises(SettingError, match="chars_per_token"):
        pairs(stored(path, json.dumps(records)))
    assert pairs(path, chars_per_token=4.0) == [(3, 6)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('[{"prompt_len": 4, "output_len": 4}', "truncated"),
        ('[{"prompt_len": 4, "output', "truncated"),
        ("[1, 2]", "not an object"),
        ('[{"text": "x"}]', "no known length columns .* and no conversations"),
        ("[]", "no record"),
    ],
)
def test_broken_json_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        pairs(stored(tmp_path / "l.json", text))


def test_a_table_of_pairs_needs_no_arrivals(tmp_path: Path) -> None:
    path = stored(tmp_path / "l.csv", "arrival_s,prompt_tokens,output_tokens\n0,4,5\n1,6,7\n")
    assert pairs(path) == [(4, 5), (6, 7)]
    assert pairs(stored(path, "prompt_len,output_len\n4,5\n6,\n,9\n")) == [(4, 5)]


def test_the_filter_counts_what_it_drops(tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    lengths = [(4, 4), (3, 9), (9, 3), (1024, 1024), (1025, 9), (1000, 1049)]
    path.write_text(json.dumps([{"prompt_len": p, "output_len": o} for p, o in lengths]))
    pool = read_lengths(path, LengthFilter())
    assert list(zip(pool.prompt_tokens.tolist(), pool.output_tokens.tolist(), strict=True)) == [
        (4, 4),
        (1024, 1024),
    ]
    assert (pool.read, pool.dropped) == (6, 4)


def test_synthetic_pairs_have_sharegpt_statistics() -> None:
    """Published for the filtered ShareGPT pairs: prompt mean 110.5, p50 29, p99 932; output mean
    277.2, p50 249, p99 769."""
    pool = synthetic_lengths(LengthFilter())
    prompt, output = pool.prompt_tokens, pool.output_tokens
    assert prompt.mean() == pytest.approx(110.5, rel=0.03)
    assert output.mean() == pytest.approx(277.2, rel=0.03)
    assert np.percentile(prompt, [50, 99]).tolist() == pytest.approx([29, 932], rel=0.02)
    assert np.percentile(output, [50, 99]).tolist() == pytest.approx([249, 769], rel=0.02)
    ranks = [np.argsort(np.argsort(column)) for column in (prompt, output)]
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(0.128, abs=0.02)
    assert LengthFilter().passes(prompt.astype(int), output.astype(int)).all()


@given(parts=st.lists(st.integers(0, 50), min_size=1, max_size=6), seed=st.integers(0, 2**40))
def test_drawing_in_parts_is_drawing_at_once(parts: list[int], seed: int) -> None:
    pool = synthetic_lengths(LengthFilter())
    rng = stream_of(seed, "lengths")
    drawn = np.concatenate([np.stack(pool.draw(rng, n)) for n in parts], axis=1)
    whole = np.stack(pool.draw(stream_of(seed, "lengths"), sum(parts)))
    np.testing.assert_array_equal(drawn, whole)


def test_pairs_are_drawn_together(tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    path.write_text(json.dumps([{"prompt_len": i, "output_len": 2 * i} for i in range(4, 500)]))
    prompt, output = read_lengths(path, LengthFilter()).draw(stream_of(1, "x"), 1000)
    np.testing.assert_array_equal(output, 2 * prompt)
    assert len(np.unique(prompt)) > 300


def test_fixed_lengths_are_fixed() -> None:
    prompt, output = fixed_lengths(7, 9).draw(stream_of(0, "x"), 5)
    assert (prompt.tolist(), output.tolist()) == ([7] * 5, [9] * 5)
