"""WEAVER's figures."""

from __future__ import annotations

from experiments.figures import weaver as weaver_figures
from experiments.reproduce.spec import MODEL, SIMULATOR, FigureSpec
from experiments.weaver import cold_slices as woven_cold_slices
from experiments.weaver import fig4 as fig4_woven
from experiments.weaver import fig5 as fig5_woven
from experiments.weaver import fig6 as fig6_woven
from experiments.weaver import fig7 as fig7_woven
from experiments.weaver import model as woven_model
from experiments.weaver import table1 as table1_woven
from experiments.weaver.served import TRACE as WOVEN_TRACE

__all__ = ["WOVEN"]

WOVEN = (
    FigureSpec(
        name="weaver.model",
        title="WEAVER, Sections 3 and 4.2: payload, stalls, lengths",
        compute=woven_model.compute,
        draw=weaver_figures.draw_stalls,
        packages=(*MODEL, "c2c.systems"),
        traces=(WOVEN_TRACE,),
    ),
    FigureSpec(
        name="weaver.table1",
        title="WEAVER, Table 1: tensor parallelism",
        compute=table1_woven.compute,
        draw=weaver_figures.draw_table1,
        packages=(*MODEL, "c2c.systems"),
    ),
    FigureSpec(
        name="weaver.fig4",
        title="WEAVER, Fig. 4: TPOT by the hot rate, memory",
        compute=fig4_woven.compute,
        draw=weaver_figures.draw_rates,
        packages=(*SIMULATOR, "c2c.systems"),
        traces=(WOVEN_TRACE,),
    ),
    FigureSpec(
        name="weaver.fig5",
        title="WEAVER, Fig. 5: ratios of rates and of sequences",
        compute=fig5_woven.compute,
        draw=weaver_figures.draw_shares,
        packages=(*SIMULATOR, "c2c.systems"),
        traces=(WOVEN_TRACE,),
    ),
    FigureSpec(
        name="weaver.fig6",
        title="WEAVER, Fig. 6: long outputs",
        compute=fig6_woven.compute,
        draw=weaver_figures.draw_long,
        packages=(*SIMULATOR, "c2c.systems"),
    ),
    FigureSpec(
        name="weaver.fig7",
        title="WEAVER, Fig. 7(a): control and cuts",
        compute=fig7_woven.compute,
        draw=weaver_figures.draw_ablation,
        packages=(*SIMULATOR, "c2c.systems"),
        traces=(WOVEN_TRACE,),
    ),
    FigureSpec(
        name="weaver.cold_slices",
        title="WEAVER beyond the paper: receivers are cold slices of a GH200",
        compute=woven_cold_slices.compute,
        draw=weaver_figures.draw_cold_slices,
        packages=(*MODEL, "c2c.systems"),
    ),
)
