"""Placement by the estimated start of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from c2c.policies import (
    CANDIDATE_DTYPE,
    LeastStartTime,
    place,
)
from c2c.policies.place import LoaderQueue


def candidates(*rows: dict[str, Any]) -> Any:
    table = np.zeros(len(rows), CANDIDATE_DTYPE).view(np.recarray)
    for k, row in enumerate(rows):
        values = {"is_free": 1, "in_host": 1, "kv_capacity": 9000, "link_left_gbps": 400.0,
                  "budget_gbps": 400.0, "prompt_s": 1e-4, "decode_s": 0.01} | row  # fmt: skip
        for name, value in values.items():
            table[name][k] = value
    return table


@pytest.mark.parametrize(("until_s", "best"), [(5.0, 0), (12.0, 1)])
def test_a_start_waits_for_what_is_queued_and_gains_nothing_by_what_is_over(
    until_s: float, best: int
) -> None:
    rows = [{"chip": c, "is_free": 1 - c, "now_s": 10.0, "weight_bytes": 1e9} for c in (0, 1)]
    table, own = candidates(*rows), LoaderQueue(np.array([until_s, 0.0]))
    assert place(LeastStartTime(link_gbps=100.0), own, table, 2, 1000, 100.0, 0) == best
    assert own.until_s[best] == pytest.approx(10.01)
