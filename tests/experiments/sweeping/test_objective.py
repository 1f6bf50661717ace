from __future__ import annotations

from typing import Any

import pytest

from c2c.errors import SettingError
from experiments.simulation.objective import check_objective, known_fields, objective_of

SUMMARY: dict[str, Any] = {
    "failed": 2,
    "ttft_s": {"p50": 0.5, "p99": 2.0},
    "tpot_s": {"p99": None},
    "attainment": {"both": 0.75},
    "run": {"utilisation": {"link": [0.1], "link_mean": 0.25}, "link_variant": "measured"},
    "models": {"a": {"failed": 1}},
}


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        ("ttft_p99_s", 2.0),
        ("ttft_p99_s + 10 * failed - -1", 23.0),
        ("2 ** 3 / ttft_p50_s", 16.0),
        ("max(ttft_p50_s, attainment_both) * run_utilisation_link_mean", 0.1875),
        ("tpot_p99_s", None),
        ("1 / (failed - 2)", None),
        ("10 ** 10 ** 10", None),
        ("(0 - 8) ** 0.5", None),
        ("log(0)", None),
        (["ttft_p50_s", "failed"], (0.5, 2.0)),
        (None, None),
    ],
)
def test_values(objective: Any, value: Any) -> None:
    assert objective_of(objective, SUMMARY) == value


@pytest.mark.parametrize(
    "objective",
    [
        "__import__('os')", "ttft_p99_s.__class__", "failed[0]", "'a' * 9", "lambda: 1", "(1, 2)",
        "max()", "eval(failed)", "max(failed, key=abs)", "failed if failed else 1", "True", "",
        "failed +", "1" * 400, "(" * 250, 3, [],
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(objective: Any) -> None:
    with pytest.raises(SettingError, match="objective="):
        check_objective(objective, lambda: ["failed", "ttft_p99_s"])


def test_an_unknown_field_is_refused_with_the_nearest() -> None:
    known = known_fields()
    check_objective("ttft_p99_s + run_utilisation_link_mean", lambda: known)
    with pytest.raises(SettingError, match="Did you mean goodput_rps"):
        check_objective("2 * godput_rps", lambda: known)
