"""Terms of the predictions, and the rows that would refute them."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.gpu import report
from experiments.gpu.cases import Case, Row
from experiments.gpu.kernels import facts, grid, refuting
from experiments.gpu.store import Store
from pallas_kernels.gemm import machine_for
from tests.experiments.gpu.kernels.synthetic import row

CASES = {"kernels": grid.cases("full"), "facts": facts.cases("full")}
H200 = machine_for("NVIDIA H200", measured=False)


def as_said(term: refuting.Term, factor: float) -> dict[str, list[Row]]:
    """Return rows in which a term has `factor` times its predicted value."""
    value = factor * term.says(H200)
    seconds = value * {"ms": 1e-3, "us": 1e-6}.get(term.unit, 1.0)
    columns = ("gbps", "tflops", "clusters_overlapping", "share")
    first = dict.fromkeys(columns, value) | {"time_s": seconds, "kernel_s": seconds}
    second = first | {"time_s": 1.0}
    return {
        term.section: [
            row(dict(spec), **measured)
            for spec, measured in zip(term.cases, (first, second), strict=False)
        ]
    }


@pytest.mark.parametrize("term", refuting.TERMS, ids=lambda term: term.name)
def test_each_term_has_a_row_that_can_refute_it_from_both_sides(term: refuting.Term) -> None:
    listed = {case.key for case in CASES[term.section]}
    assert {Case(spec=spec).key for spec in term.cases} <= listed
    assert term.measured({}) is None
    assert term.verdict(None, H200) == "unmeasured"
    short, long = "refuted: predicted times are too short", "refuted: predicted times are too long"
    sides = (short, long) if term.less_is_slower else (long, short)
    for factor, verdict in zip((0.9, 1.0, 1.1), (sides[0], "holds", sides[1]), strict=True):
        rows = as_said(term, factor)
        assert term.verdict(term.measured(rows), H200) == verdict
        of_device = {term.section: [r | {"w_in": "device"} for r in rows[term.section]]}
        assert term.measured(of_device) is None


def test_the_report_has_the_terms_once_one_is_measured(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia-h200"
    store = Store(folder / "kernels")
    store.add_run("r1", {"device": "NVIDIA H200"})
    assert "Terms of the predictions" not in report.write(folder, {})
    slow = {"what": "bound", "of": "link_dma"}
    store.finish(Case(spec=slow), [row(slow, gbps=40.0) | {"case": Case(spec=slow).key}])
    text = report.write(folder, {})
    (line,) = [one for one in text.splitlines() if one.startswith("| the link, long copies |")]
    assert line.count("refuted: predicted times are too short") == 2
    assert "| 40 GB/s |" in line
    assert text.count("| unmeasured | unmeasured |") == len(refuting.TERMS) - 1


def test_the_documentation_has_todays_terms(repository: Path) -> None:
    text = (repository / "docs/gpu/results.md").read_text("utf-8")
    assert "\n".join(refuting.table(refuting.DOCUMENTED)) in text
