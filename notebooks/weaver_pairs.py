# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # WEAVER: attention of a hot model on a cold model's device
#
# A stall in closed form and by draws, cuts of a cold model's operators, a hot model over cold
# slices of a GH200, and a small woven pair live on two devices of this process.
# `make reproduce FIGURES=weaver` has the paper's figures.

# %%
import tempfile
import threading

import jax

jax.config.update("jax_num_cpu_devices", 2)  # before jax looks for devices

import matplotlib.pyplot as plt
import numpy as np

from c2c.models import from_hf_config
from c2c.systems.weaver import Limits, Threshold, best_cut, expected_stall, guarded_cut
from c2c.transformer import (
    Executables,
    KvPool,
    Model,
    Runner,
    Shapes,
    random_params,
    superblock_elements,
)
from c2c.transformer.hosting import KvHost
from c2c.transformer.linear import Reference
from c2c.transformer.links import QueueLink
from c2c.transformer.woven import Woven
from experiments.answering import asked_by, serve
from experiments.figure import Context
from experiments.weaver import cold_slices

# %% [markdown]
# ## How late an answer is
#
# A task meets an operator of T seconds in proportion to T, and waits for the rest of it. The sender
# has K seconds of attention of its own meanwhile, the receiver needs N.

# %%
ops = np.array([961.0, 210.0, 110.0, 60.0])  # microseconds
draws = np.random.default_rng(0)
slacks = np.linspace(-100, 400, 26)
met = draws.choice(ops, size=200_000, p=ops / ops.sum())
waits = draws.uniform(0.0, met)
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.plot(slacks, [expected_stall(ops, s) for s in slacks], label="closed form")
axes.plot(slacks, [np.maximum(0, waits - s).mean() for s in slacks], "k:", label="200,000 draws")
axes.set_xlabel("K - N (us)")
axes.set_ylabel("mean stall of a layer (us)")
axes.legend()

# %% [markdown]
# ## Cuts
#
# Algorithm 1 with guards halves the longest piece while the stall is too long; ours weighs the hot
# model's time per token against the cold one's.

# %%
limits = Limits(least_s=20.0, split_s=3.0, poll_s=2.0)  # here in microseconds
for name, cut in (
    ("guarded", guarded_cut(ops, 50.0, Threshold(seconds=20.0, of="layer"), limits)),
    ("ours", best_cut(ops, 50.0, layers=32, weight=0.1, limits=limits)),
):
    stall, cost = expected_stall(cut.lengths, 50.0), sum(cut.lengths) / ops.sum() - 1
    print(f"{name:8s} {cut.splits:2d} splits, stall {stall:6.1f} us, cold step {cost:+.1%}")

# %% [markdown]
# ## Receivers whose memory is free
#
# A cold model of C2CServe reads its weights from host memory, so nearly all of its slice is free
# for the hot model's keys and values. Its operators wait for the link and are long: uncut they cost
# more than the memory gives.

# %%
context = Context(profile="quick", link_variant="measured", seeds=(0,))
best = cold_slices.compute(context).tables["best"].to_pandas()
best[["mig", "receivers", "load", "cut", "ratio", "rows", "tokens_per_s", "taken"]].round(2)

# %% [markdown]
# ## Live
#
# A hot and a cold model on two devices. Half of the hot requests have their keys and values on the
# second one, whose thread attends to them between the cold model's layers. Answers must be those
# of each model alone.

# %%
shapes = Shapes(rows=(2, 6), budgets=(32,), width=2)


def made(layers: int, seed: int, device: jax.Device, store: Executables) -> Model:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "max_position_embeddings": 512,
    }
    spec, linear = from_hf_config(config, f"small_{layers}"), Reference()
    g = np.random.default_rng(seed)
    params = random_params(spec, g, dtype="float32", placement=linear.placement)
    there = jax.device_put(params, device)
    return Model(spec=spec, params=there, linear=linear, executables=store)


with tempfile.TemporaryDirectory() as folder:
    store = Executables(folder)
    hot, cold = (made(n, n, device, store) for n, device in zip((4, 3), jax.devices(), strict=True))
    size = superblock_elements((hot.spec, cold.spec))
    pools = [
        KvPool(24, size, dtype=np.float32, executables=store, device=device)
        for device in jax.devices()
    ]
    asked = asked_by(30, prompt=60, new=30, vocab=512, seed=0)
    *_, alone = serve(Runner(hot.executor(pools[0]), shapes), asked)
    link, here = QueueLink(), cold.executor(pools[1])
    host = KvHost(pools[1], hot.spec, link, shapes, reserve=2, executables=store)
    woven = Woven(hot.executor(pools[0]), link, shapes, ratio=0.5, seed=0)
    here.poll = host.poll
    host.ready()
    rounds = []

    def serve_cold() -> None:
        cold_runner = Runner(here, shapes)
        while not host.is_over:
            *_, done = serve(cold_runner, asked[:3])
            rounds.append(done.texts)
            while host.poll():
                pass

    thread = threading.Thread(target=serve_cold)
    thread.start()
    *_, done = serve(Runner(woven, shapes), asked)
    link.close()
    thread.join()
assert done.texts == alone.texts
assert all(texts == rounds[0] for texts in rounds)
print(f"{len(done.texts)} answers are the same; {woven.sent} tasks sent, {host.done} done")

# %% [markdown]
# Beyond this: `python -m experiments.weaver.pair` has the two models in two processes, kills and
# stops included; no kernel has run on a GPU.
