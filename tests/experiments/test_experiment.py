"""Settings of figures: files of conf/experiment as dataclasses, with overrides; own figures."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from c2c.errors import SettingError
from c2c.hardware import conf_dir
from c2c.ranges import AboveZero, Count
from experiments import experiment as settings_of_figures
from experiments.experiment import read_experiment
from experiments.figure import Context, figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    requests: Count
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    rates_rps: tuple[AboveZero, ...]
    systems: dict[str, tuple[str, ...]]
    load: Load
    limit: float | None = None


@pytest.fixture
def _file(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "rates_rps": [1, 2.5],
        "systems": {"one": ["seed=1"]},
        "load": {"requests": 30, "shape": [1, 2]},
        "quick": {"rates_rps": [1], "load": {"requests": 3}},
    }
    monkeypatch.setattr(settings_of_figures, "read_yaml", lambda *_: dict(values))


@pytest.mark.usefixtures("_file")
def test_a_file_becomes_its_dataclass_and_quick_is_smaller() -> None:
    whole = read_experiment(Made, "paper/fig1")
    assert whole == Made(
        rates_rps=(1.0, 2.5), systems={"one": ("seed=1",)}, load=Load(requests=30, shape=(1, 2))
    )
    small = read_experiment(Made, "paper/fig1", quick=True)
    assert (small.rates_rps, small.load) == ((1.0,), Load(requests=3, shape=(1, 2)))


@pytest.mark.usefixtures("_file")
def test_overrides_win_over_the_profile() -> None:
    given = ["experiment.load.requests=7", "experiment.rates_rps=[3,4]", "experiment.limit=2"]
    found = read_experiment(Made, "paper/fig1", given, quick=True)
    assert (found.load.requests, found.rates_rps, found.limit) == (7, (3.0, 4.0), 2.0)
    more = read_experiment(Made, "paper/fig1", ["+experiment.systems.two=['seed=2']"])
    assert more.systems == {"one": ("seed=1",), "two": ("seed=2",)}


@pytest.mark.usefixtures("_file")
@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("experiment.rate=3", "experiment.rate=3: expected a key among"),
        ("experiment.load.size=3", "experiment.load.size=3: expected a key among requests, shape"),
        ("experiment.load.requests=0", "a whole number above 0"),
        ("experiment.load.requests=many", "a whole number above 0"),
        ("experiment.rates_rps=3", "expected a list"),
        ("experiment.rates_rps=[1,-2]", r"rates_rps\[1\]=-2.0: expected a number above 0"),
        ("experiment.load.shape=[1]", "a list of 2"),
        ("experiment.load=3", "a mapping"),
        ("experiment.load.requests=3,4", "Add -m"),
        ("~experiment.limit", "experiment.limit=<value>"),
        ("experiment.load.requests=[3", "key=value"),
    ],
)
def test_wrong_overrides_are_refused(override: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        read_experiment(Made, "paper/fig1", [override])


@pytest.mark.parametrize("profile", ["quick", "full"])
def test_every_file_is_read_by_its_figure(profile: str) -> None:
    context = Context(profile=profile, link_variant="measured", seeds=(0,))  # type: ignore[arg-type]
    read = set()
    for spec in figures().values():
        if spec.settings(context) is not None:
            paper, _, name = spec.name.rpartition(".")
            read.add(f"{paper or 'c2cserve'}/{name}")
    folder = conf_dir() / "experiment"
    there = {
        path.relative_to(folder).with_suffix("").as_posix()
        for path in folder.glob("*/*.yaml")
        if not path.read_text("utf-8").startswith("# @package _global_")
    }
    assert read == there


FIGURE = """
from dataclasses import dataclass

import pyarrow as pa
from matplotlib.figure import Figure

from c2c.ranges import Count
from experiments.figure import Computed, figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    count: Count


def draw(tables, caption):
    picture = Figure()
    picture.subplots().plot(tables["squares"]["square"])
    return picture


@figure("lab.squares", title="Squares", draw=draw, experiment=Squares)
def compute(context, experiment):
    rows = [{"square": n * n} for n in range(experiment.count)]
    return Computed(
        tables={"squares": pa.Table.from_pylist(rows)},
        results=(),
        caption="Squares",
        finding=f"the last of {experiment.count} is {rows[-1]['square']}",
    )
"""


@pytest.mark.slow
def test_a_figure_of_ones_own_is_swept_from_ones_folder(tmp_path: Path) -> None:
    own = tmp_path / "mydir"
    (own / "figure").mkdir(parents=True)
    (own / "experiment/lab").mkdir(parents=True)
    (own / "figure/own_squares.py").write_text(FIGURE)
    (own / "experiment/lab/squares.yaml").write_text("count: 3\n")
    command = [sys.executable, "-m", "c2c", "reproduce", f"--config-dir={own}"]
    command += ["-m", "figures=lab.squares,table1", "experiment.count=4,5", "out=out"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "experiment.count=4: expected a key among chip, layouts" in refused.stderr
    command[6] = "figures=lab.squares"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "count=5  lab.squares: the last of 5 is 16" in done.stdout
    (swept,) = (tmp_path / "out").glob("sweep_*/lab.squares.squares.parquet")
    table = pq.read_table(swept)
    assert table.column_names == ["experiment.count", "square"]
    assert table.num_rows == 9
    kept = json.loads((tmp_path / "out/quick_count=4/lab.squares/figure.json").read_text("utf-8"))
    assert kept["finding"] == "the last of 4 is 9"
