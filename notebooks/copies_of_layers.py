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
# # Copies of layers
#
# The gain of a second copy of a layer on another device, a planner's choice of layers, and a proof
# that layers which move under running requests change no answer. `make reproduce FIGURES=cocoserve`
# has the paper's figures.

# %%
import tempfile

import jax

jax.config.update("jax_num_cpu_devices", 4)  # before jax looks for devices

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

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
from experiments.figures.style import RC

plt.style.use(RC)
spec, node = load_spec("llama-2-13b"), load_node("a100_40_pcie_x4")
devices = devices_of(spec, node, most_rows=128)
start = Placement.unscaled(spec.layers)


def step_s(placement: Placement, rows: int) -> float:
    """Return the predicted seconds of a decode step with this many rows."""
    return step_time(placement, devices, batch=rows, context=341).seconds


counts = range(0, spec.layers + 1, 5)
placements = [start.replicated(range(n), 1) for n in counts]
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(counts, [printed_speedup(p.counts, 0.0) for p in placements], "k--", label="Eq. 4")
for rows in (15, 120):
    gain = [step_s(start, rows) / step_s(p, rows) for p in placements]
    axis.plot(counts, gain, marker="o", label=f"predicted step, {rows} rows")
axis.set(xlabel="layers with two copies", ylabel="speedup of a step", title="Llama 2 13B on A100s")
axis.legend()
plt.show()

# %% [markdown]
# Equation 4 of the paper counts rows: two copies halve a layer's time. The prediction counts bytes:
# a decode step reads a layer's weights for any number of rows, and two copies read them twice, at
# once.
#
# ## A plan
#
# Three devices have room for 20, 10 and 5 layers. The paper's algorithm adds layer by layer, ours
# adds runs of layers: a run costs two transitions between devices, whatever its length.

# %%
room = {1: 20, 2: 10, 3: 5}
counted = Estimate.counted(1 / 80)
for name, plan in (
    ("Algorithm 1, Eq. 4", scale_up(start, room, Estimate.printed(0.1))),
    ("Algorithm 1, counted", scale_up(start, room, counted)),
    ("ours, by runs", by_runs(start, room, counted)),
):
    print(f"{name:22s} estimate {counted.of(plan):.3f}, step {1e3 * step_s(plan, 15):.1f} ms")

# %% [markdown]
# ## Live
#
# Forty requests on one device of this process, then on four devices while operations drawn at
# random move layers with their keys and values. Tokens and logits must be equal to the bit. The
# devices are a CPU's, so times mean nothing here.

# %%
from c2c.transformer import Executables, Model, random_params
from c2c.transformer.layers.linear import Reference
from experiments.papers.cocoserve.live import Load, scaled
from experiments.papers.cocoserve.scale import drawn_on

config = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 6, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "max_position_embeddings": 512,
}  # fmt: skip
small, linear, rng = from_hf_config(config, "small"), Reference(), np.random.default_rng(0)
params = random_params(small, rng, dtype="float32", placement=linear.placement)
with tempfile.TemporaryDirectory() as folder:
    model = Model(spec=small, params=params, linear=linear, executables=Executables(folder))
    alone, done = scaled(model, Load(requests=40, operations=40), jax.devices(), drawn_on)
assert (alone.texts, alone.logits) == (done.texts, done.logits)
moved = sum(row["weight_bytes"] + row["kv_bytes"] for row in done.operations)
Markdown(
    f"**Found.** Two copies of every layer give a step of 120 rows {gain[-1]:.2f} times its speed "
    f"by the prediction, {printed_speedup(placements[-1].counts, 0.0):.0f} times by Equation 4. "
    f"{len(done.operations)} operations under running requests copied {moved / 1e6:.1f} MB of "
    f"weights, keys and values, and all {len(done.texts)} answers and {len(done.logits)} steps of "
    "logits are equal to the bit."
)
