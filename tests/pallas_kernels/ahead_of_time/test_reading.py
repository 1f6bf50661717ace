"""Reading what the compiler wrote, without the compiler."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pallas_kernels.ahead_of_time import TARGETS, CodeReport, host_copies, problems
from pallas_kernels.ahead_of_time import __main__ as command
from pallas_kernels.ahead_of_time.compiler import report_of
from pallas_kernels.ops import OPS, programs
from pallas_kernels.program import Argument, Program
from tests.tiers import tiered

HLO = """
HloModule jit_f
%slice_computation (param_0: bf16[3,64]) -> bf16[1,64] {
  %param_0 = bf16[3,64]{1,0:S(5)} parameter(0)
  ROOT %cut = bf16[1,64]{1,0} slice(%param_0), slice={[0:1], [0:64]}
}
ENTRY %main (w: bf16[3,64], x: bf16[8,3]) -> bf16[8,64] {
  %w.1 = bf16[3,64]{1,0:S(5)} parameter(0), metadata={op_name="w"}
  %x.1 = bf16[8,3]{1,0} parameter(1)
  %pair = (bf16[3,64]{1,0:S(5)}, bf16[8,3]{1,0}) tuple(%w.1, %x.1)
  %w.2 = bf16[3,64]{1,0:S(5)} get-tuple-element(%pair), index=0
  %double = bf16[8,3]{1,0} add(%x.1, %x.1)
  ROOT %out = bf16[8,64]{1,0} custom-call(%double, %w.2), custom_call_target="mosaic_gpu_v2"
}
"""

REPORT = CodeReport(
    kernels=1, spilled_bytes=0, wgmma_serialised=False, opcodes={"HGMMA": 4, "UTMALDG": 2},
    multicasts=0, shared_bytes=1000, registers=168, registers_wanted=504, registers_given=504,
    host_argument_bytes=256, temporary_bytes=0, host_copies=(), code_hash="0",
)  # fmt: skip
PROGRAM = Program(
    op="gemm",
    name="one",
    function=lambda x, w: x,
    arguments=(
        Argument(shape=(8, 4), dtype="bfloat16"),
        Argument(shape=(4, 32), dtype="bfloat16", host=True),
    ),
    shared_bytes=1024,
    opcodes=frozenset({"HGMMA"}),
    absent=frozenset({"UTMAREDG"}),
)


def test_only_what_touches_host_memory_is_named() -> None:
    assert list(host_copies(HLO)) == ["slice %cut"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("%c = bf16[3,64]{1,0} copy(%w.1)", "copy %c"),
        ("%c = (bf16[64]{0}, bf16[3,64]{1,0:S(5)}, u32[]) copy-start(%w.1)", "copy-start %c"),
        ("%c = bf16[3,64]{1,0} fusion(%x.1, %w.1), kind=kLoop", "fusion %c"),
        ('%c = f32[8]{0} custom-call(%w.1), custom_call_target="__cublas$gemm"', "custom-call %c"),
    ],
)
def test_each_way_of_touching_it_is_named(line: str, named: str) -> None:
    hlo = HLO.replace("  %double", f"  {line}\n  %double")
    assert set(host_copies(hlo)) == {"slice %cut", named}


def test_a_good_report_has_no_problems() -> None:
    assert problems(PROGRAM, REPORT) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernels": 2}, "2 kernels, not 1"),
        ({"spilled_bytes": 8}, "spills 8 bytes"),
        ({"wgmma_serialised": True}, "serialised"),
        ({"opcodes": {"HGMMA": 1, "STL": 1}}, "spilled registers"),
        ({"opcodes": {"UTMALDG": 1}}, "lacks HGMMA"),
        ({"opcodes": {"HGMMA": 1, "UTMAREDG": 1}}, "has UTMAREDG"),
        ({"registers_wanted": 552}, "ask for 552 registers of 504"),
        ({"shared_bytes": 1025}, "1025 bytes of shared memory, 1024 predicted"),
        ({"multicasts": 3}, "3 multicast loads, expected none"),
        ({"host_argument_bytes": 0}, "0 bytes of host arguments, not 256"),
        ({"host_copies": ("copy %c",)}, "copy %c"),
    ],
)
def test_every_fault_is_said(change: dict[str, object], said: str) -> None:
    (problem,) = problems(PROGRAM, dataclasses.replace(REPORT, **change))
    assert said in problem


@pytest.mark.parametrize("op", tiered(OPS, OPS[-1]))
def test_every_op_lists_programs_whose_arguments_fit(op: str) -> None:
    for sm_count in {target.sm_count for target in TARGETS.values()}:
        found = programs(op, sm_count)
        assert found
        for program in found:
            assert program.op == op
            assert program.shared_bytes > 0


def test_arguments_count_bits() -> None:
    assert Argument(shape=(3, 4), dtype="int4").nbytes == 6
    assert Argument(shape=(3, 4), dtype="bfloat16").nbytes == 24
    assert PROGRAM.host_bytes == 256


def test_unknown_op_is_refused() -> None:
    with pytest.raises(ValueError, match="op='hybrid_gemm': expected one of gemm"):
        programs("hybrid_gemm", 132)


@pytest.mark.parametrize("part", ["2/2", "x", "1", "-1/2"])
def test_wrong_part_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main([f"--part={part}"])
    assert stopped.value.code == 2
    assert "expected i/n" in capsys.readouterr().err


def test_without_the_compiler_it_says_what_is_missing() -> None:
    script = (
        "import sys; sys.modules['jax_cuda13_plugin'] = None\n"
        "from pallas_kernels.ahead_of_time.__main__ import main; sys.exit(main(['--json']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "jax-cuda13-plugin" in done.stderr


RESOURCES = "Resources(smem_scratch_bytes={}, tmem_scratch_cols=0)\n"
KERNEL = """//
// Generated by LLVM NVPTX Back-End
//
.maxntid {threads}, 1, 1
setmaxnreg.inc.sync.aligned.u32 {high};
setmaxnreg.dec.sync.aligned.u32 40;
cp.async.bulk.tensor.2d.shared::cluster.global.multicast::cluster [%r1];
ptxas info    : 0 bytes gmem
ptxas info    : Function properties for body
    0 bytes stack frame, {spill} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {used} registers, used 16 barriers, 1 bytes smem
        /*0000*/                   HGMMA.64x128x16 R24 ;
        /*0010*/              @!P0 UTMALDG.2D [UR8] ;
