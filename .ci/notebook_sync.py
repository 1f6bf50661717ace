"""Check that every notebooks/*.py and its .ipynb hold the same cells; --fix writes the older anew.

python .ci/notebook_sync.py [--fix] [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
from jupytext.cli import jupytext as run_jupytext


def cells(path: Path) -> list[tuple[str, str]]:
    """Return (kind, source) of every cell that holds anything."""
    notebook = jupytext.read(path)
    return [(c.cell_type, c.source.strip()) for c in notebook.cells if c.source.strip()]


def problem(script: Path) -> str | None:
    """Return what is wrong with the pair that `script` or its notebook belongs to, if anything."""
    notebook, script = script.with_suffix(".ipynb"), script.with_suffix(".py")
    for path in (script, notebook):
        if not path.exists():
            return f"{path} is missing: its pair is alone"
    if "# %%" not in script.read_text(encoding="utf-8"):
        return f"{script} is not in the percent format"
    ours, theirs = cells(script), cells(notebook)
    if ours == theirs:
        return None
    differs = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    return f"{script} and {notebook.name} differ from cell {differs + 1} on"


def fix(script: Path) -> None:
    """Write the older of the pair anew from the newer; a notebook keeps its outputs."""
    notebook, script = script.with_suffix(".ipynb"), script.with_suffix(".py")
    if script.exists() and (
        not notebook.exists() or script.stat().st_mtime >= notebook.stat().st_mtime
    ):
        update = ["--update"] if notebook.exists() else []
        run_jupytext(["--quiet", "--to", "ipynb", *update, str(script)])
    else:
        run_jupytext(["--quiet", "--to", "py:percent", str(notebook)])


def main(arguments: list[str]) -> int:
    """Return 0 if every pair agrees (after fixing, where asked to)."""
    wants_fix = "--fix" in arguments
    folders = [a for a in arguments if a != "--fix"]
    folder = Path(folders[0]) if folders else Path(__file__).parents[1] / "notebooks"
    scripts = sorted(
        {p.with_suffix(".py") for p in folder.glob("*") if p.suffix in {".py", ".ipynb"}}
    )
    if wants_fix:
        for script in scripts:
            if problem(script) is not None:
                fix(script)
    problems = [found for script in scripts if (found := problem(script)) is not None]
    for found in problems:
        print(found)
    if problems:
        print("Put them in step with: .venv/bin/python .ci/notebook_sync.py --fix")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
