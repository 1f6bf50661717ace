"""Connection to Ray, if installed (extra `ray`, see .ci/constraints/ray.txt)."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from c2c.errors import SettingError

__all__ = ["INSTALL_RAY", "cluster_cores", "cluster_is_named", "cluster_with", "started_ray"]

INSTALL_RAY = "pip install -c .ci/constraints/main.txt -c .ci/constraints/ray.txt -e '.[ray]'"


def cluster_is_named() -> bool:
    """Return whether the environment names a cluster (RAY_ADDRESS)."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address and find_spec("ray") is None:
        raise SettingError(
            "RAY_ADDRESS", address, "no value without Ray", f"Install it: {INSTALL_RAY}"
        )
    return bool(address)


def cluster_cores(code: Sequence[str]) -> int:
    """Count cores of the cluster's present machines, at least 1."""
    return max(1, int(cluster_with(code).cluster_resources().get("CPU", 1)))


def cluster_with(code: Sequence[str]) -> Any:
    """Return the module `ray`, connected to the named cluster."""
    folders = {str(Path(file).resolve().parent) for file in code}
    if len(folders) > 1:
        raise SettingError("code", list(code), "files of one folder, for shards on a cluster")
    address = os.environ["RAY_ADDRESS"]
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        return started_ray(runtime_env={"working_dir": folders.pop()} if folders else None)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SettingError("RAY_ADDRESS", address, f"a cluster that answers ({why})") from error


def started_ray(**init: Any) -> Any:
    """Return the module `ray`, connected."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    # Ray leaves the visibility of accelerators unchanged for tasks that need none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if not ray.is_initialized():
        ray.init(**init)
    return ray
