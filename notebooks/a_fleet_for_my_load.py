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
# chips that keep 99 % of the requests within their targets. All layouts of two chips compete here,
# with one system; without `hardware=` and `system=` every chip with a price and four systems take
# part. Prices are list prices of `conf/hardware`, where yours go too.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.display import Markdown

from experiments.figures.style import BLUE, ORANGE, RC
from experiments.papers.c2cserve.fleets import catalog

plt.style.use(RC)
folder = Path(tempfile.mkdtemp())
done = subprocess.run(  # noqa: S603 (our own command)
    [
        sys.executable, "-m", "c2c", "advise", "workload=poisson", "workload.rate_rps=2",
        "workload.requests=600", *catalog(16), "hardware=gh200,l40s", "system=c2cserve_plus",
        "advise.seeds=[0]", "advise.most=8", "figures=false", f"out={folder / 'runs'}",
        f"folder={folder / 'answer'}",
    ],
    capture_output=True, text=True, check=False,
)  # fmt: skip
assert done.returncode == 0, done.stderr
fleets = json.loads((folder / "answer" / "answer.json").read_text())["fleets"]

# %% [markdown]
# A bar is the load that a fleet still serves, as a multiple of this one (tried up to 8).
# `answer.md` in the folder of the answer has the command that replays each fleet.

# %%
names = [
    f"{fleet['usd_per_hour']:.2f} USD/h, {fleet['chips']} x {fleet['params']['hardware']} "
    f"as {fleet['params']['mig']}"
    for fleet in fleets
]
figure, axis = plt.subplots(figsize=(8, 0.4 * len(fleets) + 1), layout="constrained")
for chip, colour in (("gh200", BLUE), ("l40s", ORANGE)):
    mine = [k for k, fleet in enumerate(fleets) if fleet["params"]["hardware"] == chip]
    axis.barh(mine, [fleets[k]["serves_load"] for k in mine], color=colour, label=chip)
axis.axvline(1, color="k", linewidth=0.8)
axis.set_yticks(range(len(names)), names)
axis.invert_yaxis()
axis.grid(visible=False)
axis.set(xlabel="load that it serves, times this one", title="Fleets that serve, cheapest first")
axis.legend()
plt.show()

best = fleets[0]
other = next(f for f in fleets if f["params"]["hardware"] != best["params"]["hardware"])
Markdown(
    f"**Found.** The cheapest fleet is {best['chips']} x {best['params']['hardware']} as "
    f"{best['params']['mig']}: {best['usd_per_hour']:.2f} USD an hour, "
    f"{100 * best['met']:.1f} % of the requests on target, room for {best['serves_load']:g} times "
    f"the load. With {other['params']['hardware']} it takes {other['chips']} chips and "
    f"{other['usd_per_hour'] / best['usd_per_hour']:.1f} times the price."
)
