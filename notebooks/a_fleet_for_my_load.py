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
# # A fleet for my load
#
# The cheapest fleet that serves a load: chips, layouts and systems compete, each with the fewest
# chips that keep 99 % of the requests within their targets. Two chips and two systems compete here;
# without `hardware=` and `system=` every chip with a price takes part. Prices are list prices of
# `conf/hardware`, where yours go too.

# %%
import contextlib
import tempfile
from pathlib import Path

from IPython.display import Markdown

from experiments import advise
from experiments.c2cserve.fleets import catalog

out = Path(tempfile.mkdtemp())
with contextlib.chdir(out):
    status = advise.main(
        [
            "workload=poisson", "workload.rate_rps=2", "workload.requests=1000", *catalog(16),
            "hardware=gh200,h100_sxm", "system=c2cserve_plus,aegaeon", "advise.seeds=[0,1]",
            "advise.most=8", "figures=false", "out=runs", "folder=answer",
        ]
    )  # fmt: skip
assert status == 0

# %%
Markdown((out / "answer" / "answer.md").read_text())
