"""The terms of a predicted time, each beside the row of `make gpu` that would refute it.

A prediction is the slowest of its terms. A term that a row does not bear out makes predicted times
too short or too long. Both of its values are judged: that of the prediction, and that with the
assumptions of `pallas_kernels.gemm.assumed`.

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
"""A measured value so far from a predicted one bears it out."""

DOCUMENTED = "NVIDIA H100 80GB HBM3"
"""Device of the table in docs/gpu/results.md."""

_K, _N, _M = 4096, 16384, 10240
_READ_AHEAD = 8 * 64 * 128 * 2  # bytes that a probe of the link has on their way in an SM


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term of the prediction, and what measures it.

    `says` is the predicted value in `unit`, `reads` the measured one from a row of each of the
    `cases` of `section`.
    """

    name: str
    unit: str
    says: Callable[[Machine], float]
    section: str
    cases: tuple[Mapping[str, Any], ...]
    reads: Callable[..., float]
    less_is_slower: bool = False  # of rates and numbers

    def measured(self, rows: Mapping[str, Sequence[Row]]) -> float | None:
        """Return the latest measured value, None if a row is missing.

        Rows of weights in device memory do not count.
        """
        latest = {
            row["case"]: row
            for row in rows.get(self.section, ())
            if row["status"] == "ok" and "w_in" not in row
        }
        found = [latest.get(Case(spec=spec).key) for spec in self.cases]
        return None if None in found else self.reads(*found)

    def verdict(self, measured: float | None, machine: Machine) -> str:
        """Say whether a measured value bears the predicted one out, and what follows if not."""
        if measured is None:
            return "unmeasured"
        said = self.says(machine)
        if abs(measured - said) <= TOLERANCE * said:
            return "holds"
        slower = (measured < said) == self.less_is_slower
        return f"refuted: predicted times are too {'short' if slower else 'long'}"


def predicted_s(machine: Machine, m: int, alpha: float, **given: Any) -> float:
    """Return the predicted seconds of a case of the paper's shape.

    Args:
      machine: rates; the configuration is that of the device's own, as a run chooses it.
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


def _gbps(row: Row) -> float:
    return float(row["gbps"])


def _ms(row: Row) -> float:
    return float(row["time_s"]) * 1e3


TERMS = (
    Term(
        name="the link, long copies",
        unit="GB/s",
        says=lambda machine: machine.link_gbps,
        section="kernels",
        cases=({"what": "bound", "of": "link_dma"},),
        reads=_gbps,
        less_is_slower=True,
    ),
    Term(
        name="the link, one SM: bytes on their way in a latency",
        unit="GB/s",
        says=lambda machine: min(
            machine.link_gbps, machine.port_gbps, _READ_AHEAD / machine.link_latency_s / 1e9
        ),
        section="facts",
        cases=({"fact": "sms", "sms": 1},),
        reads=_gbps,
        less_is_slower=True,
    ),
    Term(
        name="the link, headers: W as [N, K] against W in tiles",
        unit="x",
        says=lambda machine: (
            predicted_s(machine, 64, 1.0, w_layout="nk")
            / predicted_s(machine, 64, 1.0, w_layout="tiles")
        ),
        section="facts",
        cases=tuple({"fact": "layout", "w_layout": of, "m": 64} for of in ("nk", "tiles")),
        reads=lambda rows, tiles: _ms(rows) / _ms(tiles),
    ),
    Term(
        name="HBM",
        unit="GB/s",
        says=lambda machine: machine.hbm_gbps,
        section="kernels",
        cases=({"what": "bound", "of": "hbm"},),
        reads=_gbps,
        less_is_slower=True,
    ),
    Term(
        name="L2: AsymGEMM without multicast",
        unit="ms",
        says=lambda machine: predicted_s(machine, _M, 0.0) * 1e3,
        section="kernels",
        cases=(_launched(0.0, 1, 132),),
        reads=_ms,
    ),
    Term(
        name="tensor cores",
        unit="TFLOP/s",
        says=lambda machine: machine.bf16_tflops,
        section="kernels",
        cases=({"what": "bound", "of": "matmul"},),
        reads=lambda row: float(row["tflops"]),
        less_is_slower=True,
    ),
    Term(
        name="steps, latency of X, rounding: AsymGEMM on 16 SMs",
        unit="ms",
        says=lambda machine: predicted_s(machine, _M, 0.0, cluster=8, sm_limit=16) * 1e3,
        section="kernels",
        cases=(_launched(0.0, 8, 16),),
        reads=_ms,
    ),
    Term(
        name="additions by TMA, of the rate of stores",
        unit="x",
        says=lambda machine: machine.add_share,
        section="facts",
        cases=({"fact": "adds", "span_mib": 1024, "passes": 8},),
        reads=lambda row: float(row["share"]),
        less_is_slower=True,
    ),
    Term(
        name="additions by TMA: AsymGEMM into float32",
        unit="ms",
        says=lambda machine: predicted_s(machine, _M, 0.0, out_dtype="float32") * 1e3,
        section="facts",
        cases=({"fact": "last_pass", "out": "float32", "m": _M},),
        reads=_ms,
    ),
    Term(
        name="sums read back: AsymGEMM into bfloat16 against float32",
        unit="x",
        says=lambda machine: (
            predicted_s(machine, _M, 0.0) / predicted_s(machine, _M, 0.0, out_dtype="float32")
        ),
        section="facts",
        cases=tuple({"fact": "last_pass", "out": of, "m": _M} for of in ("bfloat16", "float32")),
        reads=lambda rounded, whole: _ms(rounded) / _ms(whole),
    ),
    Term(
        name="clusters of 8 at the same time",
        unit="clusters",
        says=lambda machine: machine.clusters(8),
        section="facts",
        cases=({"fact": "clusters", "cluster": 8},),
        reads=lambda row: float(row["clusters_overlapping"]),
        less_is_slower=True,
    ),
    Term(
        name="a launch",
        unit="us",
        says=lambda machine: machine.launch_s * 1e6,
        section="facts",
        cases=({"fact": "launch"},),
        reads=lambda row: float(row["kernel_s"]) * 1e6,
    ),
)


def table(device: str, rows: Mapping[str, Sequence[Row]] | None = None) -> list[str]:
    """Return the terms as Markdown.

    Args:
      device: jax's device_kind.
      rows: by section, of real runs; with them each term has its measured value and verdicts.
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
