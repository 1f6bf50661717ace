"""Host seconds of a step, hidden by longer work of the GPU."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from c2c.cost.routing import Routing, expert_load
from c2c.models import ModelSpec
from c2c.ranges import FromZero, check_fields

__all__ = ["HostTime"]

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Host seconds of a step whose kernels are launched one by one.

    Attributes:
      layer_s: a layer.
      expert_s: a layer's expert.
      visits: experts with rows (hit), or all.
      sequence_s: a sequence with a new token; the GPU waits.
    """

    layer_s: FromZero = 0.0
    expert_s: FromZero = 0.0
    visits: Literal["hit", "all"] = "hit"
    sequence_s: FromZero = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "host")

    def scaled(self, factor: float) -> "HostTime":
        """Return the times on a host slower by `factor`."""
        return HostTime(
            layer_s=factor * self.layer_s, expert_s=factor * self.expert_s, visits=self.visits,
            sequence_s=factor * self.sequence_s,
        )  # fmt: skip

    def launches_s(
        self, spec: ModelSpec, tokens: npt.ArrayLike, routing: Routing, experts_over: int = 1
    ) -> Values:
        """Return the seconds of a step's launches; 0 without tokens."""
        count = np.asarray(tokens, np.float64)
        seconds = np.full(count.shape, spec.layers * self.layer_s)
        if spec.experts and self.expert_s:
            load = expert_load(count, spec.experts, spec.experts_per_token, routing)
            visited = float(spec.experts) if self.visits == "all" else load.active
            mixed = spec.layers - len(spec.dense_layers)
            seconds = seconds + mixed * self.expert_s * visited / experts_over
        launches: Values = np.where(count > 0, seconds, 0.0)
        return launches
