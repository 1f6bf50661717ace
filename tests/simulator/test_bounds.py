"""Every index into an array is checked while every system of `conf/system` serves bursts.

Machine code checks none: an index outside an array corrupts memory, and something else dies of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from c2c.config import choices
from tests.simulator.test_long_traces import MIXTURES, PAIRS

ALONE = ("af", "dedicated", "pd", "replicas", "tessera")  # as many models as engines, or whole GPUs
BURSTS = ("workload=synthetic", "workload.compression=300", "slo.ttft_s=1")
LAYOUTS = ("hardware=h200_pcie5", "mig=3g_2x2g"), ("hardware=gh200", "mig=4x24gb")

OUTSIDE = """
import numpy as np
from numba import njit
from c2c.policies.decision import OPTIONS
def read(row, k):
    return row[k]
read.__module__ = "c2c.outside"
njit(**OPTIONS)(read)(np.zeros(3), 3)
"""

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def checking(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process that checks, with machine code of its own."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return os.environ | {"NUMBA_BOUNDSCHECK": "1", "C2C_CACHE": cache}


def settings(system: str) -> list[list[str]]:
    """Return the settings of some runs that fill the system's queues."""
    if system in MIXTURES + PAIRS:
        load = ["workload=closed_loop", "workload.concurrency=60", "workload.requests=300"]
        if system in MIXTURES:
            load += ["catalog=moe", "router.skew=0.6", "router.locality=0.5", "workload.models=2"]
        return [load]
    models = ["catalog=dense16", "workload.requests=4000"]
    if system in ALONE:
        return [[*BURSTS, "workload.requests=4000", "catalog=dense6", "mig=7x12gb"]]
    return [[*BURSTS, *models, *layout] for layout in LAYOUTS]


def test_an_index_outside_is_an_error(checking: dict[str, str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OUTSIDE], env=checking, capture_output=True, text=True, check=False
    )
    assert "IndexError" in ended.stderr


@pytest.mark.parametrize("system", choices("system"))
def test_no_index_is_outside(system: str, checking: dict[str, str], tmp_path: Path) -> None:
    for mine in settings(system):
        command = [sys.executable, "-m", "experiments.simulate", f"system={system}", *mine]
        ended = subprocess.run(
            [*command, "figures=false", f"out={tmp_path}"],
            env=checking, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
