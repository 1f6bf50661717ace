"""Questions: found by the words people search for, and answered by the page that knows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "questions.md").read_text("utf-8")
# Words of a search -> link that the section has.
SEARCHES = {
    "block size": "simulator/kv_caches.md",
    "ttft": "metrics.md",
    "alpha": "systems/c2cserve.md",
    "cite citation bibtex": "../CITATION.cff",
    "slurm": "howto/clusters.md#a-sweep-on-slurm",
    "scheduler": "recipes.md#a-policy",
    "scheduling policy": "simulator.md#what-is-decided-where",
    "c2cserve_plus difference": "systems/c2cserve_plus.md",
    "hybrid_gemm jax": "../pallas_kernels/README.md",
    "qwen hugging face checkpoint": "engine.md",
    "h100 gh200 price": "howto/plan.md#which-fleet-is-best-for-my-workload",
    "validated accuracy": "evidence/measured.md",
    "pandas run folder": "run_folder.md#in-pandas",
    "perfetto timeline": "run_folder.md#timeline",
}


def sections() -> dict[str, str]:
    """Return the page's sections by their headings."""
    parts = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("words", SEARCHES)
def test_a_search_finds_the_question_and_its_page(words: str) -> None:
    found = [
        text for heading, text in sections().items()
        if set(words.split()) <= set(re.findall(r"\w+", heading.lower()))
    ]  # fmt: skip
    assert len(found) == 1
    assert f"]({SEARCHES[words]})" in re.sub(r"\s+", " ", found[0])


def test_it_is_one_click_from_the_first_pages() -> None:
    assert "](docs/questions.md)" in (ROOT / "README.md").read_text("utf-8")
    assert "](questions.md)" in (ROOT / "docs" / "index.md").read_text("utf-8")


def test_its_script_of_hybrid_gemm_runs(tmp_path: Path) -> None:
    text = next(text for heading, text in sections().items() if "hybrid_gemm" in heading)
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "(300, 512)\n", done.stderr
