"""Faults put into the kernels, one at a time, are found by the tests that run on a CPU.

Minutes, so a part of `make soak`: to be run when a kernel's tests are made cheaper. That each fault
can still be put where it was is checked always.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pallas_kernels.late_faults import LATE_FAULTS

PACKAGE = "pallas_kernels"
FILES = (
    *("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/compilations.py"),
    "tests/tiers.py",
)

ATTENTION = "tests/pallas_kernels/attention/test_interpret.py"
REFERENCE = "tests/pallas_kernels/attention/test_reference.py"
MERGE = "tests/pallas_kernels/attention/test_merge.py"
GEMM = "tests/pallas_kernels/gemm/test_contract.py"
WOVEN = "tests/pallas_kernels/woven/test_kernels.py"
BITS, BOUND = "equal_to_float64", "within_the_bound"

# What is wrong, in which file, text before and after, tests that must notice.
FAULTS = {
    "gemm: a wrong arrival count": (
        "gemm/cta.py",
        'ring("x", 1, readers',
        'ring("x", 2, readers',
        GEMM,
        f"{BITS} and three",
    ),
    "gemm: a missing wait": (
        "gemm/compute.py",
        "plgpu.barrier_wait(x_ring.arrived(x_slot, cta.turn))",
        "id(x_slot)",
        GEMM,
        "no_race and hybrid",
    ),
    "gemm: a swapped tile": (
        "gemm/rows.py",
        "at.is_sym, div(item, blocks)",
        "at.is_sym, rem(item, blocks)",
        GEMM,
        f"{BITS} and hybrid",
    ),
    "gemm: a barrier of another warpgroup's turn": (
        "gemm/cta.py",
        "turn * self.size + slot]",
        "slot]",
        GEMM,
        f"{BITS} and turn",
    ),
    "gemm: a warpgroup without rows frees nothing": (
        "gemm/compute.py",
        "cta.w_ring.free(slot)",
        "id(slot)",
        GEMM,
        f"{BITS} and turn",
    ),
    "gemm: a wrong block of offsets": (
        "gemm/load.py",
        "block * rows, rows), pl.ds(top",
        "0 * rows, rows), pl.ds(top",
        GEMM,
        f"{BITS} and quantized",
    ),
    "gemm: scales of the first block only": (
        "gemm/load.py",
        "block = cta.rings.scale_rows, lax.div(k_step, cta.rings.scale_steps)",
        "block = cta.rings.scale_rows, lax.div(k_step, 1 << 20)",
        GEMM,
        f"{BITS} and quantized",
    ),
    "attention: a wrong length": (
        "attention/online.py",
        "visible = key < bounds.length",
        "visible = key <= bounds.length",
        ATTENTION,
        BOUND,
    ),
    "attention: a wrong causal bound": (
        "attention/online.py",
        "visible &= key <= position",
        "visible &= key < position",
        ATTENTION,
        f"{BOUND} and prefill",
    ),
    "attention: a wrong window": (
        "attention/online.py",
        "visible &= key > position - bounds.window",
        "visible &= key >= position - bounds.window",
        ATTENTION,
        f"{BOUND} and window",
    ),
    "attention: blocks begin one too late": (
        "attention/online.py",
        "start = div(bottom, block)",
        "start = ceil_div(bottom, block)",
        ATTENTION,
        f"{BOUND} and window",
    ),
    "attention: a missing rescale of the values": (
        "attention/online.py",
        "acc = acc * lax.broadcast_in_dim(factor, acc.shape, [0])",
        "acc = acc + 0 * lax.broadcast_in_dim(factor, acc.shape, [0])",
        ATTENTION,
        f"{BOUND} and prefill",
    ),
    "attention: a missing rescale of the sums of weights": (
        "attention/online.py",
        "(acc, maximum, total * factor + weights",
        "(acc, maximum, total + weights",
        ATTENTION,
        f"{BOUND} and decode",
    ),
    "attention: a swapped page": (
        "attention/sm90_decode.py",
        "enumerate(pages)",
        "enumerate(pages[::-1])",
        ATTENTION,
        f"{BOUND} and decode",
    ),
    "attention: keys of another head": (
        "attention/sm90_prefill.py",
        "cta.config.block_kv, lax.div(cta.head, jnp.int32(cta.spec.group))",
        "cta.config.block_kv, rem(cta.head, cta.spec.kv_heads)",
        ATTENTION,
        f"{BOUND} and prefill",
    ),
    "attention: a wrong arrival count": (
        "attention/sm90_prefill.py",
        "plgpu.Barrier(num_arrivals=compute, num_barriers=config.stages)",
        "plgpu.Barrier(num_arrivals=compute + 1, num_barriers=config.stages)",
        ATTENTION,
        f"{BOUND} and prefill",
    ),
    "attention: a missing wait": (
        "attention/sm90_decode.py",
        "plgpu.barrier_wait(cta.at.v_full.at[slot])",
        "id(slot)",
        ATTENTION,
        f"{BOUND} and decode",  # the race detector does not see it
    ),
    "attention: the reference masks a block twice": (
        "attention/reference.py",
        "(key >= number * block)",
        "(key > number * block)",
        REFERENCE,
        "prefill_within_the_bound",
    ),
    "attention: the reference takes the pages of another block": (
        "attention/reference.py",
        "tables, begin, many, axis=1)",
        "tables, 0, many, axis=1)",
        REFERENCE,
        "pages",
    ),
    "attention: parts are merged without their weight": (
        "attention/partial.py",
        "jnp.where(weight[..., None] > 0, weight[..., None] * out, 0.0)",
        "jnp.where(weight[..., None] > 0, out, 0.0)",
        MERGE,
        "split_anywhere",
    ),
    "woven: the newest key is stored nowhere": (
        "woven/sm90.py",
        "@pl.when((blocks > 0) & (first + blocks == end))",
        "@pl.when(blocks < 0)",
        WOVEN,
        "a_task and interpret",
    ),
    "woven: the newest key is another head's": (
        "woven/sm90.py",
        "payload=(lane * spec.batch + row) * spec.kv_heads + head",
        "payload=(lane * spec.batch + row) * spec.kv_heads",
        WOVEN,
        "a_task and interpret",
    ),
    "woven: the newest key is stored by every split": (
        "woven/sm90.py",
        "@pl.when((blocks > 0) & (first + blocks == end))",
        "@pl.when(blocks > 0)",
        WOVEN,
        "no_race",
    ),
    "woven: a lane that stays": (
        "woven/sm90.py",
        "jnp.where(took, rem(lane + 1, lanes), lane)",
        "lane",
        WOVEN,
        "wrap and interpret",
    ),
    "woven: the pages of another layer": (
        "woven/sm90.py",
        "return self.tables[self.row, number] + self.behind",
        "return self.tables[self.row, number]",
        WOVEN,
        "wrap and interpret",
    ),
    "woven: numbers compare by size": (
        "woven/sm90.py",
        "took = (new > 0) & (new <= lanes)",
        "took = handed[0] > answered",
        WOVEN,
        "goes_wrong and interpret",
    ),
    "woven: a version that nobody compares": (
        "woven/sm90.py",
        "asked[2 * lane + 1] != version[0]",
        "asked[2 * lane + 1] != asked[2 * lane + 1]",
        WOVEN,
        "goes_wrong and interpret",
    ),
    "woven: a row is sent before it has come": (
        "woven/sm90.py",
        "plgpu.barrier_wait(full.at[rem(step, stages)])",
        "id(full)",
        WOVEN,
        "a_task and interpret",
    ),
    **LATE_FAULTS,
}


@pytest.fixture
def copied(repository: Path, tmp_path: Path) -> Path:
    """A copy of the package and its tests, to be changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in (PACKAGE, f"tests/{PACKAGE}"):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=ignored)
    for file in FILES:
        if (repository / file).exists():
            shutil.copy(repository / file, tmp_path / file)
    limits = tmp_path / "tests/pallas_kernels/interpreting.py"
    text = limits.read_text("utf-8")
    assert "SECONDS = 90.0" in text
    limits.write_text(text.replace("SECONDS = 90.0", "SECONDS = 40.0"), "utf-8")
    return tmp_path


def run(folder: Path, tests: str, chosen: str) -> subprocess.CompletedProcess[str]:
    """Run some tests of the copy until one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, tests, "-k", chosen],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_can_be_put(name: str, repository: Path) -> None:
    file, before, after, *_ = FAULTS[name]
    text = (repository / PACKAGE / file).read_text("utf-8")
    assert before in text, f"{file} has changed: the fault must be put elsewhere"
    assert before != after


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, copied: Path) -> None:
    file, before, after, tests, chosen = FAULTS[name]
    source = copied / PACKAGE / file
    text = source.read_text("utf-8")
    source.write_text(text.replace(before, after), "utf-8")
    done = run(copied, tests, chosen)
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "FAILED" in done.stdout or "no result after" in done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    ("tests", "chosen"), sorted({(fault[3], fault[4]) for fault in FAULTS.values()})
)
def test_the_same_tests_pass_without(tests: str, chosen: str, copied: Path) -> None:
    done = run(copied, tests, chosen)
    assert done.returncode == 0, done.stdout[-2000:]
