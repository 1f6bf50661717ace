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
# # Which mechanisms, and which fleet
#
# Two questions. What is each mechanism of the five papers worth for my load, alone and together?
# And which fleet serves it for least money? Here sixteen models on one GH200; the whole answer to
# the first, with bursts, conversations and larger fleets, is `make reproduce FIGURES=worth`.

# %%
from IPython.display import Markdown

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
for names, percent in sorted(worths.items(), key=lambda pair: -pair[1]):
    print(f"{percent:6.1f} %  {' + '.join(n for n in MECHANISMS if n in names) or 'none of them'}")

# %% [markdown]
# A mechanism's Shapley value is its mean gain over all orders in which the mechanisms come; what
# cannot work in a set adds nothing to it. The values add up to what all of them gain together.

# %%
shares = shapley(worths)
for name, points in sorted(shares.items(), key=lambda pair: -pair[1]):
    print(f"{points:+6.1f} points  {name}")
assert abs(sum(shares.values()) - (worths[frozenset(MECHANISMS)] - worths[frozenset()])) < 1e-6

# %% [markdown]
# ## The cheapest fleet
#
# Chips, layouts and systems race, each kind with the fewest chips that keep 99 % of the requests
# within their targets. Two chips and two systems here; without these words every chip that has a
# price takes part.

# %%
import tempfile
from pathlib import Path

from experiments import advise

out = Path(tempfile.mkdtemp())
status = advise.main(
    [
        "workload=poisson", "workload.rate_rps=2", "workload.requests=1000", *catalog(16),
        "hardware=gh200,h100_sxm", "system=c2cserve_plus,aegaeon", "advise.seeds=[0,1]",
        "advise.most=8", "figures=false", f"out={out}", f"folder={out / 'answer'}",
    ]
)  # fmt: skip
assert status == 0

# %% [markdown]
# The page of the answer: prices are list prices of `conf/hardware`, and yours go there.

# %%
Markdown((out / "answer" / "answer.md").read_text())
