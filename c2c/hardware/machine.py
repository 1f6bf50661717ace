"""This machine as a platform: cores are SMs, main memory is HBM."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from c2c.errors import SettingError

__all__ = ["fill_from_machine"]

_FLOPS_PER_CORE = "bf16_tflops_per_core"


def fill_from_machine(gpu: Any, host: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fill null values of the platform `cpu`."""
    for name, section in (("gpu", gpu), ("host", host)):
        if not isinstance(section, Mapping):
            raise SettingError(f"{where}.{name}", section, "a mapping")
    gpu, host = dict(gpu), dict(host)
    per_core = gpu.pop(_FLOPS_PER_CORE, None)
    if gpu.get("sm_count") is None:
        gpu["sm_count"] = cores()
    if gpu.get("bf16_tflops") is None:
        if isinstance(per_core, bool) or not isinstance(per_core, int | float):
            raise SettingError(f"{where}.gpu.{_FLOPS_PER_CORE}", per_core, "a number")
        gpu["bf16_tflops"] = per_core * gpu["sm_count"]
    gpu["fp32_tflops"] = gpu.get("fp32_tflops") or gpu["bf16_tflops"]
    for section, field in ((gpu, "hbm_bytes"), (host, "memory_bytes")):
        if section.get(field) is None:
            section[field] = memory_bytes()
    return gpu, host


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the bytes that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit_file = Path("/sys/fs/cgroup/memory.max")
    if limit_file.is_file():
        text = limit_file.read_text(encoding="ascii").strip()
        if text.isdigit():
            return min(total, int(text))
    return total
