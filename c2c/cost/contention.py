"""Shares of the host link among streaming slices."""

import numpy as np
import numpy.typing as npt

from c2c.errors import SettingError
from c2c.jit import formula
from c2c.ranges import FromZero, check_value

__all__ = ["max_min", "max_min_rates"]


@formula
def max_min_rates(
    demands: npt.NDArray[np.float64], n: int, capacity: float, out: npt.NDArray[np.float64]
) -> None:
    """Write max-min fair shares of `capacity` for the first `n` demands into `out`.

    Args:
      demands: rate of each slice alone, at least 0 or `inf`.
      capacity: in the same unit, at least 0.
      out: not `demands`.
    """
    for i in range(n):
        out[i] = -1.0  # not served yet
    rest = capacity
    waiting = n
    while waiting > 0:
        smallest = np.inf
        for i in range(n):
            if out[i] < 0.0 and demands[i] < smallest:
                smallest = demands[i]
        level = rest / waiting
        if smallest > level:
            for i in range(n):
                if out[i] < 0.0:
                    out[i] = level
            return
        for i in range(n):
            if out[i] < 0.0 and demands[i] == smallest:
                out[i] = smallest
                # rounding must not turn an exactly used link into a negative rest
                rest = max(rest - smallest, 0.0)
                waiting -= 1


def max_min(demands: npt.ArrayLike, capacity: float) -> npt.NDArray[np.float64]:
    """Return the max-min fair shares of `capacity` for `demands`.

    Args:
      demands: rate of each slice alone, at least 0; capacity in the same unit.

    Raises:
      SettingError: a negative number or NaN.
    """
    amounts = np.asarray(demands, dtype=np.float64)
    if amounts.ndim != 1 or np.isnan(amounts).any() or (amounts < 0).any():
        raise SettingError("demands", demands, "a list of numbers, each at least 0")
    check_value(capacity, FromZero, "capacity")
    shares = np.empty_like(amounts)
    max_min_rates(amounts, len(amounts), float(capacity), shares)
    return shares
