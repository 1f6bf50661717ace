"""A file's kind by its first bytes, and CSV of any writer read back as the same requests."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import random
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import DataError
from c2c.workloads import build_workload, concatenate
from c2c.workloads.containers import csv_batches, csv_names
from tests.workloads.traces import stored

HEADER = ["arrival_s", "model", "prompt_tokens", "output_tokens", "text"]
TINY = "arrival_s,model,prompt_tokens,output_tokens\n0,a,5,6\n1,b,7,8\n"
TEXT = st.text(st.sampled_from('ab0,"\n\r\t ;é\0'), max_size=12)
WORD = st.text(st.sampled_from('ab,"\n\ré'), min_size=1, max_size=5).map(lambda t: f"m{t}m")
COUNT = st.integers(1, 10**6)


def cells(path: Path, **options: int) -> list[list[str]]:
    bad: list[None] = []
    rows = [
        [cell or "" for cell in row.values()]
        for batch in csv_batches(path, lambda: bad.append(None), **options)
        for row in batch.to_pylist()
    ]
    assert not bad
    return rows


@given(
    rows=st.lists(st.tuples(COUNT, WORD, COUNT, COUNT, TEXT), min_size=1, max_size=12),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    block_bytes=st.sampled_from([1, 2, 3, 7, 16, 61, 1 << 20]),
    before=st.sampled_from(["", "\ufeff"]),
    ended=st.booleans(),
)
def test_what_a_writer_of_csv_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, int, int, str]],
    quoting: int, ends: str, block_bytes: int, before: str, ended: bool,
) -> None:  # fmt: skip
    # A line break that does not end lines is not quoted by every release of Python's.
    drop = dict.fromkeys(map(ord, "\r\n" if quoting == csv.QUOTE_MINIMAL else ""))
    drop = {code: None for code in drop if chr(code) not in ends}
    rows = sorted(
        ((at, name.translate(drop), prompt, output, text.translate(drop))
         for at, name, prompt, output, text in rows),
        key=lambda row: row[0],
    )  # fmt: skip
    written = io.StringIO(newline="")
    writer = csv.writer(written, quoting=quoting, lineterminator=ends)  # type: ignore[arg-type]
    writer.writerows([HEADER, *rows])
    text = written.getvalue() if ended else written.getvalue().removesuffix(ends)
    path = stored(tmp_path_factory.mktemp("t") / "t.csv", (before + text).encode())
    assert csv_names(path) == HEADER
    assert cells(path, block_bytes=block_bytes) == [[str(cell) for cell in row] for row in rows]
    names = tuple(dict.fromkeys(row[1] for row in rows))
    workload = build_workload({"kind": "trace", "path": str(path)}, names, 0)
    block = concatenate(workload.blocks())
    assert [*zip(block.arrival_s, block.prompt_tokens, block.output_tokens, strict=True)] == [
        (row[0] - rows[0][0] * (rows[0][0] > 3600), row[2], row[3]) for row in rows
    ]
    assert [names[at] for at in block.model] == [row[1] for row in rows]


@pytest.fixture(scope="module")
def large() -> tuple[str, int, int, int]:
    """10 MB of requests whose prompts have lines that look like rows; rows and sums of tokens."""
    rng = random.Random(0)
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerow(HEADER)
    rows, prompts, outputs = 12_000, 0, 0
    for at in range(rows):
        lines = [f'{rng.randrange(rows)}.0,m0,10,10,"x"' for _ in range(rng.randrange(90))]
        prompt, output = rng.randrange(1, 4000), rng.randrange(1, 900)
        prompts, outputs = prompts + prompt, outputs + output
        writer.writerow([at / 4, f"m{at % 2}", prompt, output, "\n".join(lines)])
    text = written.getvalue()
    assert len(text) > 9 << 20
    return text, rows, prompts, outputs


@pytest.mark.parametrize("pack", [bytes, lambda raw: gzip.compress(raw, 1)], ids=["plain", "gz"])
def test_line_breaks_in_quotes_cut_no_row_and_make_none(
    tmp_path: Path, large: tuple[str, int, int, int], pack: Callable[[bytes], bytes]
) -> None:
    text, rows, prompts, outputs = large
    path = stored(tmp_path / "t.csv", pack(text.encode()))
    settings = {"kind": "trace", "path": str(path), "on_bad_row": "skip", "sort": True}
    workload = build_workload(settings, ("m0", "m1"), 0)
    block = concatenate(workload.blocks())
    assert workload.description["bad_rows"] == {}
    assert workload.description["columns_not_used"] == ["text"]
    sums = int(block.prompt_tokens.sum()), int(block.output_tokens.sum())
    assert (len(block), *sums) == (rows, prompts, outputs)


def test_spaces_after_commas_are_no_part_of_names_or_values(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('arrival_s, "model", prompt_tokens , x\n0, "a, b", 5 , "1\n2"\n 1,c, 6,7\n')
    assert csv_names(path) == ["arrival_s", "model", "prompt_tokens", "x"]
    assert cells(path) == [["0", "a, b", " 5 ", "1\n2"], [" 1", "c", " 6", "7"]]


def test_a_quote_that_is_not_closed_is_an_error(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", TINY + '2,"a,9,9\n3,a,9,9\n')
    with pytest.raises(DataError, match=r"""a quote is not closed in the row .* '2,"a,9,9"""):
        build_workload({"kind": "trace", "path": str(path), "on_bad_row": "skip"}, ("x",), 0)
    path.write_text('"arrival_s,model\n')
    with pytest.raises(DataError, match="a quote in its header is not closed"):
        build_workload({"kind": "trace", "path": str(path)}, ("x",), 0)


