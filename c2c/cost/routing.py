"""Distribution of a step's tokens over an MoE layer's experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from c2c.errors import SettingError
from c2c.ranges import check_fields

__all__ = ["ExpertLoad", "Routing", "expert_load"]

Values = npt.NDArray[np.float64]

# Range of a power law, with and without more than one row per expert.
_MANY: Final = (1.0, 0.8)  # from 1 to this share of the tokens
_FEW: Final = (0.01, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Distribution of tokens over experts.

    `independent`: each token chooses uniformly. `balanced`: equal rows, as far as possible.
    `power_law`: bounded Pareto loads of exponent `skew`, above 0 and not 1.

    Source: aiconfigurator (`power_law_logits`).
    """

    kind: Literal["independent", "balanced", "power_law"] = "independent"
    skew: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "routing")
        if self.kind == "power_law" and not (0.0 < self.skew < 10.0 and self.skew != 1.0):
            raise SettingError("routing.skew", self.skew, "above 0, below 10 and not 1")
        if self.kind != "power_law" and self.skew != 0.0:
            raise SettingError("routing.skew", self.skew, "0 without kind=power_law")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Active experts, and tiles of their rows."""

    active: Values
    tiles: Callable[[int], Values]


def expert_load(
    tokens: npt.ArrayLike, experts: int, experts_per_token: int, routing: Routing
) -> ExpertLoad:
    """Return the number of active experts and of the tiles of their rows.

    Args:
      tokens: of the step, any shape.
      experts, experts_per_token: in all and per token.
    """
    count = np.asarray(tokens, dtype=np.float64)
    routed = count * experts_per_token
    if routing.kind == "power_law":
        loads = _power_law(count, experts, experts_per_token, routing.skew)
        # some row reaches an expert that expects this many: Poisson
        active = (1.0 - np.exp(-loads)).sum(axis=-1)

        def skewed(tm: int) -> Values:
            return np.where(loads >= 0.5, np.ceil(loads / tm), 0.0).sum(axis=-1)

        return ExpertLoad(active=active, tiles=skewed)
    if routing.kind == "balanced":
        active = np.minimum(float(experts), routed)
    else:
        active = experts * (1.0 - np.power(1.0 - experts_per_token / experts, count))
    rows = np.divide(routed, active, out=np.zeros_like(routed), where=active > 0)
    return ExpertLoad(active=active, tiles=lambda tm: active * np.ceil(rows / tm))


def _power_law(count: Values, experts: int, experts_per_token: int, skew: float) -> Values:
    quantile = (np.arange(experts) + 0.5) / experts
    many = count * experts_per_token > experts
    low = np.where(many, _MANY[0], _FEW[0])[..., None]
    high = np.where(many, np.maximum(_MANY[1] * count, 1.0 + 1e-9), _FEW[1])[..., None]
    power = 1.0 - skew
    drawn = ((high**power - low**power) * quantile + low**power) ** (1.0 / power)
    share = drawn / drawn.sum(axis=-1, keepdims=True)
    rows: Values = share * (count * experts_per_token)[..., None]
    return rows
