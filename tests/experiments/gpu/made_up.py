"""Rows as a run would write them, from rates that the caller gives."""

from __future__ import annotations

from typing import Any

from experiments.lab.gpu.cases import MIXES, Case, Row, plan
from experiments.lab.gpu.verdicts import predicted_s


def row(case: Case, **columns: Any) -> Row:
    common = {"case": case.key, "stage": case.stage, "status": "ok", "run": "made up"}
    return common | dict(case.spec) | columns


def rows(sm_gbps: float = 52.0, copy_gbps: float = 55.04) -> list[Row]:
    """Return rows of kernels that are as fast as the link lets them be.

    Args:
      sm_gbps: rate at which SMs read pinned memory.
      copy_gbps: rate of the copy engine.
    """
    result: list[Row] = []
    for case in plan(tests=["tests/gpu/test_a.py::test_one"]):
        spec = case.spec
        if case.stage == "probe":
            result.append(row(case, of="copy_engine", pages="runtime", gbps=copy_gbps))
            result.append(row(case, of="tensor", pages="runtime", sms=132, gbps=sm_gbps))
        elif spec.get("what") == "bound":
            rate = {"copy_engine": copy_gbps, "hbm": 4100.0}.get(spec["of"])
            column = {"tflops": 700.0} if rate is None else {"gbps": rate}
            result.append(row(case, **column, spread=0.0, time_s=1e-3))
        elif "k" in spec:
            result.append(_product(case, sm_gbps, copy_gbps))
        elif "test" in spec:
            result.append(row(case, test_s=1.0))
        else:
            result.append(row(case, flops=4e11, time_s=1e-3, spread=0.0))
    return result


def _product(case: Case, sm_gbps: float, copy_gbps: float) -> Row:
    spec = case.spec
    m, k, n = spec["m"], spec["k"], spec["n"]
    weights, flops = 2 * k * n, 2.0 * m * k * n
    ways = {"sms": weights / sm_gbps / 1e9, "copy_engine": weights / copy_gbps / 1e9}
    products = {name: max(way, flops / 700e12) for name, way in ways.items()}
    reader = min(products, key=lambda name: products[name])
    what = spec["what"]
    time_s = products[reader] if what == "chosen" else products["copy_engine"]
    time_s = products["sms"] if what in ("kernel", "best") else time_s
    for mix in MIXES if case.stage == "mix" else ():
        if mix[:5] == (k, n, m, spec["cluster"], spec.get("sms")):
            rates = {"link_gbps": sm_gbps, "hbm_gbps": 4100.0, "bf16_tflops": 700.0}
            time_s = predicted_s(mix, **rates)[(0.0, mix[5], 1.0).index(spec["alpha"])]
    amounts = {"weight_bytes": weights, "activation_bytes": 2 * m * (k + n), "flops": flops}
    more = {"reader": reader} if what == "chosen" else {}
    return row(case, **amounts, **more, time_s=time_s, spread=0.0, predicted_s=time_s)
