"""Time of counted work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Seconds = Any  # np.float64, or an array of them with the shape of what was counted
Scalar = Any  # float; calibration passes JAX scalars


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A kernel's sustained rates per second on a device, and fixed costs."""

    sm_flops: Scalar  # of one SM's tensor cores
    link_bytes_s: Scalar  # all of W from host memory
    hbm_bytes_s: Scalar
    sm_store_bytes_s: Scalar  # outputs and partial sums of one SM
    output_s: Scalar  # of each output tile, while tensor cores wait
    launch_s: Scalar
    stores_overlap: bool  # whether an output's `output_s` passes while its bytes leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of each resource, and of the launch; see `predicted`."""

    time_s: Seconds  # the slowest resource and the launch
    link_s: Seconds
    hbm_s: Seconds
    l2_s: Seconds
    tensor_s: Seconds  # tensor work of the busiest CTA
    issue_s: Seconds  # the same with the fixed costs of its steps and outputs
    launch_s: Seconds
    traffic: Any  # as counted

    @property
    def bound(self) -> Any:
        """The slowest resource: "link", "hbm", "l2", "tensor" or "issue"."""
        cta = np.where(2 * self.tensor_s >= self.issue_s, "tensor", "issue")
        times = np.stack(np.broadcast_arrays(self.link_s, self.hbm_s, self.l2_s, self.issue_s))
        names = np.stack(np.broadcast_arrays("link", "hbm", "l2", cta, times[0])[:4])
        named = np.take_along_axis(names, times.argmax(0)[None], 0)[0]
        return named if named.ndim else str(named)

    @property
    def sum_s(self) -> Seconds:
        """Sum over resources; of equal times the smaller is better."""
        return self.link_s + self.hbm_s + self.l2_s + self.issue_s


# The formula serves two kernels: ours, counted by its schedule (`traffic`), and the published
# HybridGEMM, counted in closed form (`c2c.cost`). Only rates and constants differ. `xp` is NumPy,
# or jax.numpy to differentiate a time.
def predicted(
    traffic: Any,
    *,
    link_s: Seconds,
    hbm_s: Seconds,
    tensor_s: Seconds,
    issue_s: Seconds,
    launch_s: Seconds,
    l2_s: Seconds = 0.0,
    xp: Any = np,
) -> Prediction:
    """Return the time of a launch with full overlap: the slowest resource's."""
    busy = xp.maximum(xp.maximum(link_s, hbm_s), xp.maximum(l2_s, issue_s))
    return Prediction(
        time_s=busy + launch_s,
        link_s=link_s,
        hbm_s=hbm_s,
        l2_s=l2_s,
        tensor_s=tensor_s,
        issue_s=issue_s,
        launch_s=launch_s,
        traffic=traffic,
    )


def busy_s(
    products_s: Seconds, outputs: Any, nbytes: Any, rates: Rates, *, xp: Any = np
) -> Seconds:
    """Return an SM's seconds for products and outputs, one after another.

    Args:
      outputs: tiles stored or added.
      nbytes: bytes of these tiles.
    """
    leaving, fixed = nbytes / rates.sm_store_bytes_s, outputs * rates.output_s
    if rates.stores_overlap:
        return products_s + xp.maximum(fixed, leaving)
    return products_s + leaving + fixed
