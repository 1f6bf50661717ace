"""Two unlike GPUs with what is between them: a file of `conf/pair`, and what is fitted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from c2c.cost import Source, read_constants
from c2c.errors import SettingError
from c2c.hardware import conf_dir, conf_names, read_yaml
from c2c.hardware.conf import check_positive, read_fields
from c2c.systems.tessera.devices import TimedGpu, timed_gpu
from c2c.systems.tessera.work import Gpus

__all__ = ["Pair", "fitted_claims", "load_pair", "pair_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A pair.

    Attributes:
      name: of the file.
      left: GPU, of `conf/hardware`.
      right: the other one.
      nic_gbps: of each GPU's network card, each way, 1e9 bytes a second.
      latency_s: of a transfer.
      source: of each number.
      right_share: how fast kernels are on the right GPU, relative to the left one, beside what
        rates and constants say; of `conf/calibration/pair`, where the pair has a file there.
    """

    name: str
    left: str
    right: str
    nic_gbps: float
    latency_s: float
    source: Mapping[str, Any]
    right_share: float = 1.0

    def __post_init__(self) -> None:
        for field in ("nic_gbps", "latency_s", "right_share"):
            check_positive(f"pair.{self.name}.{field}", getattr(self, field))
        if self.left == self.right:
            raise SettingError(f"pair.{self.name}.right", self.right, "another GPU than the left")

    @property
    def gpus(self) -> tuple[TimedGpu, TimedGpu]:
        """The GPUs, left and right."""
        return timed_gpu(self.left), timed_gpu(self.right, self.right_share)

    def link(self, gbps: float | None = None) -> Gpus:
        """Return the pair as what the planner takes; at another rate where one is given."""
        return Gpus.alike(
            (self.left, self.right), gbps=self.nic_gbps if gbps is None else gbps,
            latency_s=self.latency_s,
        )  # fmt: skip


def load_pair(name: str) -> Pair:
    """Return a file of `conf/pair`.

    Raises:
      SettingError: there is no such file, or a value that cannot be.
      DataError: what is fitted of it does not say from where.
    """
    return pair_of(read_yaml("pair", name), f"pair.{name}")


def pair_of(data: Mapping[str, Any], where: str = "pair") -> Pair:
    """Return a pair by the fields of its file, and what is fitted of the pair of that name.

    Raises:
      SettingError: a value that cannot be, or one that has its place in `conf/calibration/pair`.
      DataError: what is fitted of it does not say from where.
    """
    if "right_share" in data:
        allowed = "to stand in conf/calibration/pair"
        raise SettingError(f"{where}.right_share", data["right_share"], allowed)
    given = read_fields(Pair, data, where)
    fitted = _fitted(given.name)
    return given if fitted is None else replace(given, right_share=fitted[0])


def fitted_claims() -> frozenset[str]:
    """Return the published values that a pair's number is fitted to: they are in-sample."""
    every = map(_fitted, conf_names("pair"))
    return frozenset(claim for fitted in every if fitted for claim in fitted[1].claims)


def _fitted(name: str) -> tuple[float, Source] | None:
    path: Path = conf_dir() / "calibration" / "pair" / f"{name}.yaml"
    return read_constants(path, ["right_share"])["right_share"] if path.is_file() else None
