"""Connection to Ray, if it is installed (extra `ray`, see .ci/constraints/ray.txt)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from c2c.errors import SettingError

__all__ = ["INSTALL_RAY", "cluster_cores", "cluster_is_named", "started_ray"]

INSTALL_RAY = "pip install -c .ci/constraints/main.txt -c .ci/constraints/ray.txt -e '.[ray]'"


def cluster_is_named() -> bool:
    """Return whether the environment names a cluster (RAY_ADDRESS).

    Raises:
      SettingError: it does, and Ray is not installed.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address and find_spec("ray") is None:
        raise SettingError(
            "RAY_ADDRESS", address, "no value without Ray", f"Install it: {INSTALL_RAY}"
        )
    return bool(address)


def cluster_cores() -> int:
    """Return the number of cores of the cluster's present machines, at least 1."""
    return max(1, int(started_ray().cluster_resources().get("CPU", 1)))


def started_ray(**init: Any) -> Any:
    """Return the module `ray`, connected to a cluster or to a new local Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    # Ray leaves the visibility of accelerators unchanged for tasks that need none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if not ray.is_initialized():
        ray.init(**init)
    return ray