def lz4(raw: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(raw)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("name", ["t.csv", "t.gz", "t.zst", "t"])
@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, lz4, lambda raw: pa.compress(raw, "zstd", asbytes=True), bytes],
)
def test_packed_files_are_read_whatever_their_name(
    tmp_path: Path, pack: Callable[[bytes], bytes], name: str
) -> None:
    raw = TINY.encode()
    (tmp_path / name).write_bytes(pack(raw[:30]) + pack(raw[30:]))  # as files joined by `cat`
    assert cells(tmp_path / name) == [["0", "a", "5", "6"], ["1", "b", "7", "8"]]


def zipped(raw: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("t.csv", raw)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (TINY.encode("utf-16"), "it is UTF-16 text. Store it as UTF-8"),
        (TINY.encode("utf-16-be"), "it is UTF-16 text or binary. Store it as UTF-8"),
        (gzip.compress(TINY.encode("utf-16-le"), mtime=0), "it is UTF-16 text or binary"),
        (zipped(TINY.encode()), "it is a zip archive"),
        (lzma.compress(TINY.encode()), "it is compressed by xz. Unpack it"),
        (gzip.compress(TINY.encode(), mtime=0)[:-9], "cannot be read: .*[Tt]runcated"),
        (TINY.encode().replace(b"a", b"\xe4"), "cannot be read"),
    ],
)
def test_an_error_says_what_a_file_is(tmp_path: Path, raw: bytes, said: str) -> None:
    path = stored(tmp_path / "t.csv", raw)
    with pytest.raises(DataError, match=said):
        build_workload({"kind": "trace", "path": str(path)}, ("x",), 0)
    with pytest.raises(DataError, match=said):
        build_workload({"kind": "poisson", "lengths": str(path)}, ("x",), 0)


def test_no_thread_reads_ahead_that_outlives_the_interpreter(tmp_path: Path) -> None:
    """Rows are judged in the thread that asks for them, and no row before it is asked for."""
    path = stored(tmp_path / "t.csv", "a,b\n" + "1,2\n1,2,3\n" * 300_000)
    judged: list[bool] = []
    main = threading.get_ident()
    rows = csv_batches(path, lambda: judged.append(threading.get_ident() == main))
    first = next(rows)
    time.sleep(0.05)
    assert abs(first.num_rows - len(judged)) <= 1
    assert len(judged) < 300_000
    assert all(judged)
