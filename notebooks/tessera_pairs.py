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
# # Tessera: published values beside ours
#
# Kernels of one model on two unlike GPUs: which are faster where (Table I, Figures 2 and 3), and
# what placing each where it is fast gives (one cell of Figure 6). All cells, online serving,
# clusters and the monitor are `make reproduce FIGURES=tessera`.

# %%
from c2c.systems.tessera import load_pair, ways
from experiments.claims import fidelity_rows, load_claims
from experiments.claims.fidelity import brief
from experiments.figure import Context
from experiments.figures import tessera as figures
from experiments.figures.style import look
from experiments.tessera import heterogeneity
from experiments.tessera.workloads import GPT_OSS, workload

context = Context(profile="quick", link_variant="measured", seeds=(0,))
kernels = heterogeneity.compute(context)

# %% [markdown]
# ## Claim by claim
#
# Times of kernels are by datasheets here, the paper's were measured: where half of the kernels are
# nearly as fast on both GPUs, a count of which is faster hangs on little.

# %%
rows = fidelity_rows(load_claims(), kernels.results, frozenset())
for row in rows:
    if row.result is not None and row.status == "out-of-sample":
        agrees = "yes" if row.agrees else "NO"
        short = row.claim.id.removeprefix("tessera.")
        print(f"{short:30s}{brief(row.claim.value):>14s}{brief(row.result.ours):>14s}  {agrees}")
        if row.is_miss:
            print(f"    {row.why}")

# %%
with look():
    drawn = figures.draw_heterogeneity(kernels.tables, kernels.caption)
drawn

# %% [markdown]
# ## What placement gives
#
# GPT-oss 20B on an A100 and an L40s: requests a second of every way to use the two, and each
# relative to the A100 alone. *kernels* is Tessera's.

# %%
pair = load_pair("a100_l40s")
found = ways(
    workload(GPT_OSS), pair.gpus, gbps=pair.wire.gbps, latency_s=pair.link().latency_s[0][1],
    gap=0.03,
)  # fmt: skip
alone = found[0].requests_per_s
for way in found:
    print(f"{way.name:18s}{way.requests_per_s:8.2f} requests/s{way.requests_per_s / alone:8.2f} x")
rate = {way.name: way.requests_per_s for way in found}
assert rate["kernels"] > max(rate["left"], rate["right"])
