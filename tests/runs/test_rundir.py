import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from c2c.errors import SettingError
from c2c.runs import FolderInUse, ParquetStream, RunDir, is_in_use

CONFIG = {"rate": 2.0, "out": "here"}


def run_once(
    root: Path, config: dict[str, object] = CONFIG, value: int = 1, **more: object
) -> bool:
    """Return whether work was done."""
    with RunDir.open(root, config, **more) as run:  # type: ignore[arg-type]
        if run.is_complete:
            return False
        run.write_table("numbers", {"x": [value]})
        run.write_json("summary", {"x": value})
    return True


def test_config_and_provenance_are_there_before_work(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, CONFIG, seed=7) as run:
        assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG
        record = json.loads((run.path / "provenance.json").read_text())
        assert record["seed"] == 7
        assert record["packages"]["numpy"]
        assert not (run.path / "DONE").exists()


def test_complete_run_is_not_repeated(tmp_path: Path) -> None:
    assert run_once(tmp_path)
    assert not run_once(tmp_path)
    assert run_once(tmp_path, resume=False)


def test_ignored_key_does_not_matter_any_other_does(tmp_path: Path) -> None:
    assert run_once(tmp_path, ignore=("out",))
    assert not run_once(tmp_path, {**CONFIG, "out": "there"}, ignore=("out",))
    assert run_once(tmp_path, {**CONFIG, "rate": 3.0}, ignore=("out",), overwrite=True)


def test_changed_data_is_run_again(tmp_path: Path) -> None:
    data = tmp_path / "trace.csv"
    data.write_text("1")
    assert run_once(tmp_path / "r", files=[data])
    assert not run_once(tmp_path / "r", files=[data])
    data.write_text("2")
    assert run_once(tmp_path / "r", files=[data])


def test_changed_code_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "some_model"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    assert run_once(tmp_path / "r", packages=["some_model"])
    assert not run_once(tmp_path / "r", packages=["some_model"])
    (package / "__init__.py").write_text("A = 2\n")
    assert run_once(tmp_path / "r", packages=["some_model"])


@pytest.mark.parametrize("damage", ["delete", "change", "garbage DONE"])
def test_damaged_result_is_run_again(tmp_path: Path, damage: str) -> None:
    run_once(tmp_path)
    if damage == "delete":
        (tmp_path / "summary.json").unlink()
    elif damage == "change":
        (tmp_path / "summary.json").write_text("{}")
    else:
        (tmp_path / "DONE").write_text("[]")
    assert run_once(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"x": 1}


def test_results_of_another_run_do_not_stay(tmp_path: Path) -> None:
    run_once(tmp_path)
    (tmp_path / "mine.txt").write_text("not ours")
    with RunDir.open(tmp_path, {"rate": 9}, overwrite=True) as run:
        assert not (run.path / "numbers.parquet").exists()
    assert (tmp_path / "mine.txt").read_text() == "not ours"


def test_crash_is_recorded_and_run_again(tmp_path: Path) -> None:
    def crash_after_a_result() -> None:
        with RunDir.open(tmp_path, CONFIG) as run:
            run.write_table("numbers", {"x": [1]})
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        crash_after_a_result()
    crash = json.loads((tmp_path / "crash.json").read_text())
    assert crash["exception"] == "ZeroDivisionError"
    assert crash["config"] == CONFIG
    assert "1 / 0" in "".join(crash["traceback"])
    assert not (tmp_path / "DONE").exists()
    assert run_once(tmp_path)
    assert not (tmp_path / "crash.json").exists()


def test_a_crash_with_settings_that_json_lacks_is_recorded(tmp_path: Path) -> None:
    def crash() -> None:
        with RunDir.open(tmp_path, {"gate": np.inf, "parts": [{"low": -np.inf}, 1.5]}):
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        crash()
    found = json.loads((tmp_path / "crash.json").read_text())
    assert found["config"] == {"gate": ".inf", "parts": [{"low": "-.inf"}, 1.5]}


