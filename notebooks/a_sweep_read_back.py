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
# # A sweep, read back and plotted
#
# A sweep leaves one folder a run. `c2c.runs.collect` reads them into one table: the settings in
# which the runs differ, and the numbers of their summaries. `c2c collect
# <folder>` writes the same table as Parquet and CSV.

# %%
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
from IPython.display import Markdown

from c2c.runs import collect, settings_columns
from experiments.figures.style import RC

plt.style.use(RC)

folder = tempfile.mkdtemp()
sweep = [
    "catalog=dense", "mig=4x24gb", "workload=poisson", "workload.requests=150", "figures=false",
    "workload.rate_rps=0.5,2,6", "system=c2cserve,serverlessllm", f"out={folder}",
]  # fmt: skip
done = subprocess.run(  # noqa: S603 (our own command)
    [sys.executable, "-m", "c2c", "simulate", "-m", *sweep],
    capture_output=True, text=True, check=False,
)  # fmt: skip
assert done.returncode == 0, done.stderr

table = collect(folder)
print(settings_columns(table))
runs = table.to_pandas()
shown = ["system.name", "workload.rate_rps", "verdict", "binds", "ttft_p99_s", "attainment_both"]
runs[shown].sort_values(shown[:2])

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for system, own in runs.sort_values("workload.rate_rps").groupby("system.name"):
    for axis, column in zip(axes, ("ttft_p99_s", "tpot_p99_s"), strict=True):
        axis.plot(own["workload.rate_rps"], own[column], "o-", label=system)
        axis.set(xlabel="requests/s", ylabel=column)
for axis in axes:
    axis.set_ylim(bottom=0)
axes[0].legend()
axes[0].set_title("Time to first token")
axes[1].set_title("Time per output token")
plt.show()

assert len(runs) == 6
assert (runs["status"] == "complete").all()
fastest = runs["workload.rate_rps"].max()
at_most = runs[runs["workload.rate_rps"] == fastest].set_index("system.name")
served = runs[runs["verdict"] == "served"]
Markdown(
    f"**Found.** Of {len(runs)} runs {len(served)} are served. At {fastest:g} requests a second "
    "the p99 of TTFT is "
    + " and ".join(f"{at_most.ttft_p99_s[name]:.2f} s with {name}" for name in at_most.index)
    + ", and that of TPOT "
    + " and ".join(f"{1e3 * at_most.tpot_p99_s[name]:.0f} ms" for name in at_most.index)
    + "."
)
