"""The sections that check and choose: sanitizer and slices. None needs a GPU to be tried."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.gpu import Context
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels import contention, mig, sanitizer
from experiments.gpu.kernels.sanitized import KERNELS, product

TINY = Context(backend="reference", scale="tiny")

HAZARD = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel+0x10 and Read access at kernel+0x20
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
UNINITIALISED = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes at kernel+0x30
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_checked_products_are_right(kernel: str) -> None:
    out, right = product(kernel, TINY)
    error = np.linalg.norm(out - right) / np.linalg.norm(right)
    assert 0 < error < 2.0**-6


def tool_that_says(folder: Path, said: str, code: int = 0) -> Path:
    tool = folder / sanitizer.TOOL
    (folder / "said").write_text(said)
    tool.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\ncat {folder}/said\nexit {code}\n')
    tool.chmod(0o755)
    return tool


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (HAZARD, 0, "1 errors, 1 warnings, exit status 0: .*Race reported"),
        (UNINITIALISED, 0, "1 errors, 0 warnings.*Uninitialized"),
        ("========= ERROR SUMMARY: 0 errors\n", 1, "0 errors.*exit status 1"),
        ("cannot attach\n", 1, "no summary .exit status 1.: cannot attach"),
    ],
)
def test_what_the_sanitizer_finds_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, told: str
) -> None:
    tool_that_says(tmp_path, said, code)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(RuntimeError, match=told):
        sanitizer.measure({"check": "racecheck", "kernel": "hybrid"}, TINY)


def test_a_clean_kernel_and_what_is_asked_of_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_that_says(
        tmp_path, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for case in sanitizer.cases("full"):
        assert sanitizer.measure(case.spec, TINY) == [{"errors": 0, "warnings": 0}]
        asked = (tmp_path / "asked").read_text()
        assert f"--tool {case.spec['check']}" in asked
        assert f"sanitized {case.spec['kernel']}" in asked
    assert {case.spec["kernel"] for case in sanitizer.cases("full")} == set(KERNELS)


def test_without_the_tool_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(Unmeasurable, match="neither on the PATH"):
        sanitizer.measure({"check": "racecheck", "kernel": "hybrid"}, TINY)
    (tmp_path / "bin").mkdir()
    tool_that_says(tmp_path / "bin", "")
    assert sanitizer.find() == str(tmp_path / "bin" / sanitizer.TOOL)


LISTED = "\n".join(
    [
        "GPU 0: NVIDIA H200 (UUID: GPU-1a)",
        *(f"  MIG 1g.18gb     Device  {n}: (UUID: MIG-{n}b)" for n in range(7)),
        "GPU 1: NVIDIA H200 (UUID: GPU-2a)",
        "  MIG 1g.18gb     Device  0: (UUID: MIG-other)",
    ]
)


def test_slices_are_asked_alone_and_together_where_mig_is_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def processes(
        count: int, sms: int, context: Context, environments: Sequence[Mapping[str, str]]
    ) -> list[dict[str, Any]]:
        asked.append([env["CUDA_VISIBLE_DEVICES"] for env in environments])
        assert (count, sms) == (len(environments), mig.ALL)
        return [{"gbps": 1.0}]

    monkeypatch.setattr(mig, "output_of", lambda _: LISTED)
    monkeypatch.setattr(contention, "processes", processes)
    for case in mig.cases("full"):
        mig.measure(case.spec, TINY)
    names = [f"MIG-{n}b" for n in range(7)]
    assert asked[:2] == [names, names[:1]]
    assert [[name] for name in names] == [of for of in asked if len(of) == 1]
    assert {len(of) for of in asked} == set(range(1, 8))
    monkeypatch.setattr(mig, "output_of", lambda _: None)
    with pytest.raises(Unmeasurable, match="0 slices"):
        mig.measure({"what": "slice", "slice": 0}, TINY)


def test_elsewhere_every_number_of_sms_is_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig, "output_of", lambda _: "GPU 0: NVIDIA H200 (UUID: GPU-1a)")
    numbers = [c.spec["sms"] for c in mig.cases("full") if c.spec["what"] == "sms"]
    assert sorted(numbers) == list(range(1, mig.SMS + 1))
    assert numbers[: len(mig.FIRST)] == list(mig.FIRST)
    assert all(g * each <= mig.SMS for g, each in mig.GROUPS)


def test_slices_of_a_dry_run_are_measured() -> None:
    for case in mig.cases("tiny"):
        assert all(row["gbps"] > 0 for row in mig.measure(case.spec, TINY) if "gbps" in row)
