"""Rules of machine code find faults that are put into real code, and nothing in the code itself."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from pallas_kernels.ahead_of_time.compiler import parts_of
from pallas_kernels.ahead_of_time.descriptors import Descriptor
from pallas_kernels.ahead_of_time.ptx import Facts, follow, kernels
from pallas_kernels.ahead_of_time.rules import RULES, findings
from tests.pallas_kernels.ahead_of_time.texts import KEPT, kept
from tests.tiers import tiered


@pytest.mark.parametrize("name", KEPT)
def test_right_code_breaks_no_rule(name: str) -> None:
    assert findings(*kept(name)) == ()


ANY = r"[^;]*;"
FAULTS = [  # rule, program, what of its PTX is replaced, by what, how many of it (0: all)
    ("R1", "product", r"\.tensor\.4d\.shared", ".tensor.3d.shared", 1),
    ("R1", "cluster", r"(add\.s64\s+%rd\d+, %rd\d+), 128;", r"\1, 64;", 1),
    ("R2", "product", rf"fence\.proxy\.async{ANY}", "", 1),
    ("R2", "attention", rf"fence\.proxy\.async{ANY}", "", 0),
    ("R2", "cluster", rf"(fence\.proxy\.async{ANY})\s*bar\.sync{ANY}", r"\1", 1),
    ("R3", "product", rf"cp\.async\.bulk\.wait_group\.read{ANY}", "", 1),
    (
        "R3", "cluster", r"cp\.async\.bulk\.wait_group\.read\s+1;",
        "cp.async.bulk.wait_group.read 2;", 1,
    ),
    ("R2", "product", r"(fence\.proxy\.async)", r"@%p1 \1", 1),
    ("R2", "product", r"bar\.sync (%r\d+, 128;)", r"@%p1 bar.sync \1", 0),
    ("R3", "product", r"(cp\.async\.bulk\.wait_group\.read)", r"@%p1 \1", 1),
    ("R7", "product", r"(cp\.async\.bulk\.wait_group\s)", r"@%p1 \1", 1),
    ("R3", "rows", rf"cp\.async\.bulk\.wait_group\.read{ANY}", "", 0),
    (
        "R3",
        "cluster",
        rf"(cp\.async\.bulk\.wait_group\.read\s+1;)\s*bar\.sync{ANY}\s*bar\.sync{ANY}",
        r"\1",
        1,
    ),
    ("R3", "attention", r"cp\.async\.bulk\.wait_group\s+0;", "", 0),
    ("R3", "send", r"cp\.async\.bulk\.commit_group;", "", 0),
    ("R4", "product", rf"wgmma\.fence{ANY}", "", 1),
    ("R4", "attention", rf"wgmma\.fence{ANY}", "", 0),
    ("R4", "product", r"(wgmma\.wait_group\.sync\.aligned) 0;", r"\1 1;", 0),
    ("R4", "cluster", rf"wgmma\.commit_group{ANY}", "", 0),
    ("R5", "rows", rf"mbarrier\.arrive\.expect_tx{ANY}", "", 1),
    ("R5", "send", rf"mbarrier\.arrive\.expect_tx{ANY}", "", 1),
    ("R5", "cluster", r"(mbarrier\.arrive\.expect_tx\S+ \S+ \S+) %r\d+;", r"\1 16;", 1),
    ("R5", "attention", r"(mbarrier\.arrive\.expect_tx\S+ \S+ \[\S+)\]", r"\1+8]", 1),
    ("R6", "product", rf"fence\.mbarrier_init{ANY}", "", 1),
    ("R6", "cluster", rf"barrier\.cluster\.wait{ANY}", "", 1),
    ("R9", "cluster", rf"mbarrier\.try_wait{ANY}", "", 0),
    ("R6", "rows", r"bar\.sync\s+0;", "", 0),
    ("R7", "product", r"(cp\.async\.bulk\.wait_group)\s+0;", r"\1.read 0;", 1),
    ("R7", "product", r"(cp\.async\.bulk\.wait_group)\s+0;", r"\1 1;", 1),
    ("R10", "product", r"mbarrier\.try_wait[^;]*;", "", 0),
    ("R10", "attention", r"mbarrier\.try_wait[^;]*;", "", 0),
    ("R8", "cluster", r"reqnctapercluster 8", "reqnctapercluster 16", 1),
    ("R8", "product", r"(setmaxnreg\.inc\S+) 232", r"\1 236", 1),
    ("R8", "attention", r"\bst\.shared\.(\S+\s+)\[\S+\]", r"st.local.\1[%rd1]", 1),
    ("R8", "rows", r"maxntid 128", "maxntid 1152", 1),
]  # fmt: skip


# Rules that follow paths take seconds on the longer programs.
QUICK = [
    fault
    for fault in FAULTS
    if fault[0] in ("R1", "R8", "R9") or fault[1] in ("rows", "send")
    or (fault[1] == "attention" and fault[0] != "R4")
]  # fmt: skip


@pytest.mark.parametrize(("rule", "name", "old", "new", "count"), tiered(FAULTS, *QUICK, slow=14))
def test_a_fault_is_found(rule: str, name: str, old: str, new: str, count: int) -> None:
    ptx, table, _ = kept(name)
    faulty, changed = re.subn(old, new, ptx, count=count)
    assert changed
    (kernel,) = kernels(faulty)
    assert list(RULES[rule](kernel, table))


def test_every_rule_has_a_fault() -> None:
    assert {rule for rule, *_ in FAULTS} == RULES.keys()


def test_old_lines_in_l1_are_found() -> None:
    ptx, table, code = kept("product")
    (found,) = findings(ptx, table, code.replace("CCTL.IVALL", "", 1))
    assert found == "R11: L1 is invalidated 1 times, of 2 waits"


GOOD = Descriptor(
    bits=16, sizes=(512, 64, 8, 64), strides=(32768, 64, 4096, 1), box=(8, 1, 8, 64), swizzle=128
)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"box": (257, 1, 8, 64)}, "box"),
        ({"box": (8, 1, 8, 0)}, "box"),
        ({"box": (8, 1, 8, 60)}, "innermost box of 120 bytes"),
        ({"box": (8, 1, 8, 128)}, "wider than its swizzle of 128"),
        ({"swizzle": 48}, "swizzle 48"),
        ({"strides": (32768, 60, 4096, 1)}, "strides"),
        ({"strides": (2**39, 64, 4096, 1)}, "strides"),
        ({"strides": (32768, 64, 4096, 2)}, "innermost stride 2"),
        ({"sizes": (0, 64, 8, 64)}, "sizes"),
        ({"sizes": (2**32 + 1, 64, 8, 64)}, "sizes"),
        ({"box": (8, 8, 64)}, "ranks differ"),
    ],
)
def test_a_descriptor_that_the_driver_refuses_is_found(change: dict[str, Any], said: str) -> None:
    assert list(GOOD.faults()) == []
    assert said in " ".join(dataclasses.replace(GOOD, **change).faults())
    ptx, (first, *rest), _ = kept("product")
    (kernel,) = kernels(ptx)
    assert list(RULES["R1"](kernel, (dataclasses.replace(first, **change), *rest)))


LOOP = """.visible .entry body()
{{
ld.global.b32 %r1, [%rd1];
AGAIN:
setp.eq.b32 %p1, %r1, 0;
{early}
@{negation}%p1 bra OTHER;
st.shared.b32 [x], %r1;
{between}
OTHER:
@%p1 bra LAST;
bra AGAIN;
LAST:
st.global.b32 [y], %r1;
{late}
ret;
}}
"""


@pytest.mark.parametrize(
    ("parts", "comes"),
    [
        ({}, False),  # y only where the first branch was taken; computed again it is the same
        ({"negation": "!"}, True),
        ({"between": "setp.eq.b32 %p1, %r2, 1;"}, True),
        ({"between": "add.s32 %r1, %r1, 1;"}, True),
        ({"early": "add.s32 %r1, %r1, 1;"}, True),
        ({"early": "add.s32 %r2, %r1, 1;"}, False),
        ({"late": "add.s32 %r1, %r1, 1;"}, False),
    ],
)
def test_a_path_takes_branches_on_one_value_alike(parts: dict[str, str], comes: bool) -> None:
    blank = dict.fromkeys(("early", "negation", "between", "late"), "")
    (kernel,) = kernels(LOOP.format(**(blank | parts)))

    def step(facts: Facts, event: str) -> tuple[Facts, str]:
        return facts | {event}, "both" if event == "y" and "x" in facts else ""

    stores = {i: one for i, one in enumerate(kernel.body) if one.opcode.startswith("st")}
    events = {i: one.operands[0][1] for i, one in stores.items()}
    assert [what for _, what in follow(kernel, events, step)] == ["both"] * comes


@pytest.mark.parametrize(
    ("text", "said"), [("add %r1, 1\n", "no semicolon"), ("?;\n", "no instruction")]
)
def test_what_is_no_ptx_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"line 3: {said}"):
        kernels(f".visible .entry body()\n{{\n{text}}}\n")


@pytest.mark.parametrize("tables", [[], [(GOOD,)]])
def test_kernels_that_are_not_those_lowered_are_refused(
    tables: list[tuple[Descriptor, ...]],
) -> None:
    ptx, _, _ = kept("rows")
    with pytest.raises(RuntimeError, match="were printed"):
        parts_of(f"// Generated by LLVM NVPTX Back-End\n{ptx}ptxas info\n", tables)
