"""The top of a summary: counts by case, what went wrong by name, rates, slices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.gpu.correctness import FIRST, in_order
from experiments.gpu.overview import MOST_NAMED, count, lines
from experiments.gpu.report import as_text, coverage


def row(case: str, status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"case": case, "status": status, "run": "r", "what": "x", **more}


TESTS = [
    row("a"),
    row("b", "failed", reason="wrong at\nrow 5", test="test_b"),
    row("c", "failed", lost="hung", reason="no answer", test="test_c"),
    row("d", "failed", lost="crashed", reason="exit status -11", test="test_d"),
    row("e", "skipped", reason="no such unit"),
    row("f"),
    row("f", copy="second row of a case"),
]


def text(rows: dict[str, list[dict[str, Any]]], **stopped: str) -> str:
    covered = coverage(rows, {name: [r["case"] for r in of] + ["g"] for name, of in rows.items()})
    return "\n".join(lines(rows, covered, stopped))


def test_cases_are_counted_and_named_those_first_that_took_their_process_along() -> None:
    assert str(count(TESTS)) == "2 passed, 1 failed, 1 hung, 1 crashed, 1 skipped"
    shown = text({"correctness": TESTS}, correctness="the device needs attention")
    assert "| correctness | 2 | 1 | 1 | 1 | 1 | 1 |" in shown
    named = [line for line in shown.splitlines() if line.startswith("- ")]
    assert named == [
        "- hung: correctness, test_c: no answer",
        "- crashed: correctness, test_d: exit status -11",
        "- failed: correctness, test_b: wrong at row 5",
    ]
    assert "**correctness was given up**: the device needs attention" in shown
    many = [row(str(n), "failed", reason="x") for n in range(MOST_NAMED + 5)]
    assert "and 5 more" in text({"correctness": many})


def test_rates_stand_beside_the_links() -> None:
    link = [
        row("1", what="link", copy="pinned_to_device", gbps=50.0),
        row("2", what="link", copy="pinned_to_device", gbps=40.0),
        row("3", what="device_memory", gbps=4200.0),
        row("4", what="matmul_bf16", tflops=700.0),
    ]
    facts = [
        row("1", fact="tma", place="host", gbps=45.0, values_right=True),
        row("2", fact="tma", place="device", gbps=3000.0, values_right=False),
    ]
    shown = text({"link": link, "facts": facts})
    assert "- copies from pinned memory: 50 GB/s" in shown
    assert "- device memory, reads and writes: 4200 GB/s" in shown
    assert "- bf16 products: 700 TFLOP/s" in shown
    assert "- TMA from host memory, all SMs: 45 GB/s, 90% of copies" in shown
    assert "1 reads by TMA gave wrong values" in shown
    dry = {"link": [r | {"dry_run": True} for r in link]}
    assert "GB/s" not in text(dry)


def test_shares_of_the_limit_by_rows() -> None:
    bounds = [
        row("l", what="bound", of="link_dma", gbps=50.0),
        row("h", what="bound", of="hbm", gbps=4000.0),
        row("m", what="bound", of="matmul", tflops=700.0),
    ]
    size = {"k": 4096, "n": 4096, "sm_limit": 132, "cluster": 1}
    amounts = {"weight_bytes": 50e6, "activation_bytes": 1e6, "flops": 1e9}
    kernels = [
        row(f"{m}{alpha}", what="hybrid", m=m, alpha=alpha, time_s=time_s, **size, **amounts)
        for m, alpha, time_s in ((16, 0.0, 2e-3), (16, 1.0, 1.25e-3), (512, 1.0, 4e-3))
    ]
    shown = text({"kernels": [*bounds, *kernels]})
    assert "| 16 | 1 | 40 | 0.80 | 0.80 | link |" in shown
    assert "| 512 | 1 | 12.5 | 0.25 | 0.25 | link |" in shown


def test_slices_and_numbers_of_sms() -> None:
    rows = [
        row("1", what="sms", sms=132, gbps=50.0),
        row("2", what="sms", sms=1, gbps=0.9),
        row("3", what="groups", groups=7, sms_each=18, gbps=7.0, total_gbps=49.0),
    ]
    shown = text({"mig": rows})
    assert "GB/s by number of SMs that read: 1: 0.9, 132: 50" in shown
    assert "7 groups of 18 SMs together: 49 GB/s" in shown
    mig = [
        row("4", what="slice", slice=0, gbps=8.0, total_gbps=8.0),
        row("5", what="together", slices=7, gbps=7.0, total_gbps=49.5),
    ]
    shown = text({"mig": mig})
    assert "- slice 0 alone: 8 GB/s" in shown
    assert "- 7 slices together: 49.5 GB/s" in shown


def test_what_was_skipped_says_what_is_missing() -> None:
    covered = coverage({"smoke": TESTS}, {})
    shown = as_text("nvidia-h200", [], [], covered, {}, dry_run=False)
    assert "- smoke: no such unit" in shown
    assert "wrong at" not in shown


@pytest.mark.parametrize("tests", [1, 2, 5])
def test_the_ends_of_every_function_come_before_any_other(tests: int) -> None:
    listed = [
        {"test": f"{file}::{name}[{n}]", "function": f"{file}::{name}"}
        for file in ("test_zzz.py", "test_hybrid_gemm.py", "test_host_operand.py")
        for name in ("test_a", "test_b")
        for n in range(tests)
    ]
    first, others = in_order(listed)
    assert len(first) == 6 * min(tests, FIRST)
    assert sorted(map(json.dumps, [*first, *others])) == sorted(map(json.dumps, listed))
    files = [one["test"].partition("::")[0] for one in first]
    assert list(dict.fromkeys(files)) == [
        "test_host_operand.py",
        "test_hybrid_gemm.py",
        "test_zzz.py",
    ]
    if tests == 5:
        assert [one["test"][-2] for one in first[:2]] == ["0", "4"]
