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
# # Mechanisms for my load
#
# The gain of each mechanism of the papers, alone and together, in the share of requests that meet
# both targets: sixteen models on one GH200. `make reproduce FIGURES=worth` adds bursts,
# conversations, larger fleets, price and energy.

# %%
import matplotlib.pyplot as plt
from IPython.display import Markdown

from c2c.config import build, load, simulate
from experiments.figures.style import RC
from experiments.papers.c2cserve.fleets import catalog
from experiments.papers.composed.sets import refusal, settings_of, shapley, subsets

plt.style.use(RC)

MECHANISMS = ("streamed", "kept", "turns", "restored")
LOAD = [
    "hardware=gh200", *catalog(16), "workload=poisson", "workload.rate_rps=2",
    "workload.requests=600",
]  # fmt: skip


def worth(names):
    """Return the share of requests within both targets, in percent."""
    summary = simulate(build(load([*LOAD, *settings_of(names)]))).summary
    return 100 * summary["attainment"]["both"]


worths = {names: worth(names) for names in subsets(MECHANISMS) if refusal(names) is None}
ordered = sorted(worths.items(), key=lambda pair: pair[1])
figure, axis = plt.subplots(figsize=(7, 0.3 * len(ordered) + 0.8), layout="constrained")
names = [" + ".join(n for n in MECHANISMS if n in chosen) or "none" for chosen, _ in ordered]
axis.barh(names, [percent for _, percent in ordered])
axis.set(xlabel="requests within both targets, %", title="Sets of mechanisms")
plt.show()

# %% [markdown]
# A mechanism's Shapley value is its mean gain over all orders in which the mechanisms are added. A
# mechanism adds nothing to a set in which it cannot work. The values add up to the gain of all
# mechanisms together.

# %%
shares = shapley(worths)
none, every = worths[frozenset()], worths[frozenset(MECHANISMS)]
assert abs(sum(shares.values()) - (every - none)) < 1e-6
best, worst = max(shares, key=shares.get), min(shares, key=shares.get)
figure, axis = plt.subplots(figsize=(7, 2), layout="constrained")
bars = axis.barh(sorted(shares, key=shares.get), sorted(shares.values()))
axis.bar_label(bars, fmt="%+.1f", padding=3, fontsize=8)
axis.axvline(0, color="k", linewidth=0.8)
axis.grid(visible=False)
axis.set(xlabel="percentage points", title=f"`{best}` is worth most (Shapley values)")
axis.margins(x=0.1)
plt.show()

Markdown(
    f"**Found.** All mechanisms together take the share of requests within both targets from "
    f"{none:.1f} to {every:.1f} %: `{best}` adds {shares[best]:+.1f} points, `{worst}` "
    f"{shares[worst]:+.1f}. The best set is {' + '.join(sorted(ordered[-1][0]))}, with "
    f"{ordered[-1][1]:.1f} %."
)
