"""The real kernels, compiled for GPUs that are not here: resources, instructions, no copy of W.

Of an op that has changed since `python -m pallas_kernels check --record`, every program that is
not lowered as recorded. Of the others every 32nd program for one target, other ones each day and
the other target after 32 days: what compiles them may change too.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.ahead_of_time.record import TARGETS as RECORDED
from pallas_kernels.ahead_of_time.record import unchecked
from pallas_kernels.ops import OPS, programs
from tests.compiler import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]

CHANGED = unchecked()
DAYS = 32
ROUND, TODAY = divmod(dt.datetime.now(dt.UTC).toordinal(), DAYS)


def compiled(ops: tuple[str, ...], target: str, *more: str) -> list[Any]:
    """Compile programs, of which none may have a problem."""
    named = [word for op in ops for word in ("--op", op)]
    command = ("pallas_kernels.ahead_of_time", "--json", "--target", target, *named, *more)
    lines = run(*command, limit_s=1500.0)
    assert {line["name"]: line["problems"] for line in lines if line["problems"]} == {}
    for line in lines:
        if (report := line["report"]) is not None:
            moves = line["name"].startswith(("send ", "receive ")) and line["op"] == "woven"
            multiplies = line["op"] != "gather_rows" and not moves
            assert (report["opcodes"].get("HGMMA", 0) > 0) == multiplies, line["name"]
            assert (report["registers_wanted"] > 0) == multiplies, line["name"]
    return lines


@pytest.mark.parametrize("target", RECORDED)
@pytest.mark.parametrize("op", CHANGED)
def test_what_of_a_changed_op_is_lowered_otherwise_compiles_as_it_should(
    op: str, target: str
) -> None:
    lines = compiled((op,), target, "--changed")
    assert [line["name"] for line in lines] == [
        program.name for program in programs(op, TARGETS[target].sm_count)
    ]


def test_a_part_of_all_others_compiles_as_it_should() -> None:
    """An H100 and an H200 have as many SMs and one architecture: one program stands for all."""
    others = tuple(op for op in OPS if op not in CHANGED)
    if not others:
        pytest.skip("every op has changed: all are lowered")
    target = RECORDED[ROUND % 2]
    lines = compiled(others, target, "--part", f"{TODAY}/{DAYS}")
    for op in others:
        wanted = programs(op, TARGETS[target].sm_count)[TODAY::DAYS]
        assert [line["name"] for line in lines if line["op"] == op] == [p.name for p in wanted]
    assert TARGETS["h100"].sm_count == TARGETS["h200"].sm_count
    (one,) = compiled(("gemm",), "h100", "--part", f"{TODAY}/{len(programs('gemm', 132))}")
    (same,) = compiled(("gemm",), "h200", "--part", f"{TODAY}/{len(programs('gemm', 132))}")
    assert one["name"] == same["name"]
    assert one["report"]["code_hash"] == same["report"]["code_hash"]
    codes = {line["report"]["code_hash"] for line in lines}
    assert len(codes | {one["report"]["code_hash"]}) > 1  # the hash tells code apart


FOUND = (  # of each program that is compiled, by name as what it is judged
    {"spills": "spills"},
    {"registers": "ask for 552 registers of 504"},
    {
        "good": "",
        "multicast": "0 multicast loads, expected some",
        "opcodes": "has UTMAREDG",
        "shared": "bytes of shared memory",
    },
    {"sliced": "XLA touches a host argument"},
    {"scanned": "XLA touches a host argument"},
)


def faults_are_found(*numbers: int) -> None:
    for number in numbers:
        found = run("tests.pallas_kernels.ahead_of_time.controls", str(number), limit_s=300.0)
        wrong = {name: " ".join(problems) for name, problems in found}
        assert wrong.keys() == FOUND[number].keys()
        for name, expected in FOUND[number].items():
            assert expected in wrong[name], name
            assert bool(expected) == bool(wrong[name]), name


def test_faults_are_found() -> None:
    """One recorded program a day: the rules that judge programs have not changed."""
    faults_are_found(*(range(len(FOUND)) if CHANGED else [TODAY % len(FOUND)]))


@pytest.mark.soak
def test_all_faults_are_found() -> None:
    faults_are_found(*range(len(FOUND)))


@pytest.mark.soak
def test_split_k_over_a_cluster_compiles() -> None:
    """The form in pallas_kernels/README.md can be written, and spills nothing."""
    found = run("tests.pallas_kernels.ahead_of_time.split_k", limit_s=300.0)
    assert [(one["name"], one["opcodes"]["STAS"], one["registers"]) for one in found] == [
        ("64 x 128 on 2", 32, 90),
        ("64 x 256 on 4", 64, 154),
    ]
    for one in found:
        assert one["opcodes"]["HGMMA"] > 0
        assert not one["wgmma_serialised"]
        assert one["spilled_bytes"] == 0
