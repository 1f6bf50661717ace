"""A device that cannot read host memory, or is gone: what the others have to tell comes home."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.gpu import probe
from experiments.gpu.cases import Case, Context
from experiments.gpu.child import Outcome
from experiments.gpu.placing import MOST_LOST, Placing
from experiments.gpu.runner import run_section
from experiments.gpu.sections import SECTIONS
from experiments.gpu.store import Store

ROOT = Path(__file__).parents[3]
LOST, PASSED = Outcome(status="failed", lost="hung", reason="late"), Outcome(status="ok")
EITHER, ONLY = (Case(spec={"m": 8}, host=host) for host in ("either", "only"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_most_kernel_rows_are_there_without_host_reads(tmp_path: Path, fault: str) -> None:
    limits = ("--case-limit", "8", "--first-case-limit", "30")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.gpu", "smoke", "kernels", "--dry-run",
         "--host-read", fault, *limits, "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=500, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    smoke = Store(tmp_path / "dry-run/smoke").rows
    lost = [row["test"] for row in smoke if row.get("lost")]
    assert lost == [f"test_smoke.py::test_host_memory[{alpha}]" for alpha in ("1.0", "0.0")]
    kernels = [row for row in Store(tmp_path / "dry-run/kernels").rows if row["status"] == "ok"]
    assert len(kernels) >= 0.8 * len(SECTIONS["kernels"].cases("tiny"))
    ours = [row for row in kernels if row.get("what") in ("hybrid", "automatic")]
    assert {row["w_in"] for row in ours} == {"device"}
    assert not any("predicted_s" in row for row in ours)
    assert "reading weights in host memory was given up" in (tmp_path / "dry-run.md").read_text()


def test_the_switch_is_thrown_by_losses_in_a_row_and_only_if_it_may() -> None:
    for wanted, moves in (("auto", True), ("host", False)):
        placing = Placing(wanted=wanted)  # type: ignore[arg-type]
        thrown = [placing.count(EITHER, each) for each in (LOST, PASSED, *[LOST] * MOST_LOST)]
        assert thrown == [*[False] * (MOST_LOST + 1), moves]
        assert placing.weights == ("device" if moves else "host")
    assert Placing().count(Case(spec={}), LOST) is False
    moved = Placing(wanted="device")
    assert moved.of(ONLY) is None
    there = moved.of(EITHER)
    assert there is not None
    assert there.spec == {"m": 8, "w_in": "device"}
    assert moved.due(EITHER, {there.key}) is None
    assert Placing().of(ONLY) is ONLY


def test_a_dead_device_ends_the_section_and_the_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "section")
    ran = run_section(
        "section",
        "tests.experiments.gpu.misbehaving",
        [Case(spec={"do": do}) for do in ("work", "die", "more work")],
        store,
        Context(backend="reference", scale="tiny"),
        provenance={"run": "r"},
        until=time.monotonic() + 300,
        why_dead=lambda _: "the device is gone",
    )
    assert (ran.ok, ran.failed, ran.left, ran.over) == (1, 1, 1, True)
    assert ran.stopped == "the device is gone"
    assert [row["do"] for row in store.rows] == ["work", "die"]


def test_the_probe_computes_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert probe.why_dead() == ""
    assert "within 0.01 s" in probe.why_dead(0.01)
    monkeypatch.setenv("JAX_PLATFORMS", "nowhere")
    assert "can no longer add numbers" in probe.why_dead()


def test_sections_for_a_bare_machine_need_no_omegaconf() -> None:
    blocked = "import sys; sys.modules |= dict.fromkeys(('omegaconf', 'hydra')); import importlib"
    names = json.dumps([section.module for section in SECTIONS.values()])
    code = f"{blocked}; [importlib.import_module(name) for name in {names}]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
