"""Pages of the documentation: length, place in the site, and headings that links name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES = 250
LONGER = {"recipes.md"}  # examples that tests run
QUESTION = re.compile(r"(?:What|Which|How|Whether|Where|Who)\b")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def named(page: Path) -> str:
    return page.relative_to(ROOT / "docs").as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    result = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[^\w\s-]", "", words).strip().lower()
        result.add(re.sub(r"[-\s]+", "-", plain))
    return result


def test_no_page_is_long() -> None:
    lines = {named(path): len(path.read_text("utf-8").splitlines()) for path in PAGES}
    long = {name for name, n in lines.items() if n > MOST_LINES}
    assert long <= LONGER


def test_every_page_is_in_the_site_s_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", contents, re.MULTILINE)
    assert sorted(listed) == sorted(map(named, PAGES))


def test_links_to_headings_lead_somewhere() -> None:
    dead, seen = [], 0
    for page in [*ROOT.glob("*.md"), *PAGES, ROOT / "pallas_kernels" / "README.md"]:
        links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text("utf-8"))
        for target, anchor in links:
            other = page.parent / target if target else page
            seen += 1
            if other.suffix == ".md" and anchor not in anchors(other):
                dead.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert seen > 10
    assert not dead


def sentences(text: str) -> list[str]:
    """Return the sentences of a page outside of headings, tables and code."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    result = []
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
        if not part.startswith("    ") and not part.lstrip().startswith(("|", "#")):
            plain = re.sub(r"^\s*(?:[-*]|\d+\.) |\*", "", part)
            result += re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(plain.split()))
    return result


def openings(text: str) -> list[str]:
    """Return sentences that a question word opens and that ask nothing."""
    return [one for one in sentences(text) if QUESTION.match(one) and not one.endswith("?")]


def test_sentences_begin_with_their_subject() -> None:
    assert [(named(page), one) for page in PAGES for one in openings(page.read_text("utf-8"))] == []
    assert openings("Why? Which one?\n\n- So.\n- **What** is left stays.") == [
        "What is left stays."
    ]
