"""Nothing is destroyed: other people's files, another run's results, what a full disk cut short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from c2c.errors import SettingError
from c2c.runs import ParquetStream, RunDir, check_folder

CONFIG = {"rate": 2.0, "deep": {"seed": 1}}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def run_once(root: Path, config: dict[str, object] = CONFIG, **more: object) -> None:
    with RunDir.open(root, config, **more) as run:  # type: ignore[arg-type]
        run.write_table("numbers", {"x": [1]})


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write anywhere; for a moment this is somebody who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that others may enter, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml", "DONE", ".results", "sub/data.csv"])
def test_a_folder_with_files_of_others_is_refused_and_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years of work\n")
    before = contents(tmp_path)
    with pytest.raises(SettingError, match=r"out='.*It holds " + name.partition("/")[0]):
        run_once(tmp_path)
    assert contents(tmp_path) == before


def test_overwrite_adds_to_a_folder_but_replaces_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / ".draft.partial").write_text("somebody else's")
    for _ in range(2):
        run_once(tmp_path, overwrite=True, resume=False)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / ".draft.partial").read_text() == "somebody else's"
    assert (tmp_path / "numbers.parquet").exists()


def test_even_overwrite_leaves_a_file_of_others_that_a_run_needs(tmp_path: Path) -> None:
    (tmp_path / "numbers.parquet").write_text("theirs")
    before = contents(tmp_path)
    with pytest.raises(SettingError, match=r"numbers\.parquet, which no run made"):
        run_once(tmp_path, overwrite=True, names=["numbers.parquet"])
    assert contents(tmp_path) == before  # known beforehand: nothing begins
    with pytest.raises(SettingError, match=r"numbers\.parquet"):
        run_once(tmp_path, overwrite=True)
    assert (tmp_path / "numbers.parquet").read_text() == "theirs"


def test_results_of_another_run_are_refused_and_named(tmp_path: Path) -> None:
    run_once(tmp_path)
    before = contents(tmp_path)
    other = {"rate": 2.0, "deep": {"seed": 7}}
    with pytest.raises(SettingError, match=r"another run \(deep\.seed=1\)"):
        run_once(tmp_path, other)
    assert contents(tmp_path) == before
    run_once(tmp_path, other, overwrite=True)
    assert "seed: 7" in (tmp_path / "config.yaml").read_text()


def test_the_same_run_of_other_code_or_data_replaces_itself(tmp_path: Path) -> None:
    data = tmp_path / "trace.csv"
    for content in ("1", "2"):
        data.write_text(content)
        run_once(tmp_path / "r", files=[data])
    assert json.loads((tmp_path / "r" / "DONE").read_text())["results"]


def test_a_run_that_left_no_result_is_in_nobodys_way(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunDir.open(tmp_path, CONFIG):
        1 / 0  # noqa: B018
    run_once(tmp_path, {"rate": 3.0})


def test_a_result_that_became_a_link_is_unlinked_not_followed(tmp_path: Path) -> None:
    run_once(tmp_path / "r")
    (tmp_path / "r" / "kept.txt").write_text("theirs")
    (tmp_path / "r" / "numbers.parquet").unlink()
    (tmp_path / "r" / "numbers.parquet").symlink_to("kept.txt")
    run_once(tmp_path / "r", overwrite=True)
    assert (tmp_path / "r" / "kept.txt").read_text() == "theirs"
    assert not (tmp_path / "r" / "numbers.parquet").is_symlink()


def test_a_folder_that_cannot_be_written_is_refused_before_work(outside: Path) -> None:
    locked, hidden = outside / "locked", outside / "hidden"
    locked.mkdir(mode=0o555)
    hidden.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
    with as_nobody():
        for folder in (locked, locked / "below" / "it", hidden, hidden / "below"):
            with pytest.raises(SettingError, match=r"can be written \(Permission denied\)"):
                run_once(folder)
    assert not list(locked.iterdir())
    hidden.chmod(0o700)
    assert not list(hidden.iterdir())


def test_a_complete_run_can_be_read_where_nothing_can_be_written(outside: Path) -> None:
    run_once(outside / "r")
    (outside / "r").chmod(0o555)
    with as_nobody(), RunDir.open(outside / "r", CONFIG) as run:
        assert run.is_complete
    (outside / "r").chmod(0o755)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/null/x", "/proc/nothing/here"])
def test_what_is_no_folder_is_refused(path: str) -> None:
    with pytest.raises(SettingError, match=f"out='{path}'"):
        run_once(Path(path))


def test_too_little_room_is_said_before_work(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"room for about .* MB.*disk has"):
        check_folder(tmp_path / "r", CONFIG, needs_bytes=1 << 62)
    assert not (tmp_path / "r").exists()


def limited(code: str, folder: Path, limit_bytes: int) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose files may not grow past a limit."""
    head = (
        "import resource, sys; from pathlib import Path; import pyarrow as pa\n"
        "from c2c.runs import ParquetStream, RunDir, check_room; root = Path(sys.argv[1])\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code, str(folder)], capture_output=True, text=True
    )


