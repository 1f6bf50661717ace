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
import io

import matplotlib.pyplot as plt
from IPython.display import Image, Markdown

from experiments.claims import brief, fidelity_rows, load_claims
from experiments.figure import Context, choose
from experiments.figures.style import BLUE, GREY, INK, RC, look

plt.style.use(RC)
context = Context(profile="quick", link_variant="measured", seeds=(0,))
(spec,) = choose("fig6")
computed = spec.compute(context)
with look():
    drawn = io.BytesIO()
    spec.drawing(computed.tables, computed.caption).savefig(drawn)
Image(drawn.getvalue(), width=900)

# %% [markdown]
# ## Claim by claim
#
# Filled bars are predictions: nothing was chosen with the printed value in view. Hollow bars had a
# constant, a structure or a load chosen so, or are arithmetic of public inputs. The reason of each
# missed prediction is printed.

# %%
rows = fidelity_rows(load_claims(), computed.results, frozenset())
answered = [row for row in rows if row.result is not None]
numbers = [row for row in answered if row.comparison.ratio is not None]
figure, axis = plt.subplots(figsize=(8, 0.4 * len(numbers) + 1.2), layout="constrained")
for y, row in enumerate(numbers):
    is_free = row.status == "out-of-sample"
    axis.barh(y, row.comparison.ratio - 1, left=1, color=BLUE if is_free else "none",
              edgecolor=BLUE, height=0.6)  # fmt: skip
    said = f"paper {brief(row.claim.value)}, ours {brief(row.result.ours)}"
    axis.annotate(said, (max(1.25, row.comparison.ratio), y), (4, 0), va="center", fontsize=8,
                  textcoords="offset points")  # fmt: skip
axis.axvspan(0.8, 1.2, color=GREY, alpha=0.2, linewidth=0)
axis.axvline(1, color=INK, linewidth=1)
axis.set_yticks(range(len(numbers)), [row.claim.id for row in numbers])
axis.invert_yaxis()
axis.set(xscale="log", xlim=(0.5, 60), xlabel="ours over the paper's (shaded: within 20 %)",
         title=f"Numbers of {spec.name}")  # fmt: skip
axis.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
axis.grid(visible=False)
plt.show()

for row in answered:
    if row.is_miss:
        print(f"{row.claim.id}: {row.why}\n")
assert {row.claim.id for row in answered} == {result.claim_id for result in computed.results}
free = [row for row in answered if row.status == "out-of-sample"]
farthest = max(numbers, key=lambda row: max(row.comparison.ratio, 1 / row.comparison.ratio))
Markdown(
    f"**Found.** Predictions of {spec.name} that agree with the paper: "
    f"{sum(bool(row.agrees) for row in free)} of {len(free)}. Of all {len(numbers)} numbers, "
    f"predicted or not, `{farthest.claim.id}` is the farthest, "
    f"at {farthest.comparison.ratio:.1f} times the printed {brief(farthest.claim.value)}."
)
