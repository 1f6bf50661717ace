"""Terms of a predicted time, each with the row of `make gpu` that can refute it.

A prediction is the slowest of its terms. A refuted term makes predicted times too short or too
long. Both values of a term are judged: that of the prediction, and that with the assumptions of
`pallas_kernels.gemm.assumed`.

    python -m experiments.gpu.kernels.refuting        # the table of docs/gpu/results.md
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.gpu.cases import Case, Row
from pallas_kernels.gemm import Gemm, Machine, assumed, choose, machine_for, plans, predict

TOLERANCE = 0.05
"""Largest relative distance of a measured value that confirms a predicted one."""

DOCUMENTED = "NVIDIA H100 80GB HBM3"
"""jax's device_kind for the table in docs/gpu/results.md."""

_K, _N, _M = 4096, 16384, 10240
_READ_AHEAD = 8 * 64 * 128 * 2  # bytes in flight in an SM of a link probe
_SCALES = {"ms": 1e3, "us": 1e6}  # of seconds in a column


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the prediction, and the rows that measure it.

    `says` is the predicted value in `unit`. The measured value is `column` in the row of a case of
    `section`, or its ratio in the rows of two cases.
    """

    name: str
    unit: str
    says: Callable[[Machine], float]
    section: str
    column: str
    cases: tuple[Mapping[str, Any], ...]

    @property
    def less_is_slower(self) -> bool:
        """True for rates and numbers, False for times."""
        return not self.column.endswith("_s")

    def measured(self, rows: Mapping[str, Sequence[Row]]) -> float | None:
        """Return the latest measured value in `unit`, None if a row is missing.

        Rows of weights in device memory do not count.
        """
        latest = {
            row["case"]: row
            for row in rows.get(self.section, ())
            if row["status"] == "ok" and "w_in" not in row
        }
        found = [latest.get(Case(spec=spec).key) for spec in self.cases]
        if None in found:
            return None
        value, *other = (float(row[self.column]) for row in found if row is not None)
        return value / other[0] if other else value * _SCALES.get(self.unit, 1.0)

    def verdict(self, measured: float | None, machine: Machine) -> str:
        """Return the verdict on a predicted value, and the consequence if it is refuted."""
        if measured is None:
            return "unmeasured"
        said = self.says(machine)
        if abs(measured - said) <= TOLERANCE * said:
            return "holds"
        slower = (measured < said) == self.less_is_slower
        return f"refuted: predicted times are too {'short' if slower else 'long'}"


def predicted_s(machine: Machine, m: int, alpha: float, **given: Any) -> float:
    """Return the predicted seconds of a launch of the paper's shape.

    Args:
      machine: rates; the configuration is the one that a run on its device chooses.
      m: rows.
      alpha: share of the columns for SymGEMM.
      **given: `cluster` and `sm_limit` of the launch, else fields of `Gemm`.
    """
    cluster, sm_limit = given.pop("cluster", 1), given.pop("sm_limit", None)
    gemm = Gemm(m=m, k=_K, n=_N, **given)
    config = choose(gemm, machine_for(machine.device, measured=False), cluster=cluster)
    return float(predict(gemm, config, plans(gemm, config, alpha, sm_limit), machine).time_s)


def _launched(alpha: float, cluster: int, sm_limit: int) -> dict[str, Any]:
    size = {"what": "hybrid", "shape": "c2cserve-fig4", "k": _K, "n": _N, "m": _M}
    return size | {"sm_limit": sm_limit, "alpha": alpha, "cluster": cluster}


# Name, unit, predicted value; section, column and cases that measure it.
TERMS = (
    Term(
        "the link, long copies", "GB/s", lambda of: of.link_gbps,
        "kernels", "gbps", ({"what": "bound", "of": "link_dma"},),
    ),
    Term(
        "the link, one SM: bytes on their way in a latency", "GB/s",
        lambda of: min(of.link_gbps, of.port_gbps, _READ_AHEAD / of.link_latency_s / 1e9),
        "facts", "gbps", ({"fact": "sms", "sms": 1},),
    ),
    Term(
        "the link, headers: W as [N, K] against W in tiles", "x",
        lambda of: (
            predicted_s(of, 64, 1.0, w_layout="nk") / predicted_s(of, 64, 1.0, w_layout="tiles")
        ),
        "facts", "time_s",
        tuple({"fact": "layout", "w_layout": layout, "m": 64} for layout in ("nk", "tiles")),
    ),
    Term(
        "HBM", "GB/s", lambda of: of.hbm_gbps,
        "kernels", "gbps", ({"what": "bound", "of": "hbm"},),
    ),
    Term(
        "L2: AsymGEMM without multicast", "ms", lambda of: predicted_s(of, _M, 0.0) * 1e3,
        "kernels", "time_s", (_launched(0.0, 1, 132),),
    ),
    Term(
        "tensor cores", "TFLOP/s", lambda of: of.bf16_tflops,
        "kernels", "tflops", ({"what": "bound", "of": "matmul"},),
    ),
    Term(
        "steps, latency of X, rounding: AsymGEMM on 16 SMs", "ms",
        lambda of: predicted_s(of, _M, 0.0, cluster=8, sm_limit=16) * 1e3,
        "kernels", "time_s", (_launched(0.0, 8, 16),),
    ),
    Term(
        "additions by TMA, of the rate of stores", "x", lambda of: of.add_share,
        "facts", "share", ({"fact": "adds", "span_mib": 1024, "passes": 8},),
    ),
    Term(
        "additions by TMA: AsymGEMM into float32", "ms",
        lambda of: predicted_s(of, _M, 0.0, out_dtype="float32") * 1e3,
        "facts", "time_s", ({"fact": "last_pass", "out": "float32", "m": _M},),
    ),
    Term(
        "sums read back: AsymGEMM into bfloat16 against float32", "x",
        lambda of: predicted_s(of, _M, 0.0) / predicted_s(of, _M, 0.0, out_dtype="float32"),
        "facts", "time_s",
        tuple({"fact": "last_pass", "out": out, "m": _M} for out in ("bfloat16", "float32")),
    ),
    Term(
        "clusters of 8 at the same time", "clusters", lambda of: of.clusters(8),
        "facts", "clusters_overlapping", ({"fact": "clusters", "cluster": 8},),
    ),
    Term(
        "a launch", "us", lambda of: of.launch_s * 1e6,
        "facts", "kernel_s", ({"fact": "launch"},),
    ),
)  # fmt: skip


def table(device: str, rows: Mapping[str, Sequence[Row]] | None = None) -> list[str]:
    """Return the terms as Markdown.

    Args:
      device: jax's device_kind.
      rows: rows of real runs by section, which add measured values and verdicts; None for none.
    """
    plain = machine_for(device, measured=False)
    likely = assumed(plain)
    heads = ["term", "predicted", "assumed", "row", "predicted times are too short if it is"]
    heads += ["measured", "of the prediction", "with the assumptions"] if rows is not None else []
    found = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for term in TERMS:
        said = [f"{term.says(one):.3g} {term.unit}" for one in (plain, likely)]
        cases = "; ".join(_words(spec) for spec in term.cases)
        side = "lower" if term.less_is_slower else "higher"
        cells = [term.name, *said, f"`{term.section}`: {cases}", side]
        if rows is not None:
            value = term.measured(rows)
            cells.append("" if value is None else f"{value:.3g} {term.unit}")
            cells += [term.verdict(value, one) for one in (plain, likely)]
        found.append(f"| {' | '.join(cells)} |")
    return found


def _words(spec: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in spec.items()
    )


if __name__ == "__main__":
    print("\n".join(table(DOCUMENTED)))
