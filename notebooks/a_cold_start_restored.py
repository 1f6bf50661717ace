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
# # A cold start with materialised state
#
# What does a cold start cost with and without materialised state? MEDUSA keeps the size of the KV
# cache and the CUDA graphs of an engine's first start, and restores them at later ones.
# `system.start=medusa` gives its start to any system. Seconds follow from the stages of one model
# that the paper printed (`conf/starts/a100_40_vllm.yaml`); nothing was measured here.

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from c2c import Fleet, Workload, simulate
from c2c.models import load_spec
from c2c.systems.medusa import load_measured_start, loading_s, plan_of, schedule, stages_of
from experiments.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RC, VERMILION

plt.style.use(RC)
measured = load_measured_start()
stages = {
    name: stages_of(load_spec(name), measured)
    for name in ("qwen1.5-0.5b", "qwen1.5-4b", "llama-2-7b", "llama-2-13b")
}

# %% [markdown]
# ## One start, stage by stage
#
# vLLM runs its stages one after the other. MEDUSA reads the KV cache's size from a record, so that
# the weights load beside the tokenizer and the first layer, and restores the graphs.

# %%
shown = {
    "structure": GREY, "weights": BLUE, "tokenizer": GREEN, "kv_profile": ORANGE,
    "kv_restore": ORANGE, "first_layer": PURPLE, "capture": VERMILION, "restore": VERMILION,
}  # fmt: skip
figure, axis = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
rows = [(start, unit) for start in ("medusa", "vllm") for unit in ("gpu", "cpu", "disk")]
for start in ("vllm", "medusa"):
    for span in schedule(plan_of(start, stages["llama-2-7b"])):
        row = rows.index((start, next(iter(span.stage.draws))))
        axis.barh(row, span.end_s - span.begin_s, 0.8, span.begin_s, color=shown[span.stage.name])
axis.set_yticks(range(len(rows)), [f"{start}, {unit}" for start, unit in rows])
axis.set(xlabel="seconds", title="Start of Llama 2 7B on an A100, by unit")
axis.grid(visible=False)
words = {"structure": GREY, "weights": BLUE, "tokenizer": GREEN, "KV cache": ORANGE,
         "first layer": PURPLE, "graphs": VERMILION}  # fmt: skip
axis.legend([plt.Rectangle((0, 0), 1, 1, color=c) for c in words.values()], words,
            loc="center left", bbox_to_anchor=(1, 0.5))  # fmt: skip
plt.show()

# %% [markdown]
# ## On a load
#
# Ten models on one A100, whose HBM holds one at a time, so that most requests need a start. Only
# the start differs between the runs.

# %%
fleet = Fleet(
    hardware="a100_40", mig="1x40gb", system="serverlessllm", weights_start="disk",
    catalog__models=[{"spec": "qwen1.5-4b", "copies": 10}],
)  # fmt: skip
load = Workload("poisson", rate_rps=0.1, requests=200)
p50_s = {
    way: simulate(fleet, load, system__start=f"medusa/{way}").ttft.p50 for way in ("vllm", "medusa")
}
print({way: f"median TTFT {seconds:.2f} s" for way, seconds in p50_s.items()})

# %% [markdown]
# ## By model
#
# A start without graphs is short too, but every later token pays for it: its kernels are launched
# one by one.

# %%
ways = {"vllm": BLUE, "no_graph": GREY, "medusa": VERMILION}
starts = {way: np.array([loading_s(way, s) for s in stages.values()]) for way in ways}
figure, axis = plt.subplots(figsize=(7.5, 3), layout="constrained")
for k, (way, colour) in enumerate(ways.items()):
    x = np.arange(len(stages)) + 0.27 * (k - 1)
    bars = axis.bar(x, starts[way], 0.25, color=colour, label=way)
    axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
axis.set_xticks(range(len(stages)), list(stages))
axis.set(ylabel="loading phase (s)", title="Loading phase by model")
axis.legend()
plt.show()

saved = 1 - starts["medusa"] / starts["vllm"]
Markdown(
    f"**Found.** Materialised state takes {saved.min():.0%} to {saved.max():.0%} off the loading "
    f"phase of these models, most of {list(stages)[int(saved.argmax())]}'s, and on the load it "
    f"shortens the median TTFT from {p50_s['vllm']:.1f} to {p50_s['medusa']:.1f} s."
)
