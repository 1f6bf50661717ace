"""Section `mig`: link rate of one slice of a GPU alone, and of several together.

With MIG on, a process of its own reads on every slice, alone and with others. Otherwise slices are
numbers of SMs of one launch, from 1 to all of them, and groups of SMs: these share the L2 and the
memory controllers, which MIG divides. The GPU's partitioning is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from experiments.children import environment
from experiments.gpu import Case, Context, Row, Scale
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.device import output_of
from experiments.gpu.kernels import bounds, contention

SMS = 132
SEVENTH = 18  # SMs, of 132; a slice "1g" of an H200 has 16
FIRST = (132, 16, 18, 1, 66, 8, 32, 4, 2, 100, 24, 48)
GROUPS = ((7, SEVENTH), (1, SEVENTH), (7, 16), (4, 32), (2, 66))
ALL = 1 << 20  # more SMs than any slice has


def slices() -> tuple[str, ...]:
    """Return the names of the first GPU's slices; none if MIG is off."""
    listed = output_of(["nvidia-smi", "-L"]) or ""
    first = re.split(r"^GPU [1-9]", listed, maxsplit=1, flags=re.MULTILINE)[0]
    return tuple(re.findall(r"UUID: (MIG-[^)\s]+)", first))


def cases(scale: Scale) -> list[Case]:
    """List the slices of this machine, or numbers of SMs, most informative first."""
    if scale == "tiny":
        return [Case(spec={"what": "sms", "sms": n}) for n in (1, 4)] + [
            Case(spec={"what": "groups", "groups": 2, "sms_each": 2})
        ]
    if count := len(slices()):
        specs = [{"what": "together", "slices": count}, {"what": "slice", "slice": 0}]
        specs += [{"what": "slice", "slice": n} for n in range(1, count)]
        specs += [{"what": "together", "slices": n} for n in range(2, count)]
        return [Case(spec=spec, limit_s=contention.PROCESSES_LIMIT_S) for spec in specs]
    groups = [{"what": "groups", "groups": g, "sms_each": s} for g, s in GROUPS]
    numbers = FIRST if scale == "quick" else dict.fromkeys((*FIRST, *range(1, SMS + 1)))
    return [Case(spec=spec) for spec in groups] + [
        Case(spec={"what": "sms", "sms": n}) for n in numbers
    ]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case; a row for each stream."""
    if spec["what"] == "sms":
        return [bounds.stream(bounds.streaming(context), context, sms=spec["sms"])]
    if spec["what"] == "groups":
        return contention.groups(spec["groups"], spec["sms_each"], context)
    names = slices()
    wanted = [spec["slice"]] if spec["what"] == "slice" else list(range(spec["slices"]))
    if max(wanted) >= len(names):
        raise Unmeasurable(f"the GPU now has {len(names)} slices by MIG")
    environments = [environment() | {"CUDA_VISIBLE_DEVICES": names[n]} for n in wanted]
    return contention.processes(len(wanted), ALL, context, environments)
