"""The page of `c2c explore`: its answers, refusals, dropped traces, and a browser that drags."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from c2c.config import build, choices, load, simulate
from c2c.errors import SettingError
from experiments.explore import timeline
from experiments.explore.app import make_app
from experiments.explore.controls import controls
from experiments.figures.style import BLUE, GREEN, ORANGE, system_colours
from tests.engine.test_page import BROWSER, watched

MOST = 300
HERE = "http://127.0.0.1:8124"
CHOICES = {"hardware": "gh200", "mig": "4x24gb", "catalog": "dense6", "workload": "poisson"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(make_app(MOST), base_url=HERE) as found:
        yield found


def ask(client: TestClient, *systems: str, **other: Any) -> dict[str, Any]:
    numbers = {"workload.requests": 60, "workload.rate_rps": 3.5, "seed": 2}
    asked = {"systems": systems, "choices": CHOICES, "numbers": numbers} | other
    answer = client.post("/answer", json=asked)
    assert answer.status_code == (422 if "error" in answer.json() else 200)
    found: dict[str, Any] = answer.json()
    return found


def columns(answer: dict[str, Any]) -> list[ET.Element]:
    return ET.fromstring(f"<div>{answer['html']}</div>").findall(".//section")


def errors(answer: dict[str, Any]) -> list[str]:
    page = ET.fromstring(f"<div>{answer['html']}</div>")
    return ["".join(e.itertext()) for e in page.findall(".//p[@class='error']")]


def simulated(command: str) -> list[dict[str, Any]]:
    """Return the summaries of a command line of the page, a system each."""
    words = shlex.split(command)
    assert words[:2] == ["c2c", "simulate"]
    (systems,) = (word for word in words if word.startswith("system="))
    rest = [word for word in words[2:] if not word.startswith("-") and word != systems]
    folder = next((w.partition("=")[2] for w in words if w.startswith("--config-dir=")), None)
    return [
        dict(simulate(build(load([*rest, f"system={name}"], folder=folder)), compiled=True).summary)
        for name in systems.partition("=")[2].split(",")
    ]


def test_the_command_line_has_the_numbers_of_the_page(client: TestClient) -> None:
    answer = ask(client, "c2cserve_plus", "serverlessllm", more="slo.ttft_s=0.3 link=datasheet")
    summaries = simulated(answer["command"])
    assert len(columns(answer)) == len(summaries) == 2
    for column, summary in zip(columns(answer), summaries, strict=True):
        shown = [["".join(cell.itertext()).strip() for cell in row] for row in column.iter("tr")]
        blocks = {"all": summary, **summary["models"]}
        assert len(shown) == 1 + len(blocks)
        for name, requests, failed, ttft_p50, *_, both in shown[1:]:
            assert requests == f"{blocks[name]['requests']:,}"
            assert failed == f"{blocks[name]['failed']:,}"
            assert ttft_p50 == f"{blocks[name]['ttft_s']['p50']:.3g}"
            assert both == f"{100 * blocks[name]['attainment']['both']:.1f}"
        assert f"Link: {100 * summary['run']['utilisation']['link_mean']:.0f} %" in "".join(
            column.itertext()
        )


@pytest.mark.parametrize(
    ("more", "overrides"),
    [("sytem=3", ["sytem=3"]), ("link=fast", ["link=fast"]), ("slo.ttft_s=-1", ["slo.ttft_s=-1"])],
)
def test_errors_are_those_of_the_command_line(
    client: TestClient, more: str, overrides: list[str]
) -> None:
    with pytest.raises(SettingError) as error:
        build(load(["workload=poisson", *overrides]))
    assert errors(ask(client, "c2cserve", more=more)) == [str(error.value)]


def test_a_system_that_cannot_run_leaves_the_other(client: TestClient) -> None:
    answer = ask(client, "dedicated", "c2cserve")
    assert len(errors(answer)) == 1
    assert "at most as many models as slices" in errors(answer)[0]
    assert [len(column.findall(".//table")) for column in columns(answer)] == [0, 1]


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"systems": []}, "systems=[]: expected one system or two."),
        ({"more": "workload.requests=9"}, "workload.requests='9': expected a value by its control"),
        ({"more": "-m"}, "settings='-m': expected name=value"),
        ({"more": "x='"}, 'settings="x=\'": expected paired quotes.'),
        ({"numbers": {"seed": "x"}}, "Expected `int | float`, got `str`"),
        ({"sistems": []}, "unknown field `sistems`"),
    ],
)
def test_what_no_system_can_have_is_refused(
    client: TestClient, asked: dict[str, Any], line: str
) -> None:
    assert line in ask(client, "c2cserve", **asked)["error"]


def test_requests_are_bounded_before_any_work(client: TestClient) -> None:
    many = ask(client, "c2cserve", numbers={"workload.requests": MOST + 1})
    assert errors(many) == [
        f"workload.requests={MOST + 1}: expected from 1 to {MOST}. For more: c2c explore "
        f"most={MOST + 1}."
    ]
    copies = ask(client, "c2cserve", more=f"workload.replicas={MOST}")
    assert f"workload.requests={60 * MOST}: " in errors(copies)[0]


def test_a_dropped_trace_is_served_and_its_names_are_text(client: TestClient) -> None:
    rows = [f"{at},<i>chat</i>,50,8" for at in range(2 * MOST)]
    trace = "\n".join(["arrival_s,model,prompt_tokens,output_tokens", *rows])
    found = client.post("/trace", content=trace, headers={"x-name": "../my%20own.csv"}).json()
    own = {"choices": CHOICES | {"workload": "file"}, "path": found["path"]}
    answer = ask(client, "c2cserve", numbers={"workload.max_requests": 40}, **own)
    assert "<i>chat" not in answer["html"]
    assert "40<" in answer["html"]
    (path,) = (w for w in shlex.split(answer["command"]) if w.startswith("workload.path="))
    assert path == "workload.path='my own.csv'"
    for count in (0, 2 * MOST):
        (line,) = errors(ask(client, "c2cserve", numbers={"workload.max_requests": count}, **own))
        assert line.startswith(f"workload.max_requests={count}: expected from 1 to {MOST}.")
    bad = client.post("/trace", content=b"\0", headers={"x-name": "x.csv"}).json()
    (line,) = errors(ask(
        client, "c2cserve", numbers={"workload.max_requests": 9}, **own | {"path": bad["path"]}
    ))  # fmt: skip
    assert "x.csv: " in line


def test_other_pages_cannot_use_it(client: TestClient) -> None:
    assert client.get("/", headers={"host": "example.com"}).status_code == 400
    plain = client.post("/answer", content="{}", headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    assert client.post("/trace", content="x").status_code == 415
    page = client.get("/").text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "default-src 'none'" in page


def test_own_settings_are_choices_and_go_with_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "catalog").mkdir()
    text = "name: mine\nmodels: [{spec: llama-3-8b}]\n"
    (tmp_path / "catalog" / "mine.yaml").write_text(text)
    code = f"""
