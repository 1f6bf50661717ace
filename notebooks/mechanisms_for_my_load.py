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

from c2c.config import build, load, simulate
from experiments.c2cserve.fleets import catalog
from experiments.composed.sets import refusal, settings_of, shapley, subsets

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
for name, points in sorted(shares.items(), key=lambda pair: -pair[1]):
    print(f"{points:+6.1f} points  {name}")
assert abs(sum(shares.values()) - (worths[frozenset(MECHANISMS)] - worths[frozenset()])) < 1e-6