def test_a_limit_of_file_size_is_known_before_work(tmp_path: Path) -> None:
    done = limited("check_room(root, 1_000_000)", tmp_path, 100_000)
    assert "room for about 1.0 MB. The limit of a file (ulimit -f) is 0.1 MB" in done.stderr


def test_a_write_that_is_cut_short_leaves_no_part_and_no_done(tmp_path: Path) -> None:
    code = (
        "import random; schema = pa.schema({'x': pa.float64()})\n"
        "with RunDir.open(root, {'rate': 2.0}) as run:\n"
        "    run.write_json('early', {'x': 1})\n"
        "    with ParquetStream(run.reserve('late.parquet'), schema) as table:\n"
        "        for _ in range(4):\n"
        "            column = [random.random() for _ in range(140_000)]\n"
        "            table.append(pa.table({'x': column}, schema))\n"
    )
    done = limited(code, tmp_path, 1_000_000)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert not list(tmp_path.glob(".*.partial"))
    assert not (tmp_path / "late.parquet").exists()
    assert not (tmp_path / "DONE").exists()
    assert json.loads((tmp_path / "crash.json").read_text())["exception"] == "OSError"
    with RunDir.open(tmp_path, {"rate": 2.0}) as run:  # and is made again
        with ParquetStream(run.reserve("late.parquet"), pa.schema({"x": pa.float64()})) as table:
            table.append(pa.table({"x": [1.0]}))
        assert not (tmp_path / "early.json").exists()


def test_killed_at_any_moment_nothing_of_others_is_touched_and_it_heals(tmp_path: Path) -> None:
    """Killed after each of its file operations in turn, which random moments would hardly hit."""
    code = (
        "import os, signal\n"
        "left = int(sys.argv[2])\n"
        "def count(event, args):\n"
        "    global left\n"
        "    writes = event == 'open' and isinstance(args[2], int) and args[2] & os.O_ACCMODE\n"
        "    if (writes or event in ('os.rename', 'os.remove', 'os.mkdir')) and ready:\n"
        "        left -= 1\n"
        "        if left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "ready = False\n"
        "sys.addaudithook(count)\n"
        "from c2c.runs import provenance; provenance()\n"
        "ready = True\n"
        "with RunDir.open(root, {'rate': 2.0}, overwrite=True, resume=False) as run:\n"
        "    run.write_json('early', {'x': 1}); run.write_table('late', {'x': [1]})\n"
        "ready = False\n"
    )
    head = (
        "import sys; from pathlib import Path; from c2c.runs import RunDir\n"
        "root = Path(sys.argv[1])\n"
    )
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    for moment in (0, 2, 5, 8, 11, 14, 1000, 6):  # the last two: to the end, and once more
        done = subprocess.run([sys.executable, "-c", head + code, str(folder), str(moment)])
        assert done.returncode == (0 if moment == 1000 else -signal.SIGKILL)
        assert (folder / "thesis.tex").read_text() == "years of work"
        whole = RunDir.is_current(folder, {"rate": 2.0})
        assert whole or not (folder / "DONE").exists()
        assert whole or moment != 1000
    with RunDir.open(folder, CONFIG, overwrite=True):
        pass
    assert set(contents(folder)) == {
        "thesis.tex", ".lock", ".results", "DONE", "config.yaml", "provenance.json",
    }  # fmt: skip
