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
# # Which system for which workload
#
# How many models share one Superchip, and how busy they are, decides which system serves them
# best. Three systems here, two catalogs and two loads, 400 requests each; the whole map, with
# bursts, other chips, host memory and every system, is `make reproduce
# FIGURES=workload_map,fleets,every_system`.

# %%
import matplotlib.pyplot as plt

from c2c.config import build, load, simulate
from experiments.c2cserve.fleets import catalog
from experiments.c2cserve.measures import measures

SYSTEMS = {
    "C2CServe": "system=c2cserve",
    "plus (ours)": "system=c2cserve_plus",
    "ServerlessLLM": "system=serverlessllm",
}
MODELS, RATES_RPS = (2, 16), (0.25, 2.0)
served = {
    (models, rate, name): measures(
        simulate(
            build(
                load(
                    [
                        "hardware=gh200", system, *catalog(models), "workload=poisson",
                        f"workload.rate_rps={rate}", "workload.requests=400",
                    ]
                )
            )
        )
    )
    for models in MODELS
    for rate in RATES_RPS
    for name, system in SYSTEMS.items()
}  # fmt: skip

# %% [markdown]
# ## Both targets met
#
# TTFT within 1 s, TPOT within 0.15 s (Llama-3 3B) and 0.3 s (8B). ServerlessLLM has one model at
# a time on the whole GPU: two models that are asked for now and then are served well, sixteen are
# a queue of starts.

# %%
print(f"{'models':>7s}{'rate':>6s}  " + "".join(f"{name:>16s}" for name in SYSTEMS))
for models in MODELS:
    for rate in RATES_RPS:
        met = [served[models, rate, name]["both_percent"] for name in SYSTEMS]
        print(f"{models:7d}{rate:6.2f}  " + "".join(f"{m:14.1f} %" for m in met))

busy = {name: served[16, 2.0, name] for name in SYSTEMS}
assert busy["C2CServe"]["both_percent"] > busy["ServerlessLLM"]["both_percent"]

# %% [markdown]
# ## What it costs
#
# Weights that stay in host memory are read over the link for every token: a request takes longer on
# C2CServe than on a GPU that has its model in HBM.

# %%
figure, panels = plt.subplots(1, 2, figsize=(8.5, 3.4), layout="constrained")
for axes, column, label in zip(
    panels, ("ttft_p95_s", "tpot_p50_s"), ("TTFT, p95 (s)", "TPOT, median (s)"), strict=True
):
    for k, name in enumerate(SYSTEMS):
        values = [served[models, rate, name][column] for models in MODELS for rate in RATES_RPS]
        axes.bar([x + 0.27 * (k - 1) for x in range(4)], values, 0.25, label=name)
    ticks = [f"{models} models\n{rate:g}/s" for models in MODELS for rate in RATES_RPS]
    axes.set_xticks(range(4), ticks)
    axes.set(yscale="log", title=label)
panels[0].legend()
plt.show()

quiet = {name: served[2, 0.25, name] for name in SYSTEMS}
assert quiet["C2CServe"]["tpot_p50_s"] > quiet["ServerlessLLM"]["tpot_p50_s"]
