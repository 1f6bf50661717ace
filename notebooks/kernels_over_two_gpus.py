# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Kernels over two unlike GPUs
#
# What does a pair of unlike GPUs gain, and which kernels go where? Tessera places the kernels of
# one model over both GPUs: each where it is relatively fast, while the link allows. The rivals use
# the same GPUs in other ways. All times are the cost model's; nothing was measured here.

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from c2c.cost.kernel_graph import Load, decoder, kernel_s, timed_gpus
from c2c.models import load_spec
from c2c.systems.tessera import ways
from experiments.figures.style import BLUE, GREY, ORANGE, RC

plt.style.use(RC)
pair = timed_gpus("a100_80", "l40s")  # any two files of conf/hardware
served = decoder(load_spec("llama-3-8b"), Load(prompt=1020, output=129, rows=64, prompts=4))
found = {way.name: way for way in ways(served, pair, gbps=25.0, latency_s=5e-6)}

figure, axis = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
rates = {name: way.requests_per_s for name, way in found.items()}
colours = [BLUE if name == "kernels" else GREY for name in rates]
bars = axis.barh(list(rates), list(rates.values()), color=colours)
axis.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
axis.invert_yaxis()
axis.grid(visible=False)
axis.set(xlabel="requests/s", title="Llama 3 8B on an A100 (left) and an L40S (right)")
plt.show()

# %% [markdown]
# `left` and `right` are one GPU alone, `replicas` two that serve apart, `layers` a pipeline,
# `limit` a bound of all placements. `c2c plan tessera pairs=[[a100_80,l40s]]` prints the same with
# prices.
#
# ## Which kernels go where
#
# A bar is one kind of kernel of a step: its time on the left GPU over its time on the right one.
# Kinds above 1 are faster on the right GPU. The colour is the share of them that the plan puts
# there.

# %%
plan = found["kernels"].plan
on_right = iter(plan.gpu_of)
kinds = {}  # (phase, kind) -> seconds on the left, on the right, kernels on the right, kernels
for phase in served.phases:
    for kernel in phase.kernels:
        seconds = [kernel_s(kernel, gpu) for gpu in pair]
        row = kinds.setdefault((phase.name, kernel.kind), np.zeros(4))
        row += [*seconds, next(on_right), 1]

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for axis, phase in zip(axes, served.phases, strict=True):
    whole = sum(row[0] for (name, _), row in kinds.items() if name == phase.name)
    mine = {
        kind: row for (name, kind), row in kinds.items()
        if name == phase.name and row[0] > 0.005 * whole
    }  # fmt: skip
    ordered = sorted(mine.items(), key=lambda item: item[1][0] / item[1][1])
    for kind, row in ordered:
        share = row[2] / row[3]
        colour = ORANGE if share == 1 else BLUE if share == 0 else GREY
        label = f"{kind} ({row[0] / whole:.0%} of the time)"
        (bar,) = axis.barh(label, row[0] / row[1], color=colour)
    axis.axvline(1.0, color="k", linewidth=0.8)
    axis.grid(visible=False)
    axis.set(xlabel="speed of the L40S over the A100's", title=f"{phase.name.capitalize()} step")
axes[1].legend(
    [plt.Rectangle((0, 0), 1, 1, color=c) for c in (BLUE, GREY, ORANGE)],
    ["on the A100", "on both", "on the L40S"], loc="lower right",
)  # fmt: skip
plt.show()

best_rival = max(
    (way for name, way in found.items() if name not in ("kernels", "limit")),
    key=lambda way: way.requests_per_s,
)
gain = found["kernels"].requests_per_s / best_rival.requests_per_s
decode = {kind: row for (name, kind), row in kinds.items() if name == "decode"}
stay = sum(row[0] for row in decode.values() if row[2] == 0) / sum(r[0] for r in decode.values())
prompts = [row for (name, _), row in kinds.items() if name == "prefill"]
moved = sum(r[0] * r[2] / r[3] for r in prompts) / sum(r[0] for r in prompts)
Markdown(
    f"**Found.** The pair serves {found['kernels'].requests_per_s:.1f} requests a second by "
    f"kernels, {gain:.2f} times as many as by {best_rival.name}, the best other way: {moved:.0%} "
    f"of a prompt's time moves to the L40S, and kernels with {stay:.0%} of a decode step's time "
    "stay on the A100, whose memory is faster."
)