def test_a_signal_while_a_file_is_opened_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def interrupted(*_args: object, **_settings: object) -> None:
        seen.extend(tmp_path.glob(".numbers.parquet.*"))
        # As a signal leaves it that comes before anything minds the file.
        (tmp_path / ".numbers.parquet.x.partial").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr("c2c.runs.tables.pq.ParquetWriter", interrupted)
    with pytest.raises(KeyboardInterrupt), RunDir.open(tmp_path, CONFIG) as run:
        ParquetStream(run.reserve("numbers.parquet"), pa.schema({"x": pa.int64()}))
    assert len(seen) == 1  # it had been made
    assert not list(tmp_path.glob(".*.partial"))
    assert json.loads((tmp_path / "crash.json").read_text())["exception"] == "KeyboardInterrupt"


def test_killed_run_leaves_nothing_that_looks_done(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from c2c.runs import RunDir\n"
        "with RunDir.open(Path(sys.argv[1]), {'rate': 1}) as run:\n"
        "    run.write_table('early', {'x': [1]})\n"
        "    with run.open_file('late.bin') as f:\n"
        "        f.write(b'half'); f.flush(); print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(FolderInUse, match="no other run"):
            RunDir.open(tmp_path, {"rate": 1})
        assert is_in_use(tmp_path)
        os.kill(child.pid, signal.SIGKILL)
    assert not (tmp_path / "late.bin").exists()
    assert run_once(tmp_path, {"rate": 1})
    assert not (tmp_path / "early.parquet").exists()
    assert not list(tmp_path.glob(".*.partial"))


def test_same_results_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_once(tmp_path / name)
    done = [json.loads((tmp_path / n / "DONE").read_text()) for n in ("a", "b")]
    assert done[0] == done[1]


def test_names_stay_inside_and_complete_runs_are_read_only(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, CONFIG) as run:
        for name in ("../x.txt", "DONE"):
            with pytest.raises(SettingError):
                run.write_text(name, "")
    with RunDir.open(tmp_path, CONFIG) as run, pytest.raises(RuntimeError, match="complete"):
        run.write_text("x", "")


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(SettingError, match="folder"):
        RunDir.open(tmp_path / "f", CONFIG)


def test_the_last_digits_of_a_layout_change_no_byte(tmp_path: Path) -> None:
    """A solver's result differs by as much from one process to the next."""
    from matplotlib.figure import Figure

    bytes_of = []
    for name, slip in (("a", 0.0), ("b", 3e-13)):
        figure = Figure(figsize=(4, 3), layout="constrained")
        axes = figure.subplots()
        axes.plot([1, 2], label="one")
        figure.legend(loc="outside upper right")
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.set(rect=(0.01, 0.02, 0.9 + slip, 0.9))
        with RunDir.open(tmp_path / name, CONFIG) as run:
            bytes_of.append([p.read_bytes() for p in run.write_figure("f", figure)])
        assert axes.get_position().x0 > 0.05  # the engine made room for the labels
    assert bytes_of[0] == bytes_of[1]


def test_figures_have_the_same_bytes_each_time(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    bytes_of = []
    for name in ("a", "b"):
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot([1, 2], label="é")
        with RunDir.open(tmp_path / name, CONFIG) as run:
            bytes_of.append([p.read_bytes() for p in run.write_figure("f", figure)])
    assert bytes_of[0] == bytes_of[1]
    assert bytes_of[0][0].startswith(b"\x89PNG")


def test_a_kept_folder_stays_when_the_run_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    run = RunDir.open(root, {"a": 1})  # and killed
    (run.kept_folder("parts") / "first").write_text("done")
    run.__exit__(None, None, None)
    (root / "DONE").unlink()
    with RunDir.open(root, {"a": 1}) as run:
        assert (run.kept_folder("parts") / "first").read_text() == "done"
        run.write_text("result.txt", "made")
    with RunDir.open(root, {"a": 2}, overwrite=True) as run:
        assert not (root / "result.txt").exists()
    assert (root / "parts/first").read_text() == "done"


def test_a_kept_folder_is_never_anybody_elses(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/mine").write_text("mine")
    with (
        RunDir.open(tmp_path, {"a": 1}, overwrite=True) as run,
        pytest.raises(SettingError, match="a foreign 'parts'"),
    ):
        run.kept_folder("parts")
    for name in ("../parts", "a/b", "config.yaml", ""):
        with (
            RunDir.open(tmp_path / "other", {"a": 1}, resume=False) as run,
            pytest.raises(SettingError, match="name"),
        ):
            run.kept_folder(name)
    assert [p.name for p in (tmp_path / "parts").iterdir()] == ["mine"]
