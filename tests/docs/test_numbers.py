"""Numbers and lists in the documentation that the code knows, compared with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import NamedTuple

import pytest

from c2c.config import load
from c2c.engine.front.app import make_app
from c2c.policies import DECISIONS
from c2c.serving.tables.plans import MAX_WORKS
from experiments import advise
from experiments.answers.model_error import held_out_error
from experiments.claims.load import PAPERS, load_claims
from experiments.lab.referee.scenario import SCENARIOS
from experiments.serving.settings import ServeConf

ROOT = Path(__file__).parents[2]
# Words that facts are written in.
WORDS = {"two": 2, "five": 5, "eight": 8, "nine": 9, "ten": 10, "twelve": 12}


class Fact(NamedTuple):
    """A number on a page: a pattern whose group is the number, in digits or as a word."""

    page: str
    pattern: str
    value: Callable[[], int]


def claims_of(paper: str) -> int:
    return Counter(name.partition(".")[0] for name in load_claims())[paper]


def at_once() -> int:
    return signature(make_app).parameters["at_once"].default


def engines_on(hbm_bytes: float) -> int:
    engines = load(["system=c2cserve_plus"]).system.engines
    return int(min(engines.residents, engines.share * hbm_bytes // engines.bytes))


def percent(chip: str) -> int:
    return round(100 * held_out_error(chip)[0])


FACTS = (
    Fact("README.md", r"\[(\w+) notebooks\]", lambda: len([*(ROOT / "notebooks").glob("*.ipynb")])),
    Fact("README.md", r"## The (\w+) papers", lambda: len(PAPERS)),
    Fact("Makefile", r"others on (\d+) scenarios", lambda: len(SCENARIOS)),
    Fact("docs/commands.md", r"BLIS on (\d+) scenarios", lambda: len(SCENARIOS)),
    Fact("docs/evidence/referee.md", r"runs (\d+) scenarios", lambda: len(SCENARIOS)),
    Fact("docs/systems/medusa.md", r"All (\d+) claims", lambda: claims_of("medusa")),
    Fact("docs/simulator.md", r"up to (\d+) works", lambda: MAX_WORKS),
    Fact("docs/howto/plan.md", r"\((\d+) % on an H100", lambda: percent("h100_sxm")),
    Fact("docs/howto/plan.md", r"(\d+) on an\s+H200", lambda: percent("h200_pcie5")),
    Fact("docs/howto/plan.md", r"(\d+) on a chip nobody measured", lambda: percent("rubin")),
    Fact("docs/howto/plan.md", r"the (\w+) cheapest\s+fleets", lambda: advise.MOST_TOLD),
    # One loss in company, then alone until there are more than `retries`.
    Fact("docs/engine.md", r"(\w+) losses by default", lambda: ServeConf().retries + 2),
    Fact("docs/engine/api.md", r"`choices=(\d+)` at most", lambda: ServeConf().choices),
    Fact("docs/engine/api.md", r"(\d+) are open at the same time", at_once),
    Fact("docs/systems/c2cserve_plus.md", r"\((\d+) on 12 GB", lambda: engines_on(12e9)),
    Fact("docs/systems/c2cserve_plus.md", r"(\d+) on 24 GB", lambda: engines_on(24e9)),
    Fact("docs/systems/c2cserve_plus.md", r"(\d+) at most\)", lambda: engines_on(1e12)),
)  # fmt: skip


def stated(text: str, pattern: str) -> set[int]:
    """Return all numbers that a pattern finds."""
    found = re.findall(pattern, text)
    assert found, f"nothing on the page is like {pattern!r}: mend the pattern with the page"
    return {WORDS.get(one.lower()) or int(one) for one in found}


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{Path(fact.page).stem}-{fact.pattern}")
def test_a_number_on_a_page_is_the_code_s(fact: Fact) -> None:
    assert stated((ROOT / fact.page).read_text("utf-8"), fact.pattern) == {fact.value()}


def test_a_stale_number_would_be_seen() -> None:
    assert stated("All 98 claims, nine of them", r"All (\d+) claims") == {98}
    assert stated("Of nine claims", r"(\w+) claims") == {9}
    with pytest.raises(AssertionError, match="mend the pattern"):
        stated("All claims", r"All (\d+) claims")


def test_the_page_of_systems_lists_all_decisions() -> None:
    text = (ROOT / "docs" / "systems" / "index.md").read_text("utf-8")
    (listed,) = re.findall(r"policy for each decision \(([^)]*)\)", text)
    assert re.split(r",\s+", listed) == list(DECISIONS)


def test_the_page_of_mechanisms_lists_all_of_them() -> None:
    text = (ROOT / "docs" / "systems" / "composed.md").read_text("utf-8")
    table = text[text.index("| mechanism | adds") : text.index("## What is built")]
    files = (ROOT / "conf" / "system" / "mechanism").glob("*.yaml")
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {path.stem for path in files}


def test_the_map_of_the_code_lists_all_packages() -> None:
    text = (ROOT / "docs" / "structures.md").read_text("utf-8")
    listed = set(re.findall(r"^\| `c2c\.(\w+)` ", text, re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "c2c").glob("*/__init__.py")}
    files = {path.stem for path in (ROOT / "c2c").glob("*.py")}
    assert packages <= listed <= packages | files
