import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from c2c.config import load_code
from c2c.errors import SettingError
from experiments import figure as door
from experiments.figure import Context, choose, figure_files, figures
from experiments.reproduce import figure_jobs
from experiments.reproduce.command import as_lists, context_of, folder_name
from experiments.reproduce.run import reproduce
from tests.experiments.duties import QUICK

DEFAULTS: dict[str, object] = {
    "profile": "quick", "link_variant": "measured", "seeds": None, "traces": "none",
}  # fmt: skip

FIGURES = figures()


def make(out: Path, *names: str, context: Context = QUICK, **more: Any) -> dict[str, Any]:
    with (out.parent / "log").open("w") as log:
        outcomes, _ = reproduce(choose(names), context, out, console=Console(file=log), **more)
    return {o.name: o for o in outcomes}


def test_names() -> None:
    assert [s.name for s in choose("all")] == list(FIGURES)
    assert [s.name for s in choose("fig4,table1")] == ["table1", "fig4"]
    assert [s.name for s in choose(["fig5", "fig4"])] == ["fig4", "fig5"]
    assert [s.name for s in choose("c2cserve.fig4")] == ["fig4"]
    assert [s.name for s in choose("c2cserve")] == [n for n in FIGURES if "." not in n]
    dear = {s.name for s in choose("all")} - {s.name for s in choose("all", "quick")}
    assert dear == {"workload_map"}
    assert dear == {s.name for s in choose("workload_map", "quick")}  # who names it gets it
    for bad in ("fig99", "", [], "fig4,fig99"):
        with pytest.raises(SettingError, match="table1, table2"):
            choose(bad)


def test_every_figure_has_a_drawing_and_its_modules_are_in_the_key() -> None:
    for spec in FIGURES.values():
        assert callable(spec.drawing)
        assert Path(inspect.getfile(sys.modules[spec.module])) in spec.files
        assert Path(inspect.getfile(spec.drawing)) in spec.files


def test_a_figure_depends_on_what_it_imports_and_not_on_its_neighbours() -> None:
    names = {p.name for p in FIGURES["fig4"].files if p.parent.name == "c2cserve"}
    assert {"fig4.py", "settings.py"} <= names
    assert not names & {"fig5.py", "fig12.py"}
    assert {p.name for p in FIGURES["fig12moe"].files} >= {"fig12moe.py", "fig12.py"}


def test_a_figure_is_found_by_its_text_and_two_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "from experiments.figure import figure\n\n@figure('{}', title='', draw=print)\n"
    (tmp_path / "figures_of_a_test").mkdir()
    for module, name in (("mine", "mine.fig1"), ("twice", "fig4")):
        text = own.format(name) + "def compute(context):\n    return None\n"
        (tmp_path / "figures_of_a_test" / f"{module}.py").write_text(text)
    (tmp_path / "figures_of_a_test" / "other.py").write_text("raise RuntimeError('loaded')\n")
    there = ("figures_of_a_test.mine", "figures_of_a_test.twice")
    assert door.modules_with_figures(tmp_path, "") == there
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(door, "_FOUND", dict(door._FOUND))
    monkeypatch.setattr(door, "modules_with_figures", lambda *_: there[:1])
    assert [s.name for s in choose("mine")] == ["mine.fig1"]
    assert list(figures())[-1] == "mine.fig1"
    monkeypatch.setattr(door, "modules_with_figures", lambda *_: there)
    with pytest.raises(ValueError, match="two figures are called fig4"):
        figures()


def test_commas_become_lists() -> None:
    assert as_lists(["figures=a,b", "profile=full"]) == ["figures=[a,b]", "profile=full"]
    assert as_lists(["figures=[a,b]", "figures=a", "out=x,y"]) == [
        "figures=[a,b]", "figures=a", "out=x,y",
    ]  # fmt: skip


def test_seeds_follow_the_profile_unless_given() -> None:
    assert len(context_of(DEFAULTS).seeds) == 3
    assert len(context_of({**DEFAULTS, "profile": "full"}).seeds) == 5
    assert context_of({**DEFAULTS, "seeds": 7}).seeds == (7,)


