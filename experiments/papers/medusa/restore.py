"""Capture, analysis and restore in separate processes, on the emulated device or a driver.

    c2c try medusa                       # ten models, emulated
    c2c try medusa models=[yi_6b] device=driver

On three random inputs the restored graphs must give the first process's results, byte for byte.
`device=driver` needs .venv-driver (`make driver`) and a driver. Writes JSON with provenance to a
folder in runs/bench.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from c2c.errors import DataError, unknown_name
from experiments.benchmark import MeasurementSettings, benchmark, measure_each
from experiments.children import ROOT, environment, run
from experiments.papers.medusa.models import MODELS
from experiments.papers.medusa.one_process import (
    ADDRESSES,
    DEVICES,
    EXECUTABLES,
    ROLES,
    check_each,
    programs_of,
)

__all__ = ["RestoreSettings", "main", "measure"]


@dataclass
class RestoreSettings(MeasurementSettings):
    """Settings, as key=value on the command line.

    Attributes:
      device: emulated, or driver.
      addresses: patched (addresses are written into parameters), or fixed (captured ones are
        reserved).
      executables: own (one a batch size), or shared (one a topology).
      models: models of Table 1, random:<seed>, or xla:<folder> (`c2c try medusa_steps`).
    """

    device: str = "emulated"
    addresses: str = "patched"
    executables: str = "own"
    models: list[str] = field(default_factory=lambda: [m.row for m in MODELS])


def measure(
    device: str,
    source: str,
    env: Mapping[str, str] | None = None,
    *,
    addresses: str = "patched",
    executables: str = "own",
) -> dict[str, Any]:
    """Capture and restore a model; return the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        for role in ROLES:
            line = [sys.executable, "-m", "experiments.papers.medusa.one_process", role, device]
            done = run(
                [*line, addresses, executables, source, folder],
                env=environment(ROOT / ".venv-driver") | dict(env or {}),
                apart=False,
            )
            if done.code:
                raise DataError(f"{source}, {role}", done.why.rstrip("."))
        reports = {
            role: json.loads((Path(folder) / f"{role}.json").read_text("utf-8")) for role in ROLES
        }
        stored = sum(p.stat().st_size for p in Path(folder).glob("*.graphs"))
    ours, truth = (reports[role].pop("outputs") for role in ("restore", "capture"))
    wrong = [batch for batch in ours if ours[batch] != truth[batch]]
    if wrong:
        raise DataError(source, f"restored graphs of batch sizes {', '.join(wrong)} differ")
    return {
        "model": source, "device": device, "addresses": addresses, "executables": executables,
        "graphs": len(ours), "captured_graphs": len(truth), "stored_bytes": stored,
        "outputs": ours,
        **reports["capture"], **reports["analyse"], **reports["restore"],
    }  # fmt: skip


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="graphs restored, seconds of this machine", box=SIMPLE_HEAD)
    for head in ("model", "graphs", "nodes", "refused", "capture", "analysis", "first", "restore",
                 "us/node", "in place", "MB"):  # fmt: skip
        table.add_column(head, justify="left" if head == "model" else "right")
    for r in rows:
        node_us = 1e6 * r["restore_s"] / max(r["nodes"], 1)
        table.add_row(
            r["model"], f"{r['graphs']}/{r['captured_graphs']}", f"{r['nodes']}",
            f"{len(r['refused'])}", f"{r['capture_s']:.2f}", f"{r['analysis_s']:.2f}",
            f"{r['first_graph_s']:.2f}", f"{r['restore_s']:.2f}", f"{node_us:.1f}",
            "yes" if r["is_in_place"] else "no", f"{r['stored_bytes'] / 1e6:.2f}",
        )  # fmt: skip
    table.caption = (
        f"{sum(r['nodes'] for r in rows):,} nodes; outputs equal byte by byte. first: until the "
        "first graph is usable; others can be restored on demand."
    )
    return table


def main(arguments: Sequence[str]) -> int:
    """Run the check; return the exit status."""

    def check(settings: RestoreSettings) -> None:
        known_of = {"device": DEVICES, "addresses": ADDRESSES, "executables": EXECUTABLES}
        for name, names in known_of.items():
            if getattr(settings, name) not in names:
                raise unknown_name(name, getattr(settings, name), names)
        check_each(settings.models)
        for model in settings.models:
            programs_of(model)

    work = measure_each(
        "models",
        lambda s: s.models,
        lambda s, source: [
            measure(s.device, source, addresses=s.addresses, executables=s.executables)
        ],
        lambda _, rows: _table(rows),
        "restore",
    )
    return benchmark(
        RestoreSettings, arguments, work, check=check, name="restore",
        packages=("c2c", "experiments.papers.medusa"),
    )  # fmt: skip
