"""MIG layouts of GH200 (C2CServe, Table 1), and ratios of HBM to link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from c2c.hardware import link_gbps, load_mig, slices
from experiments.claims import Result, answer, claim
from experiments.figure import Computed, Context, figure
from experiments.papers.c2cserve.settings import Chip

__all__ = ["compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Experiment: layouts that the paper prints."""

    chip: Chip
    layouts: tuple[str, ...]


@figure("table1", title="Table 1: MIG layouts of GH200", experiment=Layouts,
        draw=".drawing.hardware.draw_table1")  # fmt: skip
def compute(context: Context, experiment: Layouts) -> Computed:
    """Return a row a layout, with ours and the printed values."""
    chip = experiment.chip.platform
    shared = link_gbps(chip.link, context.link_variant)
    rows: list[dict[str, Any]] = []
    results = []
    for name in experiment.layouts:
        layout = load_mig(name)
        one = slices(chip, name)[0]
        ours = {
            "instances": layout.instances,
            "hbm_gb_per_instance": one.hbm_bytes / 1e9,
            "sms_per_instance": one.sm_count,
            "hbm_tb_per_s_per_instance": one.hbm_gbps / 1e3,
        }
        printed = claim(f"c2cserve.table1.{name}").value
        rows.append(
            {
                "layout": name,
                **ours,
                **{f"published_{k}": float(v) for k, v in printed.items()},
                "link_cap_gbps": one.link_cap_gbps,
                "hbm_over_link": one.hbm_gbps / shared,
            }
        )
        results.append(_result(f"c2cserve.table1.{name}", ours))
    results += [
        _result("c2cserve.intro.mig_max_instances", max(r["instances"] for r in rows)),
        _result(
            "c2cserve.sec3.hbm_c2c_ratio_narrows",
            {"hbm_per_slice_over_c2c": [r["hbm_over_link"] for r in rows]},
        ),
    ]
    caption = (
        "Each MIG layout of GH200 in the paper's Table 1: our value, the paper's below. HBM / "
        "link: one slice's HBM bandwidth over the shared link, "
        f"{context.link_text(shared)}."
    )
    assumptions = (
        "The cells are inputs (conf/mig_table/paper.yaml, transcribed from Table 1).",
        "Agreement with the paper only shows that these inputs arrive unchanged.",
    )
    return Computed(
        tables={"layouts": pa.Table.from_pylist(rows)},
        results=tuple(results),
        caption=caption,
        finding="Cut in seven, a slice's HBM is "
        f"{rows[-1]['hbm_over_link']:.2g} times the link; a whole GPU's, "
        f"{rows[0]['hbm_over_link']:.2g} times",
        assumptions=assumptions,
    )


def _result(claim_id: str, ours: Any) -> Result:
    return answer(claim_id, ours, "Table 1 is an input (conf/mig_table).", sample="in-sample")
