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