from c2c.config import register
from pathlib import Path
from experiments.explore.answers import Answers, Asked
from experiments.explore.controls import controls
register((), Path({str(tmp_path)!r}))
assert "mine" in controls(9)["choices"]["catalog"]
choices = {{"catalog": "mine", "workload": "poisson"}}
asked = Asked(["c2cserve"], choices, {{"workload.requests": 5}})
print(Answers(9).answer(asked)["command"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert simulated(done.stdout)[0]["requests"] == 5


def test_controls_are_settings_and_start_where_something_is_served(client: TestClient) -> None:
    spec = controls(MOST)
    for group, names in spec["choices"].items():
        assert set(names) <= set(choices(group))
    start = dict(spec["start"])
    systems = start.pop("systems")
    for workload in set(spec["sliders"]) - {"file"}:
        numbers = {
            one["setting"]: one["value"] for one in spec["sliders"][workload] if one["value"]
        }
        answer = ask(client, *systems, choices=start | {"workload": workload}, numbers=numbers)
        assert errors(answer) == []


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 400)), min_size=1),
    st.floats(0.5, 50),
)
def test_bins_keep_amounts(phases: list[tuple[float, float, float]], end_s: float) -> None:
    gap, length, rate = np.array(phases).T
    start = np.cumsum(gap) + np.cumsum(length) - length
    edges = np.linspace(0, end_s, 20)
    amounts = timeline._amounts(edges, start, start + length, rate)
    inside = np.clip(np.minimum(start + length, end_s) - start, 0, None)
    assert amounts.sum() == pytest.approx((inside * rate).sum(), abs=1e-6)
    assert (amounts >= -1e-9).all()


