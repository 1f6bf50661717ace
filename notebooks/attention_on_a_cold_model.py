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
# # Attention on a cold model's device
#
# WEAVER keeps part of a hot model's KV cache on the device of a cold model, which computes
# attention there between its own operators. Cuts of the cold model's operators shorten the hot
# model's stall. `make reproduce FIGURES=weaver` has the paper's figures, `c2c try
# weaver` runs a hot and a cold model live in two processes. No kernel of it has
# run on a GPU.

# %%
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from c2c.systems.weaver import Limits, Threshold, best_cut, expected_stall, guarded_cut
from experiments.figure import Context, choose
from experiments.figures.style import RC

plt.style.use(RC)

# %% [markdown]
# ## The stall of a layer
#
# A task arrives during an operator of T seconds with a probability proportional to T, and waits for
# the operator's end. The sender has K seconds of attention of its own meanwhile; the receiver needs
# N seconds for the task.

# %%
ops = np.array([961.0, 210.0, 110.0, 60.0])  # microseconds
draws = np.random.default_rng(0)
slacks = np.linspace(-100, 400, 26)
waits = draws.uniform(0.0, draws.choice(ops, size=200_000, p=ops / ops.sum()))
expected = np.array([expected_stall(ops, slack) for slack in slacks])
drawn = np.array([np.maximum(0, waits - slack).mean() for slack in slacks])
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(slacks, expected, label="closed form")
axis.plot(slacks, drawn, "k:", label="200,000 draws")
axis.set(xlabel="K - N (us)", ylabel="stall of a layer (us)", title="Mean stall, by slack")
axis.legend()
plt.show()

assert np.allclose(expected, drawn, rtol=0.02, atol=1.0)

# %% [markdown]
# ## Cuts
#
# The paper's Algorithm 1 with guards halves the longest piece while the stall exceeds its
# threshold. Ours minimises a weighted sum of the hot model's and the cold model's time per token.

# %%
limits = Limits(least_s=20.0, split_s=3.0, poll_s=2.0)  # here in microseconds
for name, cut in (
    ("guarded", guarded_cut(ops, 50.0, Threshold(seconds=20.0, of="layer"), limits)),
    ("ours", best_cut(ops, 50.0, layers=32, weight=0.1, limits=limits)),
):
    stall, cost = expected_stall(cut.lengths, 50.0), sum(cut.lengths) / ops.sum() - 1
    print(f"{name:8s} {cut.splits:2d} splits, stall {stall:6.1f} us, cold step {cost:+.1%}")

# %% [markdown]
# ## Receivers with free memory
#
# A cold model of C2CServe reads its weights from host memory. Its slice has nearly all of its
# memory free for the hot model's keys and values, while its operators wait for the link and are
# long. Without cuts the stalls cost more than the memory gains.

# %%
context = Context(profile="quick", link_variant="measured", seeds=(0,))
(spec,) = choose("weaver.cold_slices")
best = spec.compute(context).tables["best"].to_pandas()
best = best[best.load == 1.0]  # the cold models decode all the time
layouts = list(dict.fromkeys(zip(best.mig, best.receivers, strict=True)))
figure, axis = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
rates = {}
for k, cut in enumerate(("none", "best")):
    mine = best[best.cut == cut].set_index(["mig", "receivers"])
    rates[cut] = [mine.tokens_per_s[layout] for layout in layouts]
    x = np.arange(len(layouts)) + 0.4 * (k - 0.5)
    bars = axis.bar(x, rates[cut], 0.38, label={"none": "without cuts", "best": "with cuts"}[cut])
    axis.bar_label(bars, [f"{100 * mine.ratio[one]:.0f} % away" for one in layouts], fontsize=7)
axis.set_xticks(range(len(layouts)), [f"{mig}, {n} cold slices" for mig, n in layouts])
axis.set(ylabel="hot tokens/s", title="A hot model with its KV cache on busy cold slices")
axis.legend(loc="upper left")
plt.show()

gains = np.array(rates["best"]) / rates["none"]
Markdown(
    "**Found.** With cold models that decode all the time, cuts give the hot model "
    f"{gains.min():.2f} to {gains.max():.2f} times the tokens a second, most on "
    f"{layouts[gains.argmax()][0]} (cold slices: {layouts[gains.argmax()][1]})."
)
