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
# # A policy of my own
#
# The policy decides when a busy model gets another slice. It is a NamedTuple of numbers, its
# settings, and a function, its decision; `c2c/policies/scale.py` documents the function's
# arguments. A cell is enough to try it. In a folder of yours (`--config-dir`) every command finds
# it.

# %%
from typing import NamedTuple

import matplotlib.pyplot as plt
from IPython.display import Markdown

from c2c import Fleet, Workload, simulate
from c2c.policies import wants_another
from experiments.figures.style import BLUE, GREY, RC

plt.style.use(RC)


class Patient(NamedTuple):
    """Another slice where the work that waits would take longer than `seconds`, if it is full."""

    seconds: float = 1.0


@wants_another.by(Patient)
def patient(policy, outstanding, backlog_s, is_full):  # noqa: ARG001 (what all are given)
    return is_full and backlog_s > policy.seconds


# The class's name in small letters names the policy in settings; its fields are settings too.
hot = Fleet(system="c2cserve", mig="7x12gb", catalog__models=[{"spec": "llama-3-8b"}])
load = Workload("poisson", requests=250, rate_rps=10)
p99_s = {
    name: simulate(hot, load, system__scale=name).ttft.p99
    for name in ("one_instance", "at_backlog")
}
for seconds in (0.1, 1.0, 10.0):
    mine = simulate(hot, load, system__scale="patient", system__scale__seconds=seconds)
    p99_s[f"patient, {seconds:g} s"] = mine.ttft.p99

# %% [markdown]
# A mistake gives one line with the policy and its file, before anything long runs.

# %%
from c2c.errors import PolicyError


class Broken(NamedTuple):
    at: int = 4


@wants_another.by(Broken)
def broken(policy, outstanding, backlog_s, is_full):  # noqa: ARG001 (as above)
    return outstanding - policy.at  # a number where yes or no is asked for


try:
    simulate(hot, load, system__scale="broken")
except PolicyError as error:
    print(error)
else:
    raise AssertionError("it was not noticed")

# %% [markdown]
# ## The result

# %%
figure, axis = plt.subplots(figsize=(7.5, 2.6), layout="constrained")
bars = axis.barh(
    list(p99_s), list(p99_s.values()), color=[BLUE if "patient" in n else GREY for n in p99_s]
)
axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
axis.invert_yaxis()
axis.grid(visible=False)
axis.set(xlabel="TTFT p99 (s)", title="Another slice for a busy model (blue: my policy)")
plt.show()

mine = {name: seconds for name, seconds in p99_s.items() if "patient" in name}
best = min(mine, key=mine.get)
Markdown(
    f"**Found.** My policy is best as `{best}`: its p99 TTFT of {mine[best]:.2f} s is "
    f"{mine[best] / p99_s['at_backlog']:.2f} times that of the policy that C2CServe has, and "
    f"more patience costs up to {max(mine.values()) / mine[best]:.0f} times as much."
)
