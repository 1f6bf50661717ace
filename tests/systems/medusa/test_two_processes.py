"""Captured by processes that end, restored by another: emulated, and by the driver's calls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from c2c.systems.program import Library
from experiments.papers.medusa.one_process import programs_of
from experiments.papers.medusa.processes import libraries_of
from tests.systems.program.fake.build import build, environment

ROOT = Path(__file__).parents[3]


def measured(
    folder: Path, device: str, what: str, env: Mapping[str, str] | None = None,
    ways: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    out = folder / "-".join((device, *ways, what.replace(":", "-")))
    done = subprocess.run(
        [sys.executable, "-m", "c2c", "try", "medusa", f"device={device}",
         f"models=[{what}]", *ways, f"out={out}"],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((out / "restore.json").read_text())["rows"]
    result: dict[str, Any] = row
    return result


def libraries(what: str) -> tuple[Library, ...]:
    return libraries_of(next(iter(programs_of(what).values())))


@pytest.mark.slow
def test_the_driver_restores_what_the_emulated_device_restores(tmp_path: Path) -> None:
    what = "random:5"  # edges of both types, a hidden library, structs and tensor maps
    env = environment(tmp_path)
    build(tmp_path, libraries(what))
    ours, emulated = measured(tmp_path, "driver", what, env), measured(tmp_path, "emulated", what)
    fixed = measured(tmp_path, "driver", what, env, ("addresses=fixed", "executables=shared"))
    assert fixed["outputs"] == ours["outputs"]
    assert (fixed["is_in_place"], ours["is_in_place"]) == (True, False)
    assert ours["graphs"] == ours["captured_graphs"] == 1
    assert ours["outputs"] == emulated["outputs"]  # byte for byte
    assert ours["nodes"] == emulated["nodes"] > 20
    assert not ours["refused"]
    # the size that the first process's profiling gave, of 80 GiB less what it holds
    assert 0.89 < ours["kv_bytes"] / (80 << 30) < 0.9


@pytest.mark.slow
def test_a_models_graphs_by_the_drivers_calls(tmp_path: Path) -> None:
    what = "qwen15_0p5b"
    env = environment(tmp_path)
    build(tmp_path, libraries(what))
    row = measured(tmp_path, "driver", what, env, ("executables=shared",))
    assert (row["graphs"], row["nodes"], row["refused"]) == (35, 9118, [])
    assert row["topologies"] == 2  # small batch sizes have a node more a layer


@pytest.mark.slow
def test_without_a_driver_the_command_says_so(tmp_path: Path) -> None:
    env = environment(tmp_path)  # an empty folder: no driver library in it
    done = subprocess.run(
        [sys.executable, "-m", "c2c", "try", "medusa", "device=driver",
         "models=[random:4]", f"out={tmp_path / 'out'}"],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
