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
# # What does alpha do?
#
# HybridGEMM computes `O[M,N] = X[M,K] W[K,N]` with `W` in host memory. The first
# `floor(alpha * N)` columns go to **SymGEMM** (output-stationary: every tile of rows fetches `W`
# over the link again), the rest to **AsymGEMM** (weight-stationary: `W` crosses once, partial sums
# are added up in HBM). So `alpha` trades link bytes for HBM bytes. This notebook shows the trade
# for the GEMM of the paper's Fig. 4, where the best alpha lies on different slices, how it moves
# when the link is shared, and what a controller makes of it.
#
# Everything here is the cost model (`c2c.cost`) and the policies (`c2c.policies`) that the
# simulator and the live engine use; nothing was measured on a GPU for this notebook.

# %%
import matplotlib.pyplot as plt
import numpy as np

from c2c.cost import KernelTiles, gemm_time, gemm_traffic, load_constants
from c2c.hardware import link_gbps, load_platform, slices

M, K, N = 10240, 4096, 16384
alphas = np.linspace(0.0, 1.0, 65)
constants = load_constants()
gh200 = load_platform("gh200")
link = link_gbps(gh200.link, "measured")
layouts = ("1x96gb", "3x24gb", "7x12gb")
print(f"link: {link:.0f} GB/s shared by all slices (measured variant)")

# %% [markdown]
# ## Bytes
#
# Exact tile counts. At `alpha = 1` the link moves `W` once per tile of 256 rows (40 times), at
# `alpha = 0` once.

# %%
full = slices(gh200, "1x96gb")[0]
traffic = gemm_traffic(
    M, N, K, alphas, tiles=KernelTiles(), sm_count=full.sm_count, l2_bytes=full.l2_bytes
)
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.plot(alphas, traffic.link_bytes / 1e9, label="over the link")
axis.plot(alphas, traffic.hbm_bytes / 1e9, label="HBM")
axis.set(xlabel="alpha", ylabel="GB", title="Bytes of one GEMM, M=10240 K=4096 N=16384")
axis.legend()
plt.show()

assert np.isclose(traffic.link_bytes[-1], 40 * 2 * K * N)
assert np.isclose(traffic.link_bytes[0], 2 * K * N)

# %% [markdown]
# ## Time on a slice that has the link to itself
#
# A smaller slice has fewer SMs to push partial sums with, while the link stays the same: the best
# alpha moves to the right.

# %%
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
best = {}
for name in layouts:
    slice_ = slices(gh200, name)[0]
    seconds = gemm_time(M, N, K, alphas, slice_=slice_, constants=constants, link_gbps=link).time_s
    best[name] = float(alphas[np.argmin(seconds)])
    (line,) = axis.plot(alphas, seconds * 1e3, label=f"{name} ({slice_.sm_count} SMs)")
    axis.plot(best[name], seconds.min() * 1e3, "o", color=line.get_color())
axis.set(xlabel="alpha", ylabel="ms", title="Time, one slice alone on the link", yscale="log")
axis.legend()
plt.show()
print({name: f"best alpha {value:.2f}" for name, value in best.items()})

assert best["1x96gb"] <= best["3x24gb"] <= best["7x12gb"]

# %% [markdown]
# ## Time when others use the link
#
# With a rate `r` instead of the whole link, a GEMM lasts `max(alone, bytes / r)`. The less link
# there is, the more the weight-stationary path pays: the best alpha moves back to the left.

# %%
slice_ = slices(gh200, "7x12gb")[0]
alone = gemm_time(M, N, K, alphas, slice_=slice_, constants=constants, link_gbps=link)
shares = np.array([link, link / 2, link / 4, link / 7])
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
chosen = []
for share in shares:
    seconds = np.maximum(alone.time_s, alone.traffic.link_bytes / (share * 1e9))
    chosen.append(float(alphas[np.argmin(seconds)]))
    (line,) = axis.plot(alphas, seconds * 1e3, label=f"{share:.0f} GB/s")
    axis.plot(chosen[-1], seconds.min() * 1e3, "o", color=line.get_color())
axis.set(xlabel="alpha", ylabel="ms", title="7x12gb slice at a share of the link")
axis.legend(title="share")
plt.show()

assert chosen == sorted(chosen, reverse=True)

# %% [markdown]
# ## Who finds it? Algorithm 2 and the roofline controller
#
# Algorithm 2 of the paper compares the utilisation of link and HBM and steps alpha towards the
# less used side. Ours knows the cost model and takes the alpha with the least predicted time. The
# link share halves in the middle.

# %%
from c2c.policies import (
    AlphaObservation,
    AlphaState,
    Feedback,
    adjust_alpha,
    best_alpha_index,
)

params = Feedback(initial=0.0, deadband=0.05, step_fast=0.125, step_slow=0.0625, smoothing=0.5)
share_of = np.where(np.arange(60) < 30, link, link / 4)
budget_s = 25e-3


