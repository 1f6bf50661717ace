"""The same models written plainly in NumPy and float64, from configs and tensors as published.

Nothing of c2c is used: one sequence, no cache, loops over heads and experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Config = Mapping[str, Any]
Tensors = Mapping[str, np.ndarray]


def plain_logits(
    config: Config, tensors: Tensors, ids: list[int], prompt: int | None = None
) -> np.ndarray:
    """Logits [T, vocab] of a whole sequence, whose first `prompt` tokens came in one call.

    The others came one by one, which matters where frequencies depend on the length.
    """
    prompt = len(ids) if prompt is None else prompt
    lengths = [max(prompt, i + 1) for i in range(len(ids))]
    embed = wide(tensors["model.embed_tokens.weight"])
    x = embed[ids]
    for layer in range(config["num_hidden_layers"]):
        mine = {
            name.removeprefix(f"model.layers.{layer}."): wide(values)
            for name, values in tensors.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        eps = config["rms_norm_eps"]
        x = x + attention(
            config, mine, layer, lengths, norm(x, mine["input_layernorm.weight"], eps)
        )
        x = x + feed_forward(config, mine, norm(x, mine["post_attention_layernorm.weight"], eps))
    x = norm(x, wide(tensors["model.norm.weight"]), config["rms_norm_eps"])
    head = embed if config.get("tie_word_embeddings") else wide(tensors["lm_head.weight"])
    return x @ head.T


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return weight * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def linear(x: np.ndarray, tensors: Tensors, name: str) -> np.ndarray:
    out = x @ tensors[f"{name}.weight"].T
    return out + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else out


def attention(
    config: Config, tensors: Tensors, layer: int, lengths: list[int], x: np.ndarray
) -> np.ndarray:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    count = len(x)
    q = linear(x, tensors, "self_attn.q_proj").reshape(count, heads, dim)
    k = linear(x, tensors, "self_attn.k_proj").reshape(count, kv_heads, dim)
    v = linear(x, tensors, "self_attn.v_proj").reshape(count, kv_heads, dim)
    if "self_attn.q_norm.weight" in tensors:
        q = norm(q, tensors["self_attn.q_norm.weight"], config["rms_norm_eps"])
        k = norm(k, tensors["self_attn.k_norm.weight"], config["rms_norm_eps"])
    q, k = rope(config, q, dim, lengths), rope(config, k, dim, lengths)
    window = window_of(config, layer)
    out = np.zeros((count, heads, dim))
    for head in range(heads):
        group = head // (heads // kv_heads)
        for i in range(count):
            first = max(0, i - window + 1) if window else 0
            scores = k[first : i + 1, group] @ q[i, head] / math.sqrt(dim)
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ v[first : i + 1, group]
    return linear(out.reshape(count, -1), tensors, "self_attn.o_proj")


def window_of(config: Config, layer: int) -> int | None:
    window = config.get("sliding_window")
    if not window or not config["model_type"].startswith("qwen"):
        return window
    if not config.get("use_sliding_window"):
        return None
    if config["model_type"] == "qwen3_moe" or layer >= config["max_window_layers"]:
        return window
    return None


def rope(config: Config, x: np.ndarray, dim: int, lengths: list[int]) -> np.ndarray:
    settings = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta"),
        **(config.get("rope_scaling") or {}),
    }
    most = config["max_position_embeddings"]
    turns = np.array([turns_of(settings, most, dim, length) for length in lengths])
    angle = np.arange(len(x))[:, None, None] * turns[:, None]
    scale = settings.get("attention_factor", 1.0)
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def turns_of(settings: Mapping[str, Any], most: int, dim: int, length: int) -> np.ndarray:
    """Angle per position of each pair, in a sequence of this length."""
    theta, kind = settings["rope_theta"], settings.get("rope_type", "default")
    turns = theta ** (-np.arange(0, dim, 2) / dim)
    if kind == "linear":
        return turns / settings["factor"]
    if kind == "llama3":
        return np.array([stretched(turn, settings) for turn in turns])
    if kind == "yarn":
        place = [
            dim
            * math.log(settings["original_max_position_embeddings"] / (2 * math.pi * beta))
            / (2 * math.log(theta))
            for beta in (settings.get("beta_fast", 32), settings.get("beta_slow", 1))
        ]
        first, last = max(math.floor(place[0]), 0), min(math.ceil(place[1]), dim - 1)
        slow = np.clip((np.arange(dim // 2) - first) / (last - first), 0, 1)
        return turns * (1 - slow) + turns / settings["factor"] * slow
    if kind == "longrope":
        beyond = length > settings["original_max_position_embeddings"]
        return turns / np.array(settings["long_factor" if beyond else "short_factor"])
    if kind == "dynamic" and length > most:
        factor = settings["factor"]
        theta *= (factor * length / most - (factor - 1)) ** (dim / (dim - 2))
        return theta ** (-np.arange(0, dim, 2) / dim)
    return turns


def stretched(turn: float, settings: Mapping[str, Any]) -> float:
    wavelength = 2 * math.pi / turn
    length = settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    if wavelength < length / high:
        return turn
    if wavelength > length / low:
        return turn / settings["factor"]
    smooth = (length / wavelength - low) / (high - low)
    return (1 - smooth) * turn / settings["factor"] + smooth * turn


def feed_forward(config: Config, tensors: Tensors, x: np.ndarray) -> np.ndarray:
    if "mlp.gate_proj.weight" in tensors:
        return swiglu(config, x, tensors, tuple(f"mlp.{n}_proj" for n in ("gate", "up", "down")))
    if config["model_type"] == "mixtral":
        folder, names, always = "block_sparse_moe", ("w1", "w3", "w2"), True
    else:
        folder, names = "mlp", ("gate_proj", "up_proj", "down_proj")
        always = config["norm_topk_prob"]
    out = np.zeros_like(x)
    for i, scores in enumerate(linear(x, tensors, f"{folder}.gate")):
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        best = np.argsort(-chances)[: config["num_experts_per_tok"]]
        weights = chances[best] / (chances[best].sum() if always else 1.0)
        for expert, weight in zip(best, weights, strict=True):
            path = tuple(f"{folder}.experts.{expert}.{name}" for name in names)
            out[i] += weight * swiglu(config, x[i : i + 1], tensors, path)[0]
    return out


def swiglu(config: Config, x: np.ndarray, tensors: Tensors, names: tuple[str, ...]) -> np.ndarray:
    gate, up = linear(x, tensors, names[0]), linear(x, tensors, names[1])
    return linear(ACTIVATIONS[config["hidden_act"]](gate) * up, tensors, names[2])


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2,
    "gelu_pytorch_tanh": lambda x: (
        x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    ),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
