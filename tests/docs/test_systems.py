"""Pages of docs/systems: five headings, and settings that runs have, with the stated defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from c2c.config import load
from c2c.errors import SettingError
from c2c.policies import DECISIONS
from experiments.claims import PAPERS, answer, compare, load_claims
from experiments.claims.fidelity import printed

PAGES = Path(__file__).parents[2] / "docs" / "systems"
MOST_WORDS = 1200
HEADINGS = ["The idea", "What is built", "Settings", "How near to the paper", "Where it loses"]
# Of all systems.
OTHERS = {"index"}
SYSTEMS = sorted(path.stem for path in PAGES.glob("*.md") if path.stem not in OTHERS)
ROW = re.compile(r"^\| `(system[^`]*)` \|([^|]*)\|", re.MULTILINE)
ABSENT = object()


def rows(text: str) -> list[tuple[str, str]]:
    """Return the settings of a page with their defaults, "" where it states none."""
    part = text[text.index("## Settings") : text.index("## How near")]
    return [(found[1], found[2].strip()) for found in ROW.finditer(part)]


def stale(text: str) -> list[str]:
    """Return the settings of a page that no run has, or that have another default."""
    result = []
    listed = rows(text)
    names = [name for name, _ in listed]
    system = [name for name in names if name.startswith("system=")][:1]
    base = load(system).system
    for name, default in listed:
        group = re.fullmatch(r"system/(\w+)=(\w+)", name)
        if group:
            right = group[1] in DECISIONS and group[2] in DECISIONS[group[1]].policies
        elif "=" in name:
            right = loads(*(system if not name.startswith("system=") else []), name)
        else:
            has = OmegaConf.select(base, name[7:], default=ABSENT)
            right = OmegaConf.is_config(has) or same(has, default)
        if not right:
            result.append(name)
    return result


def loads(*overrides: str) -> bool:
    try:
        load(overrides)
    except SettingError:
        return False
    return True


def same(value: object, stated: str) -> bool:
    """Return whether a page states the value; in it 64.0e9 is a number, unlike in YAML 1.1."""
    given = yaml.safe_load(stated)
    if isinstance(value, float) and isinstance(given, str):
        given = float(given)
    return value is not ABSENT and value == given


@pytest.mark.parametrize("page", SYSTEMS)
def test_a_page_answers_the_same_questions_in_order(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS


@pytest.mark.parametrize("page", SYSTEMS)
def test_a_page_is_short(page: str) -> None:
    assert len((PAGES / f"{page}.md").read_text("utf-8").split()) <= MOST_WORDS


def opening(page: str) -> list[tuple[str, ...]]:
    """Return the rows of a page's first table, before its first heading."""
    text = (PAGES / f"{page}.md").read_text("utf-8").partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_s_page_opens_with_its_abstract(paper: str) -> None:
    """The verdict is the claims' own for the number that the page has."""
    rows = opening(paper)
    claims = {c.says.rstrip("."): c for c in load_claims().values() if c.system == paper}
    assert len(rows) >= 2
    for says, as_printed, ours, verdict in rows:
        item = claims[says]
        assert item.where.startswith("Abstract")
        assert as_printed == printed(item)
        numbers = [float(one.replace(",", "")) for one in re.findall(r"-?[\d.,]+", ours)]
        value = numbers if len(numbers) > 1 else numbers[0] if numbers else {"hetero_pair": False}
        agrees = compare(item, answer(item.id, value)).agrees
        assert verdict.partition(",")[0] == ("agrees" if agrees else "contradicts")


@pytest.mark.parametrize("page", SYSTEMS)
def test_a_page_s_settings_are_those_of_the_code(page: str) -> None:
    text = (PAGES / f"{page}.md").read_text("utf-8")
    assert rows(text)
    assert stale(text) == []


def test_a_stale_setting_would_be_seen() -> None:
    page = (PAGES / "c2cserve_plus.md").read_text("utf-8")
    for right, wrong, name in (
        ("| 0.12 |", "| 0.13 |", "system.turn.rest"),
        ("system.turn.rest", "system.turn.pause", "system.turn.pause"),
        ("system/keep=while_room", "system/keep=always", "system/keep=always"),
    ):
        assert stale(page.replace(right, wrong)) == [name]
    assert not loads("system=unknown")


def test_every_system_is_on_the_page_of_systems(repository: Path) -> None:
    index = (PAGES / "index.md").read_text("utf-8")
    files = {path.stem for path in (repository / "conf" / "system").glob("*.yaml")}
    assert {name for name in files if f"`{name}`" not in index} == set()
    named = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", index, re.MULTILINE)))
    )
    assert named <= files