def test_a_run_leaves_all_it_should_and_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = make(out, "table1", "fig8")
    assert not any(o.reused or o.error for o in first.values())
    for name in ("table1", "fig8"):
        for suffix in ("png", "svg"):
            assert (out / name / f"{name}.{suffix}").stat().st_size > 1000
        for file in ("config.yaml", "provenance.json", "DONE", "figure.json"):
            assert (out / name / file).is_file()
    found = json.loads((out / "fidelity.json").read_text())
    assert len(found["claims"]) == 577
    assert found["totals"]["out-of-sample"] == 1  # Fig. 8's trend; Table 1 is an input
    page = (out / "index.html").read_text()
    assert all(f'<article id="{name}">' in page for name in ("table1", "fig8"))
    assert "fig8.m_tile" in (out / "claims.html").read_text()

    again = make(out, "table1", "fig8")
    assert all(o.reused for o in again.values())
    assert not any(o.reused for o in make(out, "fig8", resume=False).values())


@pytest.mark.slow
def test_results_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out, "fig8")
    other = replace(QUICK, link_variant="datasheet")
    with pytest.raises(SettingError, match="another run"):
        make(out, "table1", context=other)
    make(out, "table1", context=other, overwrite=True)
    compared = [
        c
        for c in json.loads((out / "fidelity.json").read_text())["claims"]
        if c["ours"] is not None
    ]
    assert compared
    assert not any("fig8" in c["id"] for c in compared)
    assert "fig8" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_same_settings_same_bytes(tmp_path: Path) -> None:
    done = []
    for name in ("a", "b"):
        make(tmp_path / name, "fig4")
        done.append(json.loads((tmp_path / name / "fig4" / "DONE").read_text())["results"])
    assert done[0] == done[1]
    assert {Path(n).suffix for n in done[0]} == {
        ".parquet", ".json", ".png", ".svg", ".pdf",
    }  # fmt: skip


@pytest.mark.slow
def test_a_failed_figure_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: Context) -> Any:
        raise RuntimeError("no such luck")

    spec = FIGURES["fig8"]
    monkeypatch.setattr(
        figure_jobs,
        "inputs_of",
        lambda s, c: {"config": {"figure": s.name}, "packages": (), "files": ()},
    )
    specs = (replace(spec, compute=broken), FIGURES["table1"])
    with (tmp_path / "log").open("w") as log:
        outcomes, _ = reproduce(specs, QUICK, tmp_path / "out", console=Console(file=log))
    assert "no such luck" in outcomes[0].error
    assert not outcomes[1].error
    crash = json.loads((tmp_path / "out" / "fig8" / "crash.json").read_text())
    assert crash["exception"] == "RuntimeError"


@pytest.mark.slow
def test_processes_make_the_same_and_a_failed_figure_is_one_of_them(tmp_path: Path) -> None:
    make(tmp_path / "alone", "table1")
    (tmp_path / "figure").mkdir()
    (tmp_path / "figure/figure_that_fails.py").write_text(
        "from experiments.figure import figure\n\n@figure('lab.fails', title='', draw=print)\n"
        "def compute(context):\n    raise TypeError('as it must')\n"
    )
    load_code(figure_files(tmp_path))
    specs = choose("table1,lab.fails")
    with (tmp_path / "log").open("w") as log:
        found, _ = reproduce(specs, QUICK, tmp_path / "both", console=Console(file=log), workers=2)
    errors = {o.name: o.error for o in found}
    assert {*errors} == {"table1", "lab.fails"}
    assert not errors["table1"]
    assert "as it must" in errors["lab.fails"]
    done = [
        json.loads((tmp_path / out / "table1" / "DONE").read_text())["results"]
        for out in ("alone", "both")
    ]
    assert done[0] == done[1]


def test_the_command_refuses_a_wrong_name_without_a_traceback(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "c2c", "reproduce", "figures=fig4,fig99"],
        cwd=repository, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "fig99" in done.stderr
    assert "table1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_with_a_page_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("my home page")
    for overwrite in (False, True):
        with pytest.raises(SettingError, match=r"index\.html"):
            make(tmp_path / "out", "table1", overwrite=overwrite)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["index.html"]


def test_other_settings_have_another_folder() -> None:
    names = {
        folder_name(context_of(DEFAULTS | more))
        for more in ({}, {"seeds": 7}, {"link_variant": "datasheet"}, {"profile": "full"})
    }
    assert len(names) == 4
    assert "quick" in names
