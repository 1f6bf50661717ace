"""Machine of a live run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from c2c.atomic import write_json
from c2c.errors import DataError

__all__ = ["MACHINE", "MachineRecord", "read_machine", "write_machine"]

MACHINE = "machine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """Machine of a run; `others`: others' share of cores, per ten seconds."""

    cpu: str
    cores: int
    others: tuple[float, ...]


def write_machine(folder: Path, others: Sequence[float]) -> None:
    """Write this machine's record into a run's folder."""
    record = MachineRecord(cpu=_cpu(), cores=len(os.sched_getaffinity(0)), others=tuple(others))
    write_json(folder / MACHINE, asdict(record))


def read_machine(folder: Path) -> MachineRecord:
    """Return the machine's record of a run."""
    try:
        fields = json.loads((folder / MACHINE).read_text("utf-8"))
        return MachineRecord(
            cpu=str(fields["cpu"]), cores=int(fields["cores"]),
            others=tuple(float(share) for share in fields["others"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(str(folder / MACHINE), f"cannot be read ({error})") from None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
