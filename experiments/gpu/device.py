"""The GPU, and the provenance of numbers measured on it."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import sys
import uuid
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.children import ROOT, environment, run
from experiments.gpu.cases import Unmeasurable

if TYPE_CHECKING:
    import jax

LIMIT_S = 30.0
LOOK = "import cuda.bindings"  # Python bindings of the driver
PACKAGES = ("jax", "jaxlib", "jax-cuda13-pjrt", "jax-cuda13-plugin", "numpy", "pyarrow")
_DRIVER = (
    "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,"
    "pcie.link.gen.max,pcie.link.width.max,mig.mode.current"
)
_STATE = (
    "clocks.sm,clocks.mem,power.draw,temperature.gpu,pcie.link.gen.current,"
    "pcie.link.width.current,clocks_event_reasons.active"
)


def find_gpu() -> jax.Device:
    """Return the first GPU.

    Raises:
      RuntimeError: jax can use none; the message lists the devices that it sees.
    """
    import jax

    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        seen = ", ".join(sorted({d.device_kind for d in jax.devices()}))
        raise RuntimeError(f"jax {jax.__version__} sees no GPU here, only: {seen}") from error


def provenance(device: jax.Device, *, seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Return the facts beside the code that results depend on; none identifies the machine."""
    changes = output_of(["git", "status", "--porcelain", "--untracked-files=no"])
    return {
        "run": uuid.uuid4().hex[:12],
        "started_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "device": device.device_kind,
        "platform": device.platform,
        "compute_capability": getattr(device, "compute_capability", None),
        "sm_count": getattr(device, "core_count", None),
        "driver": query_driver(),
        "state": query_driver(_STATE),
        "runtime": device.client.platform_version,
        "python": platform.python_version(),
        "versions": versions(),
        "cpu_count": os.cpu_count(),
        "kernel": platform.release(),
        "commit": output_of(["git", "rev-parse", "HEAD"]) or os.environ.get("C2C_COMMIT"),
        "uncommitted_changes": None if changes is None else bool(changes),
        "seed": seed,
        "command": [Path(sys.executable).name, "-m", "experiments.gpu", *command],
    }


def versions() -> dict[str, str]:
    """Return the versions of those `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def query_driver(fields: str = _DRIVER) -> dict[str, str] | None:
    """Return nvidia-smi's values of `fields` for the first GPU, or None if it fails."""
    answer = output_of(["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"])
    if answer is None:
        return None
    return dict(zip(fields.split(","), (v.strip() for v in answer.split(",")), strict=False))


def with_bindings() -> dict[str, str]:
    """Return the environment of a process that calls the driver from Python.

    The bindings are those of this Python or of `.venv-driver`, which can be copied.

    Raises:
      Unmeasurable: neither has the bindings.
    """
    env = environment(ROOT / ".venv-driver")
    if run([sys.executable, "-c", LOOK], limit_s=LIMIT_S, env=env).code:
        raise Unmeasurable("no module cuda.bindings here or in .venv-driver: run make driver")
    return env


def is_without_driver(message: str) -> bool:
    """Return whether an error message of the driver's bindings says that there is no driver."""
    return any(part in message for part in ("libcuda", "DynamicLib", "NVIDIA driver library"))


def output_of(command: Sequence[str]) -> str | None:
    """Return the output of `command`, or None if it is missing, fails or exceeds `LIMIT_S`."""
    try:
        done = run(command, limit_s=LIMIT_S)
    except OSError:
        return None
    return done.out.strip() if done.code == 0 else None


def folder_name(device_kind: str) -> str:
    """Return the device's name as the name of a folder.

    >>> folder_name("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", device_kind.lower()).strip("-")