def test_systems_have_the_colours_of_the_figures() -> None:
    assert system_colours(["c2cserve_plus", "serverlessllm_fast"]) == {
        "c2cserve_plus": (BLUE, ""), "serverlessllm_fast": (ORANGE, ""),
    }  # fmt: skip
    pair = system_colours(["c2cserve", "c2cserve_letter"])
    assert pair == {"c2cserve": (GREEN, ""), "c2cserve_letter": (GREEN, "6 3")}
    assert len({colour for colour, _ in system_colours(["c2cserve_plus", "prism"]).values()}) == 2


@pytest.mark.soak
def test_dragging_in_a_browser() -> None:
    if not BROWSER.exists():
        pytest.skip("there is no browser: make browser")
    look = """(() => {
      const text = id => document.getElementById(id).textContent;
      if (!document.getElementById("state")) return null;
      const send = (input, value, kind) => {
        input.value = value;
        input.dispatchEvent(new Event(kind));
      };
      const more = document.getElementById("more");
      const slider = document.querySelector("input[name='workload.rate_rps']");
      if (text("state").startsWith("answered") && window.last !== text("command")) {
        window.last = text("command");
        (window.commands ??= []).push(text("command"));
        const answers = window.commands.length;
        if (answers < 20) send(slider, 100 + 10 * answers, "input");
        else if (answers === 20) send(more, "sytem=3", "change");
        else if (answers === 21) { window.wrong = text("answer"); send(more, "", "change"); }
        else if (answers === 22) {
          const rows = [1, 2, 3].map(at => `${at},chat,20,5`);
          const lines = ["arrival_s,model,prompt_tokens,output_tokens", ...rows];
          take(new File([lines.join("\\n")], "my.csv"));
        } else window.dropped = text("answer");
      }
      return {commands: window.commands, wrong: window.wrong, dropped: window.dropped,
        lines: document.querySelectorAll("svg path").length,
        sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth};
    })()"""
    page = subprocess.Popen(
        [sys.executable, "-m", "c2c", "explore", "port=0"], stdout=subprocess.PIPE, text=True
    )
    with page:
        try:
            assert page.stdout is not None
            address = page.stdout.readline().split()[0]
            with watched(address, look) as watch:
                drawn = watch.until(lambda seen: seen["lines"] > 20, 120.0)
                assert drawn["sideways"] == 0
                last = watch.until(lambda seen: "dropped" in seen, 60.0)
                assert watch.last["console"] == []
        finally:
            page.terminate()
        assert page.wait(30.0) == 130
    rates = [float(re.findall(r"rate_rps=(\S+)", one)[0]) for one in last["commands"][:20]]
    assert rates[0] == 2.0
    assert rates[1:] == sorted(set(rates[1:]))  # each position of the slider has an answer
    assert "sytem='3': expected a key that exists" in last["wrong"]
    assert "workload.path=my.csv" in last["commands"][-1]
    assert "chat" in last["dropped"]
