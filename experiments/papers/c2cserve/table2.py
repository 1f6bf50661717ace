"""Superchips (C2CServe, Table 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from c2c.hardware import link_gbps, load_platform
from c2c.models import load_spec, weight_bytes
from experiments.claims import Result, answer, claim
from experiments.figure import Computed, Context, figure

__all__ = ["compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Superchips:
    """Experiment: printed chips, and a model for the first one's HBM."""

    platforms: tuple[str, ...]
    model: str


@figure("table2", title="Table 2: Superchips", experiment=Superchips,
        draw=".drawing.hardware.draw_table2")  # fmt: skip
def compute(context: Context, experiment: Superchips) -> Computed:
    """Return a row a platform, with ours and the printed values."""
    rows: list[dict[str, Any]] = []
    results = []
    for name in experiment.platforms:
        platform = load_platform(name)
        ours = {
            "cpu_mem_gb": platform.host.memory_bytes / 1e9,
            "hbm_gb": platform.gpu.hbm_bytes / 1e9,
            "hbm_tb_per_s": platform.gpu.hbm_gbps / 1e3,
            "c2c_gb_per_s": platform.link.both_directions_gbps,
        }
        printed = claim(f"c2cserve.table2.{name}").value
        rows.append(
            {
                "platform": name,
                **ours,
                **{f"published_{k}": float(v) for k, v in printed.items()},
                "link_datasheet_gbps": platform.link.datasheet_gbps,
                "link_measured_gbps": link_gbps(platform.link, "measured"),
                "measured_is_derived": platform.link.measured_is_derived,
            }
        )
        results.append(
            answer(
                f"c2cserve.table2.{name}",
                ours,
                "Table 2 is an input (conf/hardware).",
                sample="in-sample",
            )
        )
    sizes = [r["cpu_mem_gb"] / r["hbm_gb"] for r in rows]
    rates = [r["link_measured_gbps"] for r in rows]
    caption = (
        "Each Superchip of the paper's Table 2: our value, the paper's below. Usable: the rate of "
        "one direction that a kernel gets in the link variant 'measured'; this report uses "
        f"'{context.link_variant}'."
    )
    assumptions = (
        "The cells are inputs (conf/hardware, transcribed from Table 2).",
        "The paper's C2C column adds up both directions; a kernel that reads weights uses one.",
        "The link has two variants: the datasheet's rate and the measured one.",
        "Only GH200's link was measured; GB200 gets GB300's share of the datasheet's rate, Rubin "
        "GH200's.",
    )
    return Computed(
        tables={"superchips": pa.Table.from_pylist(rows)},
        results=(*results, *_links(), *_capacity(experiment)),
        caption=caption,
        finding=f"Host memory is {min(sizes):.2g} to {max(sizes):.2g} times HBM, and a kernel "
        "reads it at "
        f"{min(rates):.0f} to {max(rates):.0f} GB/s",
        assumptions=assumptions,
    )


def _links() -> tuple[Result, ...]:
    c2c = load_platform("gh200").link.datasheet_gbps
    pcie = load_platform("h200_pcie5").link.datasheet_gbps
    note = "Datasheet numbers are inputs (conf/hardware)."
    return tuple(
        answer(claim_id, ours, note, sample="in-sample", link_variant="datasheet")
        for claim_id, ours in (
            ("c2cserve.intro.c2c_bw_per_direction", c2c),
            ("c2cserve.intro.pcie5_x16_bw", pcie),
            ("c2cserve.intro.c2c_over_pcie", c2c / pcie),
        )
    )


def _capacity(experiment: Superchips) -> tuple[Result, ...]:
    gh200 = load_platform(experiment.platforms[0])
    weights_gb = weight_bytes(load_spec(experiment.model)) / 1e9
    hbm_gb = gh200.gpu.hbm_bytes / 1e9
    note = f"Weights counted from the public config of {experiment.model}."
    return (
        answer("c2cserve.sec2.70b_weights", weights_gb, note, sample="identity"),
        answer(
            "c2cserve.sec2.gh200_hbm_lt_70b",
            {"hbm_gb": hbm_gb, "weights_gb": weights_gb, "fits": weights_gb <= hbm_gb},
            note,
            sample="identity",
        ),
    )
