"""README: output, tables and citation are those of the code; scripts of the run folder's page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from c2c.models import FAMILIES
from c2c.transformer.layers.layout import FAMILIES as LIVE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")
ABOUT = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


def block(language: str, page: str = TEXT) -> str:
    """Return the text of the first fenced block of a language."""
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return found[0]


def commands(part: str) -> list[str]:
    """Return the words of the README's command that contains `part`, for this Python."""
    text = TEXT.replace("\\\n", "")
    (line,) = [one for one in text.splitlines() if one.startswith("    .venv/") and part in one]
    return [sys.executable, "-m", "c2c", *shlex.split(line, comments=True)[1:]]


def run(folder: Path, words: list[str]) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "MPLBACKEND": "agg"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(first: str, page: str = TEXT) -> dict[str, list[str]]:
    """Return the cells of the table whose header begins so, by the first one of each row."""
    part = page[page.index(f"| {first} |") :].split("\n\n", maxsplit=1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 140


@pytest.mark.slow
def test_its_run_prints_what_it_shows_and_the_page_s_scripts_read_it(tmp_path: Path) -> None:
    printed = run(tmp_path, [*commands("mig=4x24gb"), "folder=one"]).splitlines()
    assert set(block("text").splitlines()) <= {line.rstrip() for line in printed}
    page = (ROOT / "docs" / "run_folder.md").read_text("utf-8")
    pandas, timeline = page[page.index("## In pandas") :], page[page.index("## Timeline") :]
    for part in (pandas, timeline):
        code = block("python", part).replace("<run folder>", "one")
        (tmp_path / "script.py").write_text(code)
        said = run(tmp_path, [sys.executable, "script.py"])
        if part is pandas:
            assert said.count("llama-3-") == 6
    assert (tmp_path / "timeline.png").stat().st_size > 10_000


def test_its_trace_is_read(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(block("csv"))
    printed = run(tmp_path, [*commands("path=my.csv hardware=gh200 mig"), "catalog=dense6"])
    assert "rows: 2 of 2 used" in printed


def test_its_chips_and_prices_are_those_of_the_settings() -> None:
    told = ", ".join(cells[0] for cells in table("chips").values()).split(", ")
    known = set()
    for path in (ROOT / "conf" / "hardware").glob("*.yaml"):
        usd = yaml.safe_load(path.read_text("utf-8"))["gpu"].get("usd_per_hour")
        known.add(f"`{path.stem}` {usd:.2f}" if usd else f"`{path.stem}`")
    assert sorted(told) == sorted(known)


def test_its_model_families_are_those_of_the_readers() -> None:
    rows = table("model families")
    told = {name: set(re.findall(r"`([\w-]+)`", cells[0])) for name, cells in rows.items()}
    assert told == {"simulated": set(FAMILIES), "of these live": set(LIVE)}


def test_its_shares_of_reproduced_numbers_are_those_of_the_evidence() -> None:
    page = (ROOT / "docs" / "evidence" / "predictions.md").read_text("utf-8")
    told = {paper: [row[0], row[-1]] for paper, row in table("paper", page).items()}
    assert table("paper") == told
    (robust,) = re.findall(r"Of (\d+) predictions that agree (\d+) are robust", page)
    assert re.findall(r"Of the (\d+) predictions that agree, .*, (\d+) do so", TEXT) == [robust]


def test_its_citation_is_that_of_the_citation_file() -> None:
    told = dict(re.findall(r"^  (\w+) = \{+(.*?)\}+,$", block("bibtex"), re.MULTILINE))
    assert told == {
        "author": " and ".join(one["name"] for one in ABOUT["authors"]),
        "title": ABOUT["title"],
        "version": ABOUT["version"],
        "year": ABOUT["date-released"][:4],
        "license": ABOUT["license"],
    }