def run_gemm(alpha: float, share: float) -> tuple[float, float, float]:
    """Return seconds, HBM utilisation and link utilisation of the GEMM at this alpha."""
    cost = gemm_time(M, N, K, np.array([alpha]), slice_=slice_, constants=constants, link_gbps=link)
    seconds = max(float(cost.time_s[0]), float(cost.traffic.link_bytes[0]) / (share * 1e9))
    hbm = float(cost.traffic.hbm_bytes[0]) / seconds / (slice_.hbm_gbps * 1e9)
    return seconds, hbm, float(cost.traffic.link_bytes[0]) / seconds / (share * 1e9)


state = AlphaState(params.initial, -1.0, 0.0, 0.0)  # no sample yet
feedback, feedback_s, roofline, roofline_s = [], [], [], []
for share in share_of:
    seconds, hbm, c2c = run_gemm(state.alpha, share)
    feedback.append(state.alpha)
    feedback_s.append(seconds)
    state = adjust_alpha(params, state, AlphaObservation(seconds, budget_s, hbm, c2c))
    index = best_alpha_index(alone.time_s, alone.traffic.link_bytes, float(share))
    roofline.append(float(alphas[index]))
    roofline_s.append(run_gemm(roofline[-1], share)[0])

figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 4.6), sharex=True, layout="constrained")
top.step(range(60), feedback, where="post", label="Algorithm 2")
top.step(range(60), roofline, where="post", label="roofline (ours)")
top.set(ylabel="alpha", title="Link share drops to a quarter at interval 30")
top.legend()
bottom.step(range(60), np.array(feedback_s) * 1e3, where="post")
bottom.step(range(60), np.array(roofline_s) * 1e3, where="post")
bottom.set(xlabel="control interval", ylabel="ms")
plt.show()

for name, times in (("Algorithm 2", feedback_s), ("roofline", roofline_s)):
    print(f"{name}: mean {np.mean(times) * 1e3:.1f} ms")
assert np.mean(roofline_s) <= np.mean(feedback_s)

# %% [markdown]
# Algorithm 2 balances *utilisations*, which is not the same as the least time: on a small slice
# neither link nor HBM may be what binds (the SMs are), and then equal utilisation says nothing.
# The roofline controller sees that.
#
# ## And in serving?
#
# Chunks of a few hundred tokens touch `W` once either way (`M <= 256`), so alpha matters for long
# prompts. Forty prompts of 6,000 tokens on three slices of one chip:

# %%
from c2c.models import Deployment, load_spec
from c2c.policies import Feedback, Fixed, Roofline, Static
from c2c.serving import ServingSetup, SystemSpec, prepare
from c2c.simulator import Simulation, build_machine, run_blocks
from c2c.workloads import RequestBlock

count = 40
rng = np.random.default_rng(0)
block = RequestBlock(
    arrival_s=np.cumsum(rng.exponential(4.0, count)),
    model=rng.integers(0, 3, count).astype(np.int32),
    prompt_tokens=np.full(count, 6000, np.int32),
    output_tokens=np.full(count, 32, np.int32),
)
deployments = tuple(
    Deployment(name=f"m{k}", spec=load_spec("llama-3-8b"), ttft_slo_s=5.0, tpot_slo_s=0.4)
    for k in range(3)
)


def mean_ttft_s(alpha: Static | Feedback | Roofline) -> float:
    """Serve the prompts with one alpha policy and return the mean time to first token."""
    system = SystemSpec(name="c2cserve", alpha=alpha, chunk=Fixed(tokens=2048), max_batch=16)
    setup = ServingSetup(
        platform=gh200,
        mig="3x24gb",
        superchips=1,
        link_variant="measured",
        deployments=deployments,
        system=system,
        constants=constants,
    )
    prepared = prepare(setup)
    parts: list[np.ndarray] = []
    # interpreted: so few requests take less time than loading the compiled loop
    run_blocks(
        Simulation.start(prepared, build_machine(prepared), compiled=False), [block], parts.append
    )
    records = np.concatenate(parts)
    return float(np.mean(records["first_token_s"] - records["arrival_s"]))


policies = {
    "static 0 (AsymGEMM)": Static(initial=0.0),
    "static 0.5": Static(initial=0.5),
    "static 1 (SymGEMM)": Static(initial=1.0),
    "Algorithm 2": Feedback(),
    "roofline (ours)": Roofline(),
}
ttft = {name: mean_ttft_s(alpha) for name, alpha in policies.items()}
figure, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
axis.barh(list(ttft), list(ttft.values()))
axis.invert_yaxis()
axis.set(xlabel="mean TTFT, s", title="6,000-token prompts, Llama-3 8B, 3x24gb")
plt.show()

assert ttft["roofline (ours)"] <= min(ttft.values()) * 1.03

# %% [markdown]
# Change `layouts`, `M` or the prompt length above and run again; `docs/simulator.md` says what is
# modelled and what is not.
