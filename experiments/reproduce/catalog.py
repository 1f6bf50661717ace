"""Every figure by name: what computes it, what draws it, and what its result depends on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from c2c.errors import SettingError
from experiments.c2cserve import (
    ablation_plus,
    alpha_map,
    anchors,
    every_system,
    fig2,
    fig4,
    fig5,
    fig6,
    fig8,
    fig9,
    fig12,
    fig12moe,
    fig13,
    fig14,
    fleets,
    left_out,
    one_service,
    plus_alpha,
    projection,
    replay,
    starts,
    table1,
    table2,
    takes,
    tornado,
    workload_map,
)
from experiments.c2cserve.context import PROFILES
from experiments.cocoserve import costs, host_copies, two_cards
from experiments.cocoserve import fig3 as fig3_memory
from experiments.cocoserve import fig6 as fig6_copies
from experiments.cocoserve import fig8 as fig8_systems
from experiments.cocoserve import fig9 as fig9_memory
from experiments.figures import (
    baselines,
    cocoserve_beyond,
    gemm,
    hardware,
    mixtures,
    prediction,
    sensitivity,
    serving,
    workload,
)
from experiments.figures import cocoserve as cocoserve_figures
from experiments.figures import every_system as every_system_figures
from experiments.figures import fleets as fleet_figures
from experiments.figures import medusa as medusa_figures
from experiments.figures import tessera as tessera_figures
from experiments.figures import workload_map as map_figures
from experiments.medusa import mechanism, switch, timeline, traces
from experiments.reproduce.spec import MODEL, SIMULATOR, FigureSpec
from experiments.reproduce.woven import WOVEN
from experiments.tessera import (
    arrivals,
    cluster,
    heterogeneity,
    network,
    offline,
    online,
    pipelining,
    switching,
)

__all__ = ["FIGURES", "choose"]

PAPER = "c2cserve"  # whose figures have plain names
FIGURES: dict[str, FigureSpec] = {
    spec.name: spec
    for spec in (
        FigureSpec(
            name="table1",
            title="Table 1: MIG layouts of GH200",
            compute=table1.compute,
            draw=hardware.draw_table1,
        ),
        FigureSpec(
            name="table2",
            title="Table 2: Superchips",
            compute=table2.compute,
            draw=hardware.draw_table2,
        ),
        FigureSpec(
            name="fig2",
            title="Fig. 2: workload",
            compute=fig2.compute,
            draw=workload.draw_fig2,
            packages=("c2c.workloads",),
            traces=(fig2.GENTD26,),
        ),
        FigureSpec(
            name="fig4",
            title="Fig. 4: GEMM dataflows over MIG layouts",
            compute=fig4.compute,
            draw=gemm.draw_fig4,
        ),
        FigureSpec(
            name="fig5",
            title="Fig. 5: GEMM shapes",
            compute=fig5.compute,
            draw=gemm.draw_fig5,
        ),
        FigureSpec(
            name="fig6",
            title="Fig. 6: interference on the link",
            compute=fig6.compute,
            draw=workload.draw_fig6,
        ),
        FigureSpec(
            name="fig8",
            title="Fig. 8: M tile of AsymGEMM",
            compute=fig8.compute,
            draw=gemm.draw_fig8,
        ),
        FigureSpec(
            name="fig9",
            title="Fig. 9: average TTFT and TPOT",
            compute=fig9.compute,
            draw=baselines.draw_fig9,
            packages=SIMULATOR,
        ),
        FigureSpec(
            name="fig10",
            title="Fig. 10: cold start",
            compute=starts.compute_cold,
            draw=serving.draw_fig10,
            packages=SIMULATOR,
        ),
        FigureSpec(
            name="fig11",
            title="Fig. 11: model switch",
            compute=starts.compute_switch,
            draw=serving.draw_fig11,
            packages=SIMULATOR,
        ),
        FigureSpec(
            name="fig12",
            title="Fig. 12: trace replay, dense models",
            compute=fig12.compute,
            draw=serving.draw_fig12,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="fig12moe",
            title="Fig. 12: trace replay, mixtures",
            compute=fig12moe.compute,
            draw=mixtures.draw_fig12_moe,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="fig13",
            title="Fig. 13: HybridGEMM in other systems",
            compute=fig13.compute,
            draw=baselines.draw_fig13,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="anchors",
            title="Public measurements beside the simulator's",
            compute=anchors.compute,
            draw=baselines.draw_anchors,
            packages=SIMULATOR,
        ),
        FigureSpec(
            name="fig14",
            title="Fig. 14: what each component is worth",
            compute=fig14.compute,
            draw=serving.draw_fig14,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="fleets",
            title="More models than slices (beyond the paper)",
            compute=fleets.compute,
            draw=fleet_figures.draw_fleets,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="ablation_plus",
            title="What each part of plus is worth (beyond the paper)",
            compute=ablation_plus.compute,
            draw=fleet_figures.draw_ablation_plus,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="one_service",
            title="One service on all slices (beyond the paper)",
            compute=one_service.compute,
            draw=fleet_figures.draw_one_service,
            packages=SIMULATOR,
            traces=(one_service.TRACE,),
        ),
        FigureSpec(
            name="plus.alpha",
            title="Alpha, chunk and placement by prediction (beyond the paper)",
            compute=plus_alpha.compute,
            draw=prediction.draw_plus_alpha,
            packages=SIMULATOR,
            traces=replay.TRACES,
        ),
        FigureSpec(
            name="projection",
            title="Section 9.5: later Superchips",
            compute=projection.compute,
            draw=hardware.draw_projection,
        ),
        FigureSpec(
            name="alpha_map",
            title="Best alpha (beyond the paper)",
            compute=alpha_map.compute,
            draw=gemm.draw_alpha_map,
        ),
        FigureSpec(
            name="medusa.fig8",
            title="MEDUSA, Figs. 1, 2, 7, 8, Table 1: loading phases",
            compute=timeline.compute,
            draw=medusa_figures.draw_timeline,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="medusa.fig9",
            title="MEDUSA, sections 4 to 6: graphs restored",
            compute=mechanism.compute,
            draw=medusa_figures.draw_restore,
            packages=("c2c.models", "c2c.systems"),
        ),
        FigureSpec(
            name="medusa.fig10",
            title="MEDUSA, Figs. 10, 11: tails of TTFT",
            compute=traces.compute,
            draw=medusa_figures.draw_traces,
            packages=(*SIMULATOR, "c2c.systems"),
            traces=(traces.LENGTHS,),
        ),
        FigureSpec(
            name="medusa.switch",
            title="MEDUSA under C2CServe's switch (beyond the papers)",
            compute=switch.compute,
            draw=medusa_figures.draw_switch,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.table2",
            title="CoCoServe, Tables 1, 2: modules and operations",
            compute=costs.compute,
            draw=cocoserve_figures.draw_costs,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.fig3",
            title="CoCoServe, Fig. 3: where memory ends",
            compute=fig3_memory.compute,
            draw=cocoserve_figures.draw_memory,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.fig11",
            title="CoCoServe, Fig. 11: out of memory, in time",
            compute=fig3_memory.compute_failures,
            draw=cocoserve_figures.draw_failures,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.fig8",
            title="CoCoServe, Fig. 8: beside HFT and vLLM",
            compute=fig8_systems.compute,
            draw=cocoserve_figures.draw_rates,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.fig9",
            title="CoCoServe, Figs. 2, 9: memory in use",
            compute=fig9_memory.compute,
            draw=cocoserve_figures.draw_used,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.fig10",
            title="CoCoServe, Fig. 10: instances",
            compute=fig8_systems.compute_instances,
            draw=cocoserve_figures.draw_instances,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.fig6",
            title="CoCoServe, Fig. 6: copies of layers",
            compute=fig6_copies.compute,
            draw=cocoserve_figures.draw_gains,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.host_copies",
            title="CoCoServe beyond: copies that read host memory",
            compute=host_copies.compute,
            draw=cocoserve_beyond.draw_host_copies,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="cocoserve.two_cards",
            title="Two cards: copies of layers and other ways (beyond the papers)",
            compute=two_cards.compute,
            draw=cocoserve_figures.draw_two_cards,
            packages=(*MODEL, "c2c.systems"),
        ),
        *WOVEN,
        FigureSpec(
            name="tessera.fig2",
            title="Tessera, Figs. 2, 3, Table I: kernels by GPU",
            compute=heterogeneity.compute,
            draw=tessera_figures.draw_heterogeneity,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="tessera.fig6",
            title="Tessera, Fig. 6, Table III: offline throughput",
            compute=offline.compute,
            draw=tessera_figures.draw_offline,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="tessera.fig7",
            title="Tessera, Fig. 7: latency over the rate",
            compute=online.compute,
            draw=tessera_figures.draw_online,
            packages=(*MODEL, "c2c.systems"),
            traces=(arrivals.TRACE,),
        ),
        FigureSpec(
            name="tessera.fig8",
            title="Tessera, Fig. 8: clusters",
            compute=cluster.compute,
            draw=tessera_figures.draw_cluster,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="tessera.fig9",
            title="Tessera, Fig. 9: pipelining",
            compute=pipelining.compute,
            draw=tessera_figures.draw_pipelining,
            packages=(*MODEL, "c2c.systems"),
        ),
        FigureSpec(
            name="tessera.fig10",
            title="Tessera, Fig. 10: the monitor",
            compute=switching.compute,
            draw=tessera_figures.draw_switching,
            packages=(*MODEL, "c2c.systems"),
            traces=(arrivals.TRACE,),
        ),
        FigureSpec(
            name="tessera.fig11",
            title="Tessera, Fig. 11: slow links, time to plan",
            compute=network.compute,
            draw=tessera_figures.draw_network,
            packages=(*MODEL, "c2c.systems"),
            traces=(arrivals.TRACE,),
        ),
        FigureSpec(
            name="workload_map",
            title="Which system for which workload (beyond the paper)",
            compute=workload_map.compute,
            draw=map_figures.draw_map,
            packages=SIMULATOR,
        ),
        FigureSpec(
            name="every_system",
            title="Goodput and attainment against load (beyond the papers)",
            compute=every_system.compute,
            draw=every_system_figures.draw_every_system,
            packages=(*SIMULATOR, "c2c.systems"),
        ),
        FigureSpec(
            name="tornado",
            title="What the headlines hang on",
            compute=tornado.compute,
            draw=sensitivity.draw_tornado,
            packages=SIMULATOR,
        ),
        FigureSpec(
            name="left_out",
            title="Each fitted figure left out in turn",
            compute=left_out.compute,
            draw=sensitivity.draw_left_out,
            packages=SIMULATOR,
        ),
        *(
            FigureSpec(
                name=f"takes.{figure}",
                title=f"What the misses of {figure} would take",
                compute=partial(takes.compute, figure=figure),
                draw=sensitivity.draw_takes,
                packages=SIMULATOR,
                traces=replay.TRACES,
                profiles=PROFILES if searched.quick else ("full",),
            )
            for figure, searched in takes.SEARCHED.items()
        ),
    )
}


def choose(figures: str | Sequence[str], profile: str = "full") -> tuple[FigureSpec, ...]:
    """Return the figures named, in the catalog's order.

    "all" means all that belong to the profile, a system's name all of its figures. C2CServe's need
    no prefix: "c2cserve.fig10" is "fig10".

    Raises:
      SettingError: a name that does not exist, or no name at all.
    """
    names = [figures] if isinstance(figures, str) else list(figures)
    names = [part.strip() for name in names for part in str(name).split(",") if part.strip()]
    names = [name.removeprefix(f"{PAPER}.") for name in names]
    systems = {PAPER, *(name.partition(".")[0] for name in FIGURES if "." in name)}
    allowed = f"all, or names among {', '.join((*sorted(systems), *FIGURES))}"
    if not names:
        raise SettingError("figures", figures, allowed)
    for name in names:
        if name not in ("all", *systems, *FIGURES):
            raise SettingError("figures", name, allowed)
    return tuple(
        spec
        for spec in FIGURES.values()
        if {*names} & {spec.name, spec.name.partition(".")[0] if "." in spec.name else PAPER}
        or ("all" in names and profile in spec.profiles)
    )
