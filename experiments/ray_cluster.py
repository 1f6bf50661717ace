"""Connection to Ray, if it is installed (extra `ray`, see .ci/constraints/ray.txt)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

__all__ = ["INSTALL_RAY", "cluster_is_named", "started_ray"]

INSTALL_RAY = "pip install -c .ci/constraints/main.txt -c .ci/constraints/ray.txt -e '.[ray]'"


def cluster_is_named() -> bool:
    """Return whether the environment names a cluster (RAY_ADDRESS) and Ray is installed."""
    return bool(os.environ.get("RAY_ADDRESS")) and find_spec("ray") is not None


def started_ray(**init: Any) -> Any:
    """Return the module `ray`, connected to a cluster or to a new local Ray."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    # Ray leaves the visibility of accelerators unchanged for tasks that need none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if not ray.is_initialized():
        ray.init(**init)
    return ray
