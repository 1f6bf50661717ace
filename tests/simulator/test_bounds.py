"""Every index into an array is checked while every system of `conf/system` serves bursts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from c2c.config import choices
from tests.simulator.test_long_traces import MIXTURES, OVER_GPUS

BURSTS = (
    "workload=synthetic", "workload.requests=4000", "workload.compression=300", "slo.ttft_s=1",
)  # fmt: skip
LAYOUTS = ("hardware=h200_pcie5", "mig=3g_2x2g"), ("hardware=gh200", "mig=4x24gb")

OUTSIDE = """
import numpy as np
from numba import njit
from c2c.compiling.builder import OPTIONS
def read(row, k):
    return row[k]
read.__module__ = "c2c.outside"
njit(**OPTIONS)(read)(np.zeros(3), 3)
"""

COMPILED = """
import sys
from c2c.config import build, load, simulate
simulate(build(load(sys.argv[1:])), compiled=True)
"""

# Machine code checks none: an index outside corrupts memory, and something else dies of it.
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def checking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process that checks, with machine code of its own."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return os.environ | {"NUMBA_BOUNDSCHECK": "1", "C2C_CACHE": cache}


def settings(system: str) -> list[list[str]]:
    """Return the settings of some runs that fill the system's queues."""
    if system in OVER_GPUS:
        return [["workload=closed_loop", "workload.concurrency=60", "workload.requests=300"]]
    if system in MIXTURES:
        load = ["workload=closed_loop", "workload.concurrency=4", "workload.requests=8"]
        return [
            [*load, "catalog=moe", "router.skew=0.6", "router.locality=0.5", "workload.models=2"]
        ]
    if system == "dedicated":
        return [[*BURSTS, "catalog=dense6", "mig=4x24gb", "superchips=2"]]
    return [[*BURSTS, "catalog=dense16", *layout] for layout in LAYOUTS]


def test_an_index_outside_is_an_error(checking: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OUTSIDE], env=checking, capture_output=True, text=True, check=False
    )
    assert "IndexError" in ended.stderr


@pytest.mark.parametrize("system", choices("system"))
def test_no_index_is_outside(system: str, checking: dict[str, str]) -> None:
    for mine in settings(system):
        command = [sys.executable, "-c", COMPILED, f"system={system}", *mine]
        ended = subprocess.run(command, env=checking, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
