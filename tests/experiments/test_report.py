"""Report of a reproduction: verdicts, pictures, tables and filters of its two pages."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from matplotlib.figure import Figure
from PIL import Image

from c2c.runs import RunDir
from experiments.claims import Result, Row, claim, fidelity_rows, load_claims
from experiments.figures.style import COLOURS, canvas, finish, look
from experiments.report import Entry, report_pages
from experiments.report.pictures import picture_of, without_texts

ROOT = Path(__file__).parents[2]
BROWSER = ROOT / ".venv-browser" / "bin" / "python"
NEEDS_BROWSER = pytest.mark.skipif(not BROWSER.exists(), reason="no browser: make browser")
PROVENANCE = {"git": {"commit": "0" * 40}, "command": "x" * 300}
FINDING, CAPTION = "A finding <of> 3 words " * 8, "A caption. " * 30
# figure -> its paper, and its answers as (claim, ours over the printed number)
FIGURES: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "medusa.one": ("medusa", (("medusa.fig7a.vs_vllm", 1.0),)),
    "medusa.two": (
        "medusa",
        (("medusa.sec23.capture_share_avg", 1.0), ("medusa.fig7b.coldstart", 3.0)),
    ),
    "tessera.one": ("tessera", (("tessera.fig8b.vs_af", 30.0),)),
    "medusa.three": ("medusa", (("medusa.abstract.loading_reduction", 1.0),)),  # a repeat
    "own": ("", ()),
}


def figure() -> Figure:
    with look(FINDING):
        drawn, (axes,) = canvas(8, 4)
        for place, colour in enumerate(COLOURS):
            axes.plot([0, 1], [place, place + 1], color=colour)
        return finish(drawn, "title", CAPTION)


def answers(pairs: Sequence[tuple[str, float]]) -> list[Result]:
    return [
        Result(
            claim_id=name, ours=claim(name).value * ratio, unit=claim(name).unit,
            sample="out-of-sample", note="a_long_name_that_does_not_break " * 8,
        )
        for name, ratio in pairs
    ]  # fmt: skip


def rows_of(*pairs: tuple[str, float]) -> list[Row]:
    return fidelity_rows(load_claims(), answers(pairs), frozenset())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    entries = []
    for name, (paper, pairs) in FIGURES.items():
        with RunDir.open(folder / name, {"figure": name}, seed=0) as run:
            run.write_figure(name, figure())
        entries.append(
            Entry(
                name=name, title=f"Fig. of {name}", caption=CAPTION, finding=FINDING, paper=paper,
                claims=[name for name, _ in pairs], assumptions=("TTFT < 1 s.", "One seed."),
                experiment={"rates_rps": [1.0, 2.0]},
                report=[["system", "TTFT"], ["a <b>", "0.1"], ["c", "0.2"]] if pairs else (),
            )
        )  # fmt: skip
    rows = rows_of(*(pair for _, pairs in FIGURES.values() for pair in pairs))
    pages = report_pages(folder, entries, rows, PROVENANCE, profile="quick")
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_a_sentence_a_paper_opens_the_page(out: Path) -> None:
    opening = text_of((out / "index.html").read_text().partition("<figure>")[0])
    assert "MEDUSA : 2 of 3 printed numbers within 20 %." in opening
    assert "Tessera : 0 of 1 printed numbers within 20 %." in opening
    assert "CoCoServe :" not in opening  # no figure predicts a number of it


def test_thumbnails_lead_to_the_figures_and_have_their_verdicts(out: Path) -> None:
    page = (out / "index.html").read_text()
    cards = dict(re.findall(r'<a class="card" href="#([^"]*)">(.*?)</a>', page, re.DOTALL))
    verdicts = {name: text_of(card).rpartition(name)[2].strip() for name, card in cards.items()}
    assert verdicts == {
        "medusa.one": "agrees 1/1", "medusa.two": "mixed 1/2", "tessera.one": "misses 0/1",
        "medusa.three": "no prediction", "own": "ours",
    }  # fmt: skip
    assert set(re.findall(r'<article id="([^"]*)"', page)) == set(FIGURES)
    groups = re.findall(r'<h2 id="(\w+)">', page)
    assert groups == ["medusa", "tessera", "beyond"]


def test_a_section_has_finding_claims_table_and_files(out: Path) -> None:
    page = (out / "index.html").read_text()
    section = page[
        page.index('<article id="medusa.two"') : page.index('<article id="medusa.three"')
    ]
    assert "A finding &lt;of&gt; 3 words" in section
    assert "a &lt;b&gt;" in section
    text = text_of(section)
    assert "paper 42 %" not in text  # of another figure
    assert re.search(r"ratio 1\.00 ✓ agrees .* ratio 3\.00 ✗ misses", text)
    assert "Assumptions TTFT &lt; 1 s. One seed. Settings rates_rps 1 to 2" in text
    for path in re.findall(r'href="(medusa\.two/[^"]*)"', section):
        assert (out / path).is_file()
    own = page[page.index('<article id="own"') :]
    assert "Numbers" not in own
    assert "strip" not in own


def test_the_page_of_claims_has_each_claim_once_and_a_reason_for_each_miss(out: Path) -> None:
    page = (out / "claims.html").read_text()
    rows = re.findall(r'<tr data-paper="(\w+)" data-status="([\w-]+)" data-verdict="(\w*)">', page)
    assert len(rows) == len(load_claims())
    assert rows.count(("tessera", "out-of-sample", "misses")) == 1
    missed = page.partition("tessera.fig8b.vs_af<")[2].partition("</tr>")[0]
    assert "<p>" in missed
    assert 'href="index.html#tessera.one"' in page


def test_nothing_is_fetched(out: Path) -> None:
    for name in ("index.html", "claims.html"):
        page = (out / name).read_text()
        sources = re.findall(r'\b(?:src|href)="(?!#|data:)([^"]*)"', page)
        assert sources
        assert not [s for s in sources if ":" in s]
        assert "@import" not in page


def test_a_report_without_figures(tmp_path: Path) -> None:
    pages = report_pages(tmp_path, [], rows_of(), PROVENANCE, profile="quick")
    assert "No figure here predicts" in pages["index.html"]
    assert "compares our rules" in pages["claims.html"]


def test_a_picture_keeps_its_colours_and_loses_its_title_and_caption(out: Path) -> None:
    stored = (out / "own" / "own.svg").read_text()
    uri, (_, top, _, height), whole = without_texts(stored.encode())
    bare = unquote(uri.partition(",")[2])
    assert "caption" in stored
    assert "finding" in stored
    assert "caption" not in bare
    assert "finding" not in bare
    assert {c.lower() for c in COLOURS} <= set(re.findall(r"#[0-9a-f]{6}", bare))
    assert 0 < top < top + height < whole
    # both edges of the page's picture are outside the axes
    ys = [
        float(y)
        for path in ET.fromstring(bare).iter("{http://www.w3.org/2000/svg}path")
        if path.get("clip-path")
        for y in re.findall(r"[ML] \S+ (\S+)", path.attrib["d"])
    ]
    assert top < min(ys) < max(ys) < top + height


def test_a_thumbnail_has_the_shape_of_the_picture(out: Path) -> None:
    import base64

    picture = picture_of(out / "own", "own")
    small = Image.open(io.BytesIO(base64.b64decode(picture.thumbnail.partition(",")[2])))
    assert small.width / small.height == pytest.approx(picture.width / picture.height, rel=0.02)


def seen(*command: str | Path) -> str:
    done = subprocess.run(
        [BROWSER, *command], capture_output=True, text=True, timeout=300, stdin=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.soak
@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("name", "images"), [("index.html", 1 + 2 * len(FIGURES)), ("claims.html", 0)]
)
def test_pages_fit_a_telephone_and_a_screen(out: Path, name: str, images: int) -> None:
    found = json.loads(seen(ROOT / ".ci" / "look_at.py", out / name, "390", "768", "1440"))
    assert found["console"] == []
    for at in found["widths"]:
        where = at["width"]
        assert at["sideways"] == 0, where
        assert at["wide"] == [], where
        assert at["broken_words"] == [], where
        assert at["nowhere"] == [], where
        assert (at["images"], at["broken"]) == (images, 0), where


@pytest.mark.soak
@NEEDS_BROWSER
def test_filters_of_the_claims(out: Path) -> None:
    """The address sets the filters, typing narrows them."""
    ask = """(() => {
      const typed = document.forms.filter.elements.text;
      const told = document.querySelector("output");
      if (!told.textContent) return null;  // the page's own script has not run yet
      window.before ||= told.textContent;
      typed.value = "VLLM phase";
      typed.dispatchEvent(new Event("input", {bubbles: true}));
      return [window.before, told.textContent,
        [...document.querySelectorAll(".claims tbody tr")].filter((r) => r.offsetHeight)
          .map((r) => r.textContent)];
    })()"""
    address = (out / "claims.html").as_uri() + "?paper=medusa&status=out-of-sample"
    with subprocess.Popen(
        [BROWSER, ROOT / ".ci" / "watch_page.py", address, ask],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as watching:  # fmt: skip
        assert watching.stdout
        lines = (json.loads(line) for line in watching.stdout)
        found = next(line["seen"] for line in lines if line["seen"])
        watching.communicate("")
    assert found[:2] == ["3 of 577", "1 of 577"]
    assert "medusa.fig7a.vs_vllm" in found[2][0]
