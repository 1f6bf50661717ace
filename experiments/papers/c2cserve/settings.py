"""Settings of figures' runs."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from c2c.config import load
from c2c.hardware import Platform, conf_dir, load_platform
from c2c.ranges import Count

__all__ = ["GH200", "Chip", "Gemm", "catalog", "composed", "gh200_of_the_paper"]

# The paper's machine, with the slices of its Table 1; the driver lists other ones.
GH200: Final = ("hardware=gh200", "hardware.mig_table=paper")

CONSTANTS: Final = "calibration"  # below the settings' folder; read by cost models, not composed
KEPT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A chip with slices of `conf/mig_table`."""

    name: str
    mig_table: str

    @property
    def platform(self) -> Platform:
        """The platform with these slices."""
        return replace(load_platform(self.name), mig_table=self.mig_table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """A product of m x k by k x n."""

    m: Count
    n: Count
    k: Count

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The sizes in the cost model's order."""
        return self.m, self.n, self.k


def gh200_of_the_paper() -> Platform:
    """Return the platform that `GH200` chooses."""
    return replace(load_platform("gh200"), mig_table="paper")


def catalog(models: int) -> tuple[str, ...]:
    """Return overrides of a catalog of `models`, half Llama-3 3B, half 8B."""
    large = models // 2
    return (
        "catalog=dense6",
        f"catalog.models=[{{spec:llama-3-3b,copies:{models - large},tpot_slo_s:0.15}},"
        f"{{spec:llama-3-8b,copies:{large},tpot_slo_s:0.3}}]",
    )


def composed(overrides: Sequence[str], values: Mapping[str, Any] | None = None) -> DictConfig:
    """Return a run's configuration, as `c2c.config.load` does."""
    result = copy.deepcopy(_composed(tuple(overrides), _contents()))
    for key, value in (values or {}).items():
        OmegaConf.update(result, key, value, merge=False)
    return result


@lru_cache(maxsize=KEPT)
def _composed(overrides: tuple[str, ...], _digest: str) -> DictConfig:
    return load(overrides)


def _contents() -> str:
    digest = hashlib.sha256()
    folder = conf_dir()
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != CONSTANTS)
        for name in sorted(files):
            path = Path(parent, name)
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
