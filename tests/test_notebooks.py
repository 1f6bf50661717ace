"""Stored notebooks: pictures in the house style, and a computed sentence at the end."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SENTENCE = re.compile(r"\*\*Found\.\*\* [A-Z].*\d.*\.", re.DOTALL)
PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var)/")


def lacks(notebook: dict[str, Any]) -> list[str]:
    """Return what a stored notebook lacks."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    last = "".join(notebook["cells"][-1].get("outputs", [{}])[-1].get("data", {}).get(
        "text/markdown", ""))  # fmt: skip
    source = "".join(notebook["cells"][-1]["source"])
    return [
        what for what, is_there in {
            "outputs of all cells": all(cell["execution_count"] for cell in code),
            "a picture": any("image/png" in output.get("data", {}) for output in outputs),
            "the house style": any("plt.style.use(RC)" in "".join(c["source"]) for c in code),
            "a sentence at its end": SENTENCE.fullmatch(last) is not None,
            "a computed sentence": last not in source,
            "outputs without a machine's paths": not PATH.search(json.dumps(outputs)),
        }.items() if not is_there
    ]  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ends_in_a_sentence_and_has_a_picture(path: Path) -> None:
    assert lacks(json.loads(path.read_text("utf-8"))) == []


def test_what_a_notebook_lacks_would_be_seen() -> None:
    right = json.loads(NOTEBOOKS[0].read_text("utf-8"))

    blank = copy.deepcopy(right)
    for cell in blank["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
    assert lacks(blank) == ["a picture"]

    typed = copy.deepcopy(right)
    sentence = "**Found.** All 12 models are served."
    typed["cells"][-1]["outputs"][-1]["data"]["text/markdown"] = [sentence]
    assert lacks(typed) == []
    typed["cells"][-1]["source"] = [f'Markdown("{sentence}")']
    assert lacks(typed) == ["a computed sentence"]

    cut = copy.deepcopy(right)
    cut["cells"][-1]["outputs"].pop()
    assert lacks(cut)[:1] == ["a sentence at its end"]
