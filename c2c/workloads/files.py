"""Files of a workload, for keys of results."""

from __future__ import annotations

from pathlib import Path

from c2c.workloads.build import _SHARED_LENGTHS, _find
from c2c.workloads.settings import WorkloadConfig, shared_dir

__all__ = ["workload_files"]

_GENERATED_LENGTHS = ("auto", "trace", "synthetic", "fixed")


def workload_files(config: WorkloadConfig) -> dict[str, Path]:
    """Return named files, by setting.

    Raises:
      SettingError: no such trace.
    """
    result: dict[str, Path] = {}
    if config.kind == "trace":
        result["workload.path"] = _find(config.path)
    if config.lengths not in _GENERATED_LENGTHS:
        shared = _SHARED_LENGTHS.get(config.lengths)
        lengths = shared_dir() / "traces" / shared if shared else Path(config.lengths)
        result["workload.lengths"] = lengths.expanduser()
    return result
