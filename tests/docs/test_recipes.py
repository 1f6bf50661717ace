"""Recipes of docs/recipes.md, added in a temporary folder and run; files that docs/design names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

FEW = ("workload.requests=5", "figures=false", "timeline.rows=0")
COMMENT = re.compile(r"(?:#|//) (\S+\.\w+)\n")


def blocks(repository: Path) -> dict[str, str]:
    """Return the examples of the page by their paths, which their first lines say."""
    text = (repository / "docs" / "recipes.md").read_text("utf-8")
    result = {}
    for block in re.findall(r"```\w+\n(.*?)```", text, re.DOTALL):
        if first := COMMENT.match(block):
            result[first[1]] = block[first.end() :] if block[:2] == "//" else block
            if first[1].endswith(".csv"):
                result[first[1]] = block[first.end() :]
    return result


def command(repository: Path, part: str) -> list[str]:
    """Return the page's command that contains `part`, for this Python."""
    text = (repository / "docs" / "recipes.md").read_text("utf-8")
    (line,) = [one for one in text.splitlines() if one.startswith("    .venv/") and part in one]
    program, *words = shlex.split(line)
    return [sys.executable, *(["-m", "c2c"] if program.endswith("/c2c") else []), *words]


def written(folder: Path, repository: Path, *paths: str) -> None:
    known = blocks(repository)
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(known[path])


def run(folder: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def overlay(folder: Path, repository: Path, package: str) -> None:
    """Make a package of links, so that a module can be added to it outside the repository."""
    (folder / package).mkdir()
    for inner in (repository / package).iterdir():
        if inner.name != "__pycache__":
            (folder / package / inner.name).symlink_to(inner)


# By what the command contains: the example's files, and what the run prints.
SIMULATED = {
    "system=mine_start": (
        ("mydir/system/mine_start.py", "mydir/system/mine_start.yaml"),
        "mine_start on 1 x gh200",
    ),
    "system/batch=longest_goes": (("mydir/system/longest_goes.py",), "c2cserve on 1 x gh200"),
    "system/option=at_most": (("mydir/system/at_most.py",), "c2cserve on 1 x gh200"),
    "system/option=both": (("mydir/system/at_most.py",), "c2cserve on 1 x gh200"),
    "hardware=lab": (("mydir/hardware/lab.yaml",), "1 x lab, mig 1x48gb"),
    "mydir/lab-1b": (("mydir/system/lab_family.py", "mydir/lab-1b/config.json"), " lab-1b "),
    "mydir/lab.csv": (("mydir/system/lab_trace.py", "mydir/lab.csv"), "2 of 2 used (format lab)"),
}


@pytest.mark.parametrize("part", SIMULATED)
def test_a_recipe_is_simulated(part: str, tmp_path: Path, repository: Path) -> None:
    files, said = SIMULATED[part]
    written(tmp_path, repository, *files)
    done = run(tmp_path, simulated(part, tmp_path, repository))
    assert done.returncode == 0, done.stderr
    assert said in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("part", SIMULATED)
def test_without_its_file_a_recipe_is_refused(part: str, tmp_path: Path, repository: Path) -> None:
    first, *others = SIMULATED[part][0]
    written(tmp_path, repository, *others)
    (tmp_path / "mydir" / "system").mkdir(parents=True, exist_ok=True)
    done = run(tmp_path, simulated(part, tmp_path, repository))
    assert done.returncode == 2, first
    assert done.stderr.startswith("error: ")


def simulated(part: str, folder: Path, repository: Path) -> list[str]:
    few = FEW[1:] if "csv" in part else FEW
    return [*command(repository, part), *few, f"out={folder / 'out'}"]


# The policy of the page is run by tests/config/test_user_code.py, with its mistakes.


@pytest.mark.slow
def test_a_figure_of_ones_own_is_drawn_and_swept(tmp_path: Path, repository: Path) -> None:
    written(tmp_path, repository, "mydir/figure/weights.py", "mydir/experiment/lab/weights.yaml")
    done = run(tmp_path, command(repository, "out=lab"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lab" / "lab.weights" / "lab.weights.svg").is_file()
    done = run(tmp_path, command(repository, "out=swept"))
    assert done.returncode == 0, done.stderr
    assert "hbm_gb=24  lab.weights: 2 of 3 models fit 24 GB" in done.stdout
    (tmp_path / "mydir/experiment/lab/weights.yaml").unlink()
    refused = run(tmp_path, command(repository, "out=lab"))
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")


def test_a_kernel_agrees_with_its_reference(tmp_path: Path, repository: Path) -> None:
    overlay(tmp_path, repository, "pallas_kernels")
    written(tmp_path, repository, "pallas_kernels/scaled_rows/__init__.py", "try_it.py")
    words = command(repository, "try_it.py")
    done = run(tmp_path, words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the kernel and its reference agree: True\n"
    kernel = tmp_path / "pallas_kernels" / "scaled_rows" / "__init__.py"
    kernel.write_text(kernel.read_text().replace("x[row] * factor[row]", "x[row] + factor[row]"))
    assert run(tmp_path, words).stdout.endswith("False\n")


def test_files_that_pages_of_the_design_name_exist(repository: Path) -> None:
    pages = [*(repository / "docs" / "design").rglob("*.md")]
    pattern = r"`((?:c2c|pallas_kernels|experiments|tests|conf)/[\w/]+(?:\.py|\.yaml)?)`"
    named = [
        (page.name, path) for page in pages for path in re.findall(pattern, page.read_text("utf-8"))
    ]
    assert len(named) > 40
    assert [(page, path) for page, path in named if not (repository / path).exists()] == []


def test_files_and_functions_of_the_request_s_path_exist(repository: Path) -> None:
    text = (repository / "docs" / "structures.md").read_text("utf-8")
    table = text[: text.index("## The packages")]
    rows = re.findall(r"^\| [^|]+ \| `(c2c/\S+\.py)` \| (.*) \|$", table, re.MULTILINE)
    assert len(rows) == 12
    assert len({path for path, _ in rows}) == 12
    for path, what in rows:
        code = (repository / path).read_text("utf-8")
        for name in re.findall(r"`(\w+)`", what):
            assert re.search(rf"^(?:def|class) {name}\b", code, re.MULTILINE), (path, name)


def test_every_example_of_the_page_is_run(repository: Path) -> None:
    ran = {path for files, _ in SIMULATED.values() for path in files}
    others = {
        "mydir/system/mine.py", "mydir/system/mine.yaml",
        "mydir/figure/weights.py", "mydir/experiment/lab/weights.yaml",
        "pallas_kernels/scaled_rows/__init__.py", "try_it.py",
    }  # fmt: skip
    assert set(blocks(repository)) == ran | others
