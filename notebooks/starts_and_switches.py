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
# # Cold starts and switches: published values beside ours
#
# Figures 10 and 11 of C2CServe: one request for a model on disk, and a model in host memory onto a
# slice that ran another one. Most of Fig. 11's numbers are inputs of ours; what is left to predict
# is how they add up to a cold start, and what Aegaeon takes.

# %%
from experiments.c2cserve import starts
from experiments.claims import fidelity_rows, load_claims
from experiments.claims.fidelity import brief
from experiments.figure import Context
from experiments.figures import serving
from experiments.figures.style import look

context = Context(profile="quick", link_variant="measured", seeds=(0,))
cold, switch = starts.compute_cold(context), starts.compute_switch(context)

# %% [markdown]
# ## Claim by claim
#
# *in-sample*: a constant or a structure was chosen with the printed value in view.

# %%
rows = fidelity_rows(load_claims(), (*switch.results, *cold.results), frozenset())
shown = [row for row in rows if row.comparison is not None]
print(f"{'claim':34s}{'paper':>20s}{'ours':>20s}  agrees  sample")
for row in shown:
    short = row.claim.id.removeprefix("c2cserve.")
    ours = "" if row.result is None else brief(row.result.ours)
    agrees = "yes" if row.agrees else "NO"
    print(f"{short:34s}{brief(row.claim.value):>20s}{ours:>20s}  {agrees:6s}  {row.status}")
assert sum(row.is_miss for row in shown) <= 1
for row in shown:
    if row.is_miss:
        print(f"\n{row.claim.id}: {row.why}")

# %%
with look():
    drawn = [
        serving.draw_fig10(cold.tables, cold.caption),
        serving.draw_fig11(switch.tables, switch.caption),
    ]
drawn[0]

# %%
drawn[1]

# %% [markdown]
# ## What a cold start is made of
#
# Reading the checkpoint from disk and starting a runtime are the same for all systems that do both;
# so the printed speed-ups hang on a disk rate that the paper does not print.

# %%
for row in cold.tables["cold"].to_pylist():
    first = row["ttft_s"] - row["start_s"]
    print(
        f"{row['model']:16s}{row['system']:16s}start {row['start_s']:7.2f} s, then {first:6.3f} s"
    )
    assert row["start_s"] > first >= 0.0