"""
SMALL = KERNEL.format(threads=256, high=232, used=232, spill=0)
LARGE = KERNEL.format(threads=384, high=248, used=168, spill=4)
MEMORY = SimpleNamespace(
    host_argument_size_in_bytes=1,
    temp_size_in_bytes=2,
)


@pytest.mark.parametrize(
    "printed",
    [
        RESOURCES.format(100) + RESOURCES.format(200) + SMALL + LARGE,
        RESOURCES.format(100) + SMALL + RESOURCES.format(200) + LARGE,
    ],
)
def test_of_two_kernels_the_worse_counts(printed: str) -> None:
    report = report_of(printed, HLO, MEMORY)
    assert (report.kernels, report.shared_bytes, report.registers) == (2, 200, 232)
    assert (report.registers_wanted, report.registers_given) == (2 * 248 + 40, 3 * 168)
    assert report.spilled_bytes == 4
    assert report.opcodes == {"HGMMA": 2, "UTMALDG": 2}
    assert report.multicasts == 2
    assert (report.host_argument_bytes, report.temporary_bytes) == (1, 2)
    assert report.host_copies == ("slice %cut",)


def test_the_hash_is_of_the_machine_code_only() -> None:
    first, slower, other = (
        report_of(RESOURCES.format(100) + text, HLO, MEMORY).code_hash
        for text in (
            SMALL,
            SMALL.replace("0 bytes gmem", "9 bytes gmem"),
            SMALL.replace("R24", "R8"),
        )
    )
    assert first == slower != other


@pytest.mark.parametrize("printed", ["", RESOURCES.format(100), SMALL])
def test_a_report_with_parts_missing_is_refused(printed: str) -> None:
    with pytest.raises(RuntimeError, match=r"prepare\(\) must come first"):
        report_of(printed, HLO, MEMORY)
