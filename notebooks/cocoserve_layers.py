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
# # CoCoServe: layers that are copied and moved while a model serves
#
# A plan of copies for a large model, and the same operations live on a small one: four devices of
# this process (a CPU's, so times mean nothing here), requests that come and go, and layers that
# move under them. `make reproduce FIGURES=cocoserve` has the paper's figures.

# %%
import tempfile

import jax

jax.config.update("jax_num_cpu_devices", 4)  # before jax looks for devices

import matplotlib.pyplot as plt
import numpy as np

from c2c.hardware import load_node
from c2c.models import from_hf_config, load_spec
from c2c.systems.cocoserve import (
    Estimate,
    Placement,
    by_runs,
    devices_of,
    printed_speedup,
    scale_up,
    step_time,
)
from c2c.transformer import Executables, Model, random_params
from c2c.transformer.linear import Reference
from experiments.cocoserve.live import Load, scaled
from experiments.cocoserve.scale import drawn_on

# %% [markdown]
# ## Copies of layers make a step little faster
#
# A decode step reads a layer's weights whatever the rows are. Two copies of a layer read them
# twice, at once. Equation 4 of the paper counts rows, the prediction counts bytes.

# %%
spec, node = load_spec("llama-2-13b"), load_node("a100_40_pcie_x4")
devices = devices_of(spec, node, most_rows=128)
start = Placement.unscaled(spec.layers)
counts = range(0, spec.layers + 1, 5)
placements = [start.replicated(range(n), 1) for n in counts]
whole = {batch: step_time(start, devices, batch=batch, context=341).seconds for batch in (15, 120)}
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.plot(counts, [printed_speedup(p.counts, 0.0) for p in placements], "k--", label="Eq. 4")
for batch, alone_s in whole.items():
    gains = [alone_s / step_time(p, devices, batch=batch, context=341).seconds for p in placements]
    axes.plot(counts, gains, marker="o", label=f"predicted step, {batch} rows")
axes.set_xlabel("layers with two copies")
axes.set_ylabel("speedup of a step")
axes.legend()

# %% [markdown]
# ## Plans
#
# Three devices have room for 20, 10 and 5 layers. The paper's algorithm adds layer by layer, ours
# by runs: a run costs two transitions, however long it is.

# %%
room = {1: 20, 2: 10, 3: 5}
counted = Estimate.counted(1 / 80)
for name, plan in (
    ("Algorithm 1, Eq. 4", scale_up(start, room, Estimate.printed(0.1))),
    ("Algorithm 1, counted", scale_up(start, room, counted)),
    ("ours, by runs", by_runs(start, room, counted)),
):
    seconds = step_time(plan, devices, batch=15, context=341).seconds
    print(f"{name:22s} estimate {counted.of(plan):.3f}, step {1e3 * seconds:.1f} ms")

# %% [markdown]
# ## Live
#
# Forty requests on one device, then on four while operations drawn at random change where the
# layers and their keys and values are. Tokens and logits must be the same, to the bit.

# %%
small = from_hf_config(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 6,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "max_position_embeddings": 512,
    },
    "small",
)
linear = Reference()
params = random_params(small, np.random.default_rng(0), dtype="float32", placement=linear.placement)
with tempfile.TemporaryDirectory() as folder:
    model = Model(spec=small, params=params, linear=linear, executables=Executables(folder))
    load = Load(requests=40, operations=40)
    alone, done = scaled(model, load, jax.devices(), drawn_on)
assert (alone.texts, alone.logits) == (done.texts, done.logits)
print(f"{len(done.texts)} answers and {len(done.logits)} steps of logits are the same")
print(f"{len(done.operations)} operations; after all was ready: {done.compiled} compiled")

# %%
kinds = sorted({row["kind"] for row in done.operations})
figure, axes = plt.subplots(figsize=(7, 3.6))
for kind in kinds:
    rows = [row for row in done.operations if row["kind"] == kind]
    axes.scatter(
        [row["weight_bytes"] / 1e3 for row in rows],
        [row["kv_bytes"] / 1e3 for row in rows],
        label=kind,
    )
axes.set_xlabel("copied weights, kB")
axes.set_ylabel("copied keys and values, kB")
axes.legend()

# %% [markdown]
# Beyond this: another `seed` in `Load` is another order of operations; a `Spread` and a `Relayout`
# of your own (`c2c.transformer.spread`, `.relayout`) are any layout that you like.
