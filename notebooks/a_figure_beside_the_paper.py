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
# # A figure of a paper beside ours
#
# Does a figure come out as printed, and if not, why? Any figure of the five papers: put its name in
# place of `fig6`. `fig2`, `fig4`, `fig6`, `fig9`, `fig10`, `fig11`, `medusa.fig8`, `tessera.fig2`,
# `cocoserve.table2` and `weaver.fig4` take seconds, the others up to minutes. `make reproduce
# FIGURES=all` makes all of them into one page.

# %%
from experiments.claims import fidelity_rows, load_claims
from experiments.claims.fidelity import brief
from experiments.figure import Context, choose
from experiments.figures.style import look

context = Context(profile="quick", link_variant="measured", seeds=(0,))
(spec,) = choose("fig6")
computed = spec.compute(context)
with look():
    drawn = spec.drawing(computed.tables, computed.caption)
drawn

# %% [markdown]
# ## Claim by claim
#
# *out-of-sample* rows are predictions. A row is *in-sample* if a constant, a structure or a load
# was chosen with the printed value in view, and an *identity* if it is arithmetic of public inputs.

# %%
rows = fidelity_rows(load_claims(), computed.results, frozenset())
answered = [row for row in rows if row.result is not None]
print(f"{'claim':40s}{'paper':>22s}{'ours':>22s}  agrees  sample")
for row in answered:
    paper, ours = brief(row.claim.value)[:20], brief(row.result.ours)[:20]
    agrees = "yes" if row.agrees else "NO"
    print(f"{row.claim.id:40s}{paper:>22s}{ours:>22s}  {agrees:6s}  {row.status}")
    if row.is_miss:
        print(f"    {row.why}")
assert {row.claim.id for row in answered} == {result.claim_id for result in computed.results}

# %% [markdown]
# ## The smallest change that mends a miss
#
# The search scales one number of the chip or of the cost model at a time, in a copy of the
# settings' files, and computes the figure again. These six numbers matter most.

# %%
from experiments.sensitivity import LIMIT, Search, chip_knobs, constant_knobs

wanted = ("link rate", "HBM rate", "SMs", "link_efficiency", "mma_efficiency", "prefill_efficiency")
knobs = [knob for knob in (*chip_knobs(), *constant_knobs()) if knob.name in wanted]
for miss in Search(compute=lambda: spec.compute(context).results, knobs=knobs).missed():
    print(f"{miss.claim_id}: {miss.matter} of {miss.tried} numbers change it")
    for change in miss.changes[:3]:
        print(f"    {change.knob} x {change.factor:.3g}: {change.before:.4g} -> {change.after:.4g}")
        assert 1 / LIMIT <= change.factor <= LIMIT
    if not miss.changes:
        print("    none of them alone")
