"""Two unlike GPUs with what is between them: a file of `conf/pair`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from c2c.errors import SettingError
from c2c.hardware import Gpu, load_platform, read_yaml
from c2c.hardware.conf import check_positive, read_fields
from c2c.systems.tessera.work import Gpus

__all__ = ["Pair", "load_pair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A pair.

    Attributes:
      name: of the file.
      left: GPU, of `conf/hardware`.
      right: the other one.
      nic_gbps: of each GPU's network card, each way, 1e9 bytes a second.
      latency_s: of a transfer.
      right_share: how fast kernels are on the right GPU, relative to the left one, beside what the
        datasheets' rates say.
      source: of each number.
    """

    name: str
    left: str
    right: str
    nic_gbps: float
    latency_s: float
    right_share: float
    source: Mapping[str, Any]

    def __post_init__(self) -> None:
        for field in ("nic_gbps", "latency_s", "right_share"):
            check_positive(f"pair.{self.name}.{field}", getattr(self, field))
        if self.left == self.right:
            raise SettingError(f"pair.{self.name}.right", self.right, "another GPU than the left")

    @property
    def gpus(self) -> tuple[tuple[str, Gpu], tuple[str, Gpu]]:
        """Names and GPUs, left and right."""
        return (self.left, load_platform(self.left).gpu), (
            self.right,
            load_platform(self.right).gpu,
        )

    @property
    def shares(self) -> tuple[float, float]:
        """How fast kernels are relative to the datasheets, left and right."""
        return 1.0, self.right_share

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
    """
    return read_fields(Pair, read_yaml("pair", name), f"pair.{name}")
