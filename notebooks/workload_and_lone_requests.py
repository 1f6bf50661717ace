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
# # The workload, and a lone request: published values beside ours
#
# Figures 2 and 9 of C2CServe: how bursty and how idle the models of a fleet are, and what TTFT and
# TPOT one request sees whose engine is there.

# %%
from experiments.c2cserve import fig2
from experiments.c2cserve.baselines import DENSE, NAMES, serve_alone
from experiments.claims import claim, fidelity_rows, load_claims
from experiments.claims.fidelity import brief
from experiments.figure import Context
from experiments.figures import workload
from experiments.figures.style import look

context = Context(profile="quick", link_variant="measured", seeds=(0,))
statistics = fig2.compute(context)

# %% [markdown]
# ## Fig. 2
#
# Here the generator's trace, whose curves were set to the published statistics (*in-sample*, or
# an *identity* where the number is arithmetic of the public file); with
# `make reproduce FIGURES=fig2` and the public trace at hand, the trace itself.

# %%
for row in fidelity_rows(load_claims(), statistics.results, frozenset()):
    if row.result is not None:
        print(
            f"{row.claim.id:34s} paper {brief(row.claim.value):42s} ours {brief(row.result.ours)}"
        )
        assert row.status in ("identity", "in-sample")

# %%
with look():
    drawn = workload.draw_fig2(statistics.tables, statistics.caption)
drawn

# %% [markdown]
# ## Fig. 9, dense models
#
# A request alone, engine there: C2CServe's weights come over the link for every token, those of
# the others lie in HBM. The paper prints equal TPOT, which Table 2's own rates do not allow.

# %%
systems = ("c2cserve", "serverlessllm", "aegaeon")
alone = {
    (model, system): serve_alone(context, model, system, output=16, requests=1)
    for model in DENSE
    for system in systems
}
for (model, system), got in alone.items():
    print(
        f"{model:12s}{NAMES[system]:16s}TTFT {got.ttft_s:6.3f} s   TPOT {1e3 * got.tpot_s:6.1f} ms"
    )

# %%
ratio = sum(alone[m, "c2cserve"].tpot_s for m in DENSE) / sum(
    alone[m, "serverlessllm"].tpot_s for m in DENSE
)
printed = claim("c2cserve.fig9.dense.tpot_vs_sllm").value
print(f"TPOT over ServerlessLLM's: {ratio:.1f} here, {printed:g} printed")
assert 4.0 < ratio < 12.0  # HBM is 4,000 GB/s, the link 375, and a kernel draws 73% of it
