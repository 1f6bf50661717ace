"""Report of a compiled program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.program import Program

_LOCAL = {"LDL", "STL"}  # loads and stores of spilled registers


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReport:
    """Compiler's report of a program; sums and maxima over kernels."""

    kernels: int
    spilled_bytes: int
    wgmma_serialised: bool
    opcodes: Mapping[str, int]  # how often each instruction is in the machine code
    multicasts: int  # TMA loads that are multicast
    shared_bytes: int  # of a CTA
    registers: int  # of a thread, at launch
    registers_wanted: int  # by one thread of each warpgroup of a CTA, by setmaxnreg; 0: not used
    registers_given: int  # the same, at launch; of the kernel that exceeds it most
    host_argument_bytes: int
    temporary_bytes: int  # device memory that XLA takes beside arguments and results
    host_copies: tuple[str, ...]  # instructions of XLA that touch a host argument
    code_hash: str  # of the kernels' machine code


def problems(program: Program, report: CodeReport) -> tuple[str, ...]:
    """Return a compiled program's faults; empty if none."""
    messages = []

    def must(holds: bool, text: str) -> None:
        if not holds:
            messages.append(text)

    must(report.kernels == program.kernels, f"{report.kernels} kernels, not {program.kernels}")
    must(report.spilled_bytes == 0, f"spills {report.spilled_bytes} bytes of registers")
    must(not report.wgmma_serialised, "wgmma is serialised")
    must(not _LOCAL & report.opcodes.keys(), "loads or stores spilled registers")
    must(
        report.registers_wanted <= report.registers_given,
        f"warpgroups ask for {report.registers_wanted} registers of {report.registers_given}: "
        f"setmaxnreg would wait for ever",
    )
    must(
        report.shared_bytes <= program.shared_bytes <= SHARED_BYTES_LIMIT,
        f"{report.shared_bytes} bytes of shared memory, {program.shared_bytes} predicted, "
        f"{SHARED_BYTES_LIMIT} allowed",
    )
    if lacking := sorted(program.opcodes - report.opcodes.keys()):
        messages.append(f"lacks {', '.join(lacking)}")
    if superfluous := sorted(program.absent & report.opcodes.keys()):
        messages.append(f"has {', '.join(superfluous)}")
    must(
        (report.multicasts > 0) == program.multicast,
        f"{report.multicasts} multicast loads, expected {'some' if program.multicast else 'none'}",
    )
    must(
        report.host_argument_bytes == program.host_bytes,
        f"{report.host_argument_bytes} bytes of host arguments, not {program.host_bytes}",
    )
    must(not report.host_copies, f"XLA touches a host argument: {'; '.join(report.host_copies)}")
    return tuple(messages)
