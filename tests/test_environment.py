"""The scripts behind make: finding a Python, making .venv once and mending it, notebook pairs."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# The interpreters are shell scripts that log what they are asked, so nothing is installed.
CI = Path(__file__).parents[1] / ".ci"

NEW = '[ "$1" = --version ] && echo "Python 3.12.9"; exit 0'
OLD = '[ "$1" = --version ] && { echo "Python 3.11.7"; exit 0; }; exit 1'
SHIM = 'echo "pyenv: command not found" >&2; exit 127'

# Makes an environment whose python logs its pip calls and fails while the file `no-index` exists.
BASE = """
log="{root}/log"
case "$1 $2" in
"-m venv")
    echo "venv" >>"$log"
    mkdir -p "$3/bin"
    cat >"$3/bin/python" <<'INNER'
#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then
    echo "pip" >>"{root}/log"
    [ ! -e "{root}/no-index" ]
    exit
fi
exit 0
INNER
    chmod +x "$3/bin/python" ;;
"--version ") echo "Python 3.12.9" ;;
esac
exit 0
"""


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def find(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run find-python where only the fake interpreters of tmp_path can be found."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("sh", "head"):
        if not (tools / name).exists() and (real := shutil.which(name)):
            (tools / name).symlink_to(real)
    known = {"HOME": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:{tools}"}
    return subprocess.run(
        ["/bin/sh", CI / "find-python"], env=known | environment, capture_output=True, text=True
    )


def test_finds_the_one_on_the_path_that_is_new_enough(tmp_path: Path) -> None:
    script(tmp_path / "bin/python3.12", SHIM)  # a pyenv shim without an active version
    script(tmp_path / "bin/python3", OLD)
    expected = script(tmp_path / "bin/python3.13", NEW)
    found = find(tmp_path)
    assert (found.returncode, found.stdout.strip()) == (0, str(expected))


@pytest.mark.parametrize(
    "place", [".pyenv/versions/3.12.1/bin/python3.12", ".local/share/uv/python/x/bin/python3.13"]
)
def test_finds_the_managed_ones(tmp_path: Path, place: str) -> None:
    script(tmp_path / "bin/python3", OLD)
    expected = script(tmp_path / place, NEW)
    assert find(tmp_path).stdout.strip() == str(expected)


def test_pyenv_root_is_heeded(tmp_path: Path) -> None:
    expected = script(tmp_path / "elsewhere/versions/3.12.1/bin/python3.12", NEW)
    assert find(tmp_path, PYENV_ROOT=str(tmp_path / "elsewhere")).stdout.strip() == str(expected)


def test_says_what_it_saw_and_what_to_do(tmp_path: Path) -> None:
    script(tmp_path / "bin/python3", OLD)
    found = find(tmp_path)
    assert found.returncode == 1
    assert found.stdout == ""
    for part in ("3.12", "Python 3.11.7", "C2C_PYTHON", "pyenv install"):
        assert part in found.stderr


def test_named_python_wins_or_is_refused(tmp_path: Path) -> None:
    script(tmp_path / "bin/python3.12", NEW)
    named = script(tmp_path / "own/python", NEW)
    assert find(tmp_path, C2C_PYTHON=str(named)).stdout.strip() == str(named)
    script(named, OLD)
    refused = find(tmp_path, C2C_PYTHON=str(named))
    assert refused.returncode == 1
    assert "C2C_PYTHON" in refused.stderr
    assert "3.11.7" in refused.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    shutil.copytree(CI, root / ".ci")
    (root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    (root / ".ci/constraints/main.txt").write_text("a==1\n", encoding="utf-8")
    script(root / "base-python", BASE.format(root=root))
    return root


def make_venv(project: Path) -> tuple[int, list[str]]:
    """Run make-venv; return its status and what was made meanwhile ("venv", "pip")."""
    log = project / "log"
    log.write_text("", encoding="utf-8")
    done = subprocess.run(
        [project / ".ci/make-venv"],
        env=os.environ | {"C2C_PYTHON": str(project / "base-python")},
        capture_output=True,
        text=True,
    )
    return done.returncode, log.read_text("utf-8").split()


def test_environment_is_made_once(project: Path) -> None:
    assert make_venv(project) == (0, ["venv", "pip", "pip"])
    assert make_venv(project) == (0, [])


@pytest.mark.parametrize("name", ["pyproject.toml", ".ci/constraints/main.txt"])
def test_changed_requirements_are_installed_into_it(project: Path, name: str) -> None:
    make_venv(project)
    with (project / name).open("a", encoding="utf-8") as file:
        file.write("b==2\n")
    assert make_venv(project) == (0, ["pip", "pip"])
    assert make_venv(project) == (0, [])


def test_failed_install_is_not_taken_for_done(project: Path) -> None:
    (project / "no-index").touch()
    status, made = make_venv(project)
    assert status != 0
    assert made == ["venv", "pip"]
    (project / "no-index").unlink()
    assert make_venv(project) == (0, ["venv", "pip", "pip"])
    assert make_venv(project) == (0, [])


def test_killed_install_starts_anew(project: Path) -> None:
    make_venv(project)
    (project / ".venv/.c2c-stamp").unlink()
    (project / ".venv/.installing").touch()
    (project / ".venv/half-written").touch()
    assert make_venv(project) == (0, ["venv", "pip", "pip"])
    assert not (project / ".venv/half-written").exists()


def test_environment_whose_python_went_away_is_made_again(project: Path) -> None:
    make_venv(project)
    (project / ".venv/bin/python").unlink()
    assert make_venv(project) == (0, ["venv", "pip", "pip"])


def test_moved_checkout_is_installed_again(project: Path) -> None:
    make_venv(project)
    moved = project.rename(project.with_name("moved"))
    script(moved / "base-python", BASE.format(root=moved))
    log = project  # its environment still writes its log to the old place
    log.mkdir()
    status, _ = make_venv(moved)
    assert status == 0
    assert (log / "log").read_text("utf-8").split() == ["pip", "pip"]


def notebook_sync(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CI / "notebook_sync.py", *arguments], capture_output=True, text=True
    )


def test_notebook_pairs_are_compared_and_mended(tmp_path: Path) -> None:
    source = tmp_path / "question.py"
    source.write_text("# %% [markdown]\n# # Why?\n\n# %%\nprint(1)\n", encoding="utf-8")
    assert "missing" in notebook_sync(tmp_path).stdout
    assert notebook_sync("--fix", tmp_path).returncode == 0
    assert notebook_sync(tmp_path).returncode == 0

    source.write_text(source.read_text("utf-8").replace("print(1)", "print(2)"), encoding="utf-8")
    apart = notebook_sync(tmp_path)
    assert apart.returncode == 1
    assert "cell 2" in apart.stdout

    older = (tmp_path / "question.ipynb").stat().st_mtime_ns - 10**9
    os.utime(tmp_path / "question.ipynb", ns=(older, older))
    assert notebook_sync("--fix", tmp_path).returncode == 0
    assert "print(2)" in (tmp_path / "question.ipynb").read_text("utf-8")


def test_the_page_of_licences_is_of_the_locked_packages() -> None:
    written = runpy.run_path(str(CI / "licences.py"))
    assert written["PAGE"].read_text("utf-8") == written["page"]()
