"""The real kernels, compiled for GPUs that are not here: resources, instructions, no copy of W."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.ops import OPS, programs
from tests.compiler import needs_compiler, run

pytestmark = [pytest.mark.slow, needs_compiler]

# A seventh of the programs a day; all in `make soak`.
DAYS = 7
TODAY = dt.datetime.now(dt.UTC).toordinal() % DAYS
COMPILED = ("h200", "h200_16sm")  # an H100 has the code of an H200


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


@pytest.mark.parametrize("target", COMPILED)
def test_programs_compile_as_they_should(target: str) -> None:
    lines = compiled(OPS, target, "--part", f"{TODAY}/{DAYS}")
    for op in OPS:
        wanted = programs(op, TARGETS[target].sm_count)[TODAY::DAYS]
        assert [line["name"] for line in lines if line["op"] == op] == [p.name for p in wanted]


@pytest.mark.soak
@pytest.mark.parametrize("target", COMPILED)
def test_all_programs_compile_as_they_should(target: str) -> None:
    compiled(OPS, target)


def test_an_h100_has_the_code_of_an_h200() -> None:
    assert TARGETS["h100"].sm_count == TARGETS["h200"].sm_count
    part = ("--part", f"{TODAY}/{len(programs('gemm', 132)) // 2}")
    one, same = (compiled(("gemm",), target, *part) for target in ("h100", "h200"))
    codes = [[line["report"]["code_hash"] for line in lines] for lines in (one, same)]
    assert codes[0] == codes[1]
    assert len(set(codes[0])) > 1  # the hash tells code apart
