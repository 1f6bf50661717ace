"""Path of a model's weights to a slice."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import A_PLACE_IN_WEIGHTS
from c2c.policies.traits import LoadTraits
from c2c.ranges import Count, FromZero

__all__ = [
    "Resident",
    "Staged",
    "Stream",
    "Swapped",
    "weights_in",
]


@decision(returns=A_PLACE_IN_WEIGHTS)
def weights_in(policy: Any) -> Literal["host", "hbm", "staged"]:
    """Return the memory of a step's weights: see `c2c.cost.step_table`."""


class Stream(NamedTuple):
    """Weights stay in host memory; every step streams them over the link (C2CServe).

    Attributes:
      cluster: CTAs along M that share a weight tile by multicast.
      start_s: seconds to activate a model; None: the calibration's.
    """

    cluster: Count = 1
    start_s: FromZero | None = None


@weights_in.by(Stream)
def _host(policy: Stream) -> Literal["host"]:
    return "host"


class Resident(NamedTuple):
    """Weights are copied into HBM when the model is activated (ServerlessLLM).

    Attributes:
      start_s: seconds of the start beside the copy; None: the calibration's.
    """

    start_s: FromZero | None = None


@weights_in.by(Resident)
def _hbm(policy: Resident) -> Literal["hbm"]:
    return "hbm"


class Staged(NamedTuple):
    """Weights are copied into HBM layer by layer in each step, overlapped with compute.

    Attributes:
      start_s: seconds to activate a model; None: the calibration's.
    """

    start_s: FromZero | None = None


@weights_in.by(Staged)
def _staged(policy: Staged) -> Literal["staged"]:
    return "staged"


class Swapped(NamedTuple):
    """Weights are copied into HBM at each turn of the engine, over those before (Aegaeon).

    Attributes:
      start_s: seconds of a start beside the copy; None: the calibration's.
      ahead: whether the next engine's weights are copied during a turn.
    """

    start_s: FromZero | None = 0.0
    ahead: bool = True

    @property
    def traits(self) -> LoadTraits:
        """Constant traits of this policy."""
        return LoadTraits(swaps_weights=True, fetches_ahead=self.ahead)


@weights_in.by(Swapped)
def _hbm_by_turns(policy: Swapped) -> Literal["hbm"]:
    return "hbm"
