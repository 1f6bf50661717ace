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
# # My own trace on three systems
#
# A trace is a CSV or Parquet file with one row a request: arrival, model, and the lengths of prompt
# and answer in tokens. This cell writes one; put the path of yours in its place. Each model of the
# trace is a deployment; those that the catalog does not name have its specs in turn.

# %%
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from c2c import Fleet, Workload, simulate
from experiments.figures.style import BLUE, GREEN, GREY, ORANGE, RC

plt.style.use(RC)
rng = np.random.default_rng(0)
trace = Path(tempfile.mkdtemp()) / "mine.csv"
with trace.open("w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["arrival_s", "model", "prompt_tokens", "output_tokens"])
    for arrival_s in np.cumsum(rng.exponential(0.8, 300)):
        service = "chat" if rng.random() < 0.6 else f"service-{rng.integers(5)}"
        rows.writerow([arrival_s, service, rng.integers(20, 600), rng.integers(20, 200)])

results = {
    system: simulate(
        Fleet(system=system, catalog="dense6", mig="4x24gb"), Workload("file", path=trace)
    )
    for system in ("c2cserve_plus", "c2cserve", "serverlessllm")
}
results["serverlessllm"]  # a table and pictures

# %% [markdown]
# ## Verdicts
#
# A verdict says whether the requests met their targets, and names the bottleneck if they did not.

# %%
for system, result in results.items():
    print(system, *result.summary["verdict"]["text"], sep="\n  ")

# %% [markdown]
# ## TTFT of each request

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (system, result), colour in zip(results.items(), (BLUE, GREEN, ORANGE), strict=True):
    table = result.requests.to_pandas()
    axis.ecdf((table.first_token_s - table.arrival_s).dropna(), label=system, color=colour)
axis.axvline(1.0, color=GREY, linestyle="--", linewidth=1, label="target")
axis.set(xscale="log", xlabel="TTFT (s)", ylabel="share of the requests", title="My trace")
axis.legend()
plt.show()

verdicts = {system: result.summary["verdict"] for system, result in results.items()}
assert verdicts["c2cserve_plus"]["state"] == "served"
late = {name: result.ttft.p95 for name, result in results.items()}
assert late["c2cserve_plus"] < late["serverlessllm"]
Markdown(
    "**Found.** Both targets are met by "
    + ", ".join(f"{100 * v['met']:.1f} % of the requests with {s}" for s, v in verdicts.items())
    + f". One request in twenty waits longer than {late['c2cserve_plus']:.2f} s for its first "
    f"token with the first, longer than {late['serverlessllm']:.1f} s with the last."
)
