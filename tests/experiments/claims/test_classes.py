import hashlib
import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from c2c.errors import DataError, SettingError
from experiments.claims import Result, claim, classes, fidelity_rows, load_claims, totals

FROZEN = ("cocoserve", "weaver")
# of the classes as they were on 2026-11-26, before the first figure of either system
DIGEST = "806ecd5f3670b061"


def as_frozen() -> dict[str, Any]:
    """Return the classes with the changes since taken back, the last one first."""
    out: dict[str, Any] = {
        name: [found.name, sorted(found.of), found.knob]
        for name, found in classes.classes().items()
        if name.split(".")[0] in FROZEN
    }
    for change in reversed(classes.reclassified()):
        out[change.claim] = [change.was, out[change.claim][1], ""]  # none of them was a knob
    return out


def digest(frozen: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(frozen, sort_keys=True).encode()).hexdigest()[:16]


def test_classes_are_the_frozen_ones_but_for_dated_changes() -> None:
    assert digest(as_frozen()) == DIGEST


def test_every_claim_of_the_two_systems_has_one_class() -> None:
    counted = {
        system: Counter(c.name for n, c in classes.classes().items() if n.startswith(f"{system}."))
        for system in FROZEN
    }
    assert counted["cocoserve"] == {
        "input": 16, "unprinted": 6, "identity": 12, "rule": 16, "repeat_of": 21,
        "follows_from": 11, "calibrates": 6, "not_comparable": 1, "predicted": 36,
    }  # fmt: skip
    assert counted["weaver"] == {
        "input": 20, "identity": 6, "rule": 9, "repeat_of": 3, "follows_from": 3,
        "calibrates": 2, "not_comparable": 1, "predicted": 36,
    }  # fmt: skip


def test_what_repeats_others_ends_at_claims_that_count_or_calibrate() -> None:
    found = classes.classes()
    for name, entry in found.items():
        if entry.name in ("repeat_of", "follows_from"):
            assert entry.of, name
            ends = {found[other].name for other in entry.of if other in found}
            assert ends <= {"predicted", "calibrates"}, name


def test_a_class_decides_whatever_a_figure_says() -> None:
    def result(name: str) -> Result:
        item = claim(name)
        return Result(claim_id=name, ours=item.value, unit=item.unit, sample="out-of-sample")

    expected = {
        "cocoserve.fig6a.rep30": "out-of-sample",
        "cocoserve.fig6a.rep30_ratio": "repeat",
        "cocoserve.fig6b.baseline_latency": "in-sample",
        "cocoserve.table1.qkvo": "identity",
        "weaver.fig7b.ttft_gap": "not-applicable",
    }
    rows = fidelity_rows(load_claims(), [result(name) for name in expected], frozenset())
    assert {r.claim.id: r.status for r in rows if r.result} == expected
    found = totals(rows)
    assert found["out_of_sample"]["numbers"] == 1
    assert found["repeats"]["numbers"] == 1
    without = {r.claim.id: r.status for r in rows if not r.result}
    assert without["cocoserve.eq4.gamma_value"] == "not-applicable"
    assert without["weaver.mem.weaver.qps"] == "not-yet"


@pytest.mark.parametrize("system", FROZEN)
def test_readings_are_of_claims_that_count(system: str) -> None:
    predicted = [n for n, entry in classes.classes().items() if entry.name == "predicted"]
    asked = {reading.name for name in predicted for reading in classes.readings_of(name)}
    assert set(classes.readings(system)) <= asked


def test_readings_of_a_claim() -> None:
    assert "load" in {r.name for r in classes.readings_of("cocoserve.fig11b.coco_full")}
    assert classes.readings_of("cocoserve.table1.qkvo") == ()
    assert classes.readings_of("c2cserve.fig4b.tradeoff") is None
    assert "engine" in {r.name for r in classes.readings_of("c2cserve.fig13.sllm_70b.after")}
    assert classes.readings_of("medusa.fig7a.vs_vllm") is None
    with pytest.raises(SettingError, match="one of cocoserve, weaver"):
        classes.readings("vllm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["weaver"]["rule"].pop(), "no class of weaver"),
        (lambda f: f["weaver"]["rule"].append("default.cold_rate"), "once"),
        (lambda f: f["weaver"]["rule"].append("fig99"), "weaver.fig99: expected a claim"),
        (lambda f: f["weaver"].update(guessed=["fig1.models"]), "expected a class"),
        (lambda f: f["weaver"]["follows_from"].update({"mem.batch_doubling": ["x"]}), "no claim"),
        (lambda f: f["weaver"]["calibrates"].update({"fig7a.cpu_control": ["x"]}), "a knob"),
        (
            lambda f: f["reclassified"].append(
                {"claim": "weaver.fig1.models", "was": "rule", "date": date(2026, 12, 1), "why": ""}
            ),
            "expected a claim, was, date, why",
        ),
    ],
)
def test_a_wrong_file_is_told_by_name(
    change: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = yaml.safe_load(classes.CLASSES_PATH.read_bytes())
    change(entries)
    path = tmp_path / "classes.yaml"
    path.write_text(yaml.safe_dump(entries))
    monkeypatch.setattr(classes, "CLASSES_PATH", path)
    for cached in (classes.classes, classes.reclassified):
        cached.cache_clear()
    try:
        with pytest.raises(DataError, match=message):
            (classes.classes(), classes.reclassified())
    finally:
        monkeypatch.undo()
        for cached in (classes.classes, classes.reclassified):
            cached.cache_clear()
