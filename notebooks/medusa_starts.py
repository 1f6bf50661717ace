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
# # MEDUSA: published values beside ours
#
# What the loading phase of a start is made of, and what is left of it if KV cache and CUDA graphs
# are restored instead of profiled and captured (Figures 1, 2, 7 and 8, Table 1). The tails of
# TTFT and the restored graphs themselves are `make reproduce FIGURES=medusa`.

# %%
from experiments.claims import fidelity_rows, load_claims
from experiments.claims.fidelity import brief
from experiments.figure import Context
from experiments.figures import medusa as figures
from experiments.figures.style import look
from experiments.medusa import switch, timeline

context = Context(profile="quick", link_variant="measured", seeds=(0,))
loading = timeline.compute(context)

# %% [markdown]
# ## Claim by claim
#
# The stages of one model, Qwen1.5 4B, are inputs (*in-sample*). The other nine follow from the size
# and the layers of each.

# %%
rows = fidelity_rows(load_claims(), loading.results, frozenset())
for row in rows:
    if row.result is not None and row.status == "out-of-sample":
        agrees = "yes" if row.agrees else "NO"
        short = row.claim.id.removeprefix("medusa.")
        print(f"{short:28s}{brief(row.claim.value):>14s}{brief(row.result.ours):>14s}  {agrees}")
        if row.is_miss:
            print(f"    {row.why}")
answered = {row.claim.id: row for row in rows if row.result is not None}
assert answered["medusa.abstract.loading_reduction"].agrees

# %%
with look():
    drawn = figures.draw_timeline(loading.tables, loading.caption)
drawn

# %% [markdown]
# ## Under C2CServe's switch
#
# C2CServe's printed switch has no graphs to make. With graphs they come on top, captured or
# restored; beyond both papers.

# %%
switched = switch.compute(context)
seconds = {(r["row"], r["model"]): r["switch_s"] for r in switched.tables["switch"].to_pylist()}
for (row, model), took_s in seconds.items():
    print(f"{row:30s}{model:14s}{took_s:7.2f} s")
for model in switch.MODELS:
    captured, restored = (
        seconds[f"C2CServe, {how}", model] for how in ("graphs captured", "MEDUSA")
    )
    assert restored < captured
