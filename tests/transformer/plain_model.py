"""The same models written plainly in NumPy and float64, from configs and tensors as published.

Nothing of c2c is used: one sequence, no cache, loops over heads and experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Config = Mapping[str, Any]
Tensors = Mapping[str, np.ndarray]


def plain_logits(config: Config, tensors: Tensors, ids: list[int]) -> np.ndarray:
    """Logits [T, vocab] of a whole sequence."""
    embed = wide(tensors["model.embed_tokens.weight"])
    x = embed[ids]
    for layer in range(config["num_hidden_layers"]):
        mine = {
            name.removeprefix(f"model.layers.{layer}."): wide(values)
            for name, values in tensors.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        eps = config["rms_norm_eps"]
        x = x + attention(config, mine, layer, norm(x, mine["input_layernorm.weight"], eps))
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


def attention(config: Config, tensors: Tensors, layer: int, x: np.ndarray) -> np.ndarray:
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    count = len(x)
    q = linear(x, tensors, "self_attn.q_proj").reshape(count, heads, dim)
    k = linear(x, tensors, "self_attn.k_proj").reshape(count, kv_heads, dim)
    v = linear(x, tensors, "self_attn.v_proj").reshape(count, kv_heads, dim)
    if "self_attn.q_norm.weight" in tensors:
        q = norm(q, tensors["self_attn.q_norm.weight"], config["rms_norm_eps"])
        k = norm(k, tensors["self_attn.k_norm.weight"], config["rms_norm_eps"])
    q, k = rope(config, q, dim), rope(config, k, dim)
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


def rope(config: Config, x: np.ndarray, dim: int) -> np.ndarray:
    settings = config.get("rope_parameters") or {
        "rope_theta": config.get("rope_theta"),
        **(config.get("rope_scaling") or {}),
    }
    turns = settings["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    kind = settings.get("rope_type", "default")
    if kind == "linear":
        turns = turns / settings["factor"]
    elif kind == "llama3":
        turns = np.array([stretched(turn, settings) for turn in turns])
    angle = np.arange(len(x))[:, None, None] * turns
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
    )


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
    if config["model_type"] == "mixtral":
        folder, names, always = "block_sparse_moe", ("w1", "w3", "w2"), True
    elif config["model_type"] == "qwen3_moe":
        folder, names = "mlp", ("gate_proj", "up_proj", "down_proj")
        always = config["norm_topk_prob"]
    else:
        return swiglu(x, tensors, tuple(f"mlp.{n}" for n in ("gate_proj", "up_proj", "down_proj")))
    out = np.zeros_like(x)
    for i, scores in enumerate(linear(x, tensors, f"{folder}.gate")):
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        best = np.argsort(-chances)[: config["num_experts_per_tok"]]
        weights = chances[best] / (chances[best].sum() if always else 1.0)
        for expert, weight in zip(best, weights, strict=True):
            path = tuple(f"{folder}.experts.{expert}.{name}" for name in names)
            out[i] += weight * swiglu(x[i : i + 1], tensors, path)[0]
    return out


def swiglu(x: np.ndarray, tensors: Tensors, names: tuple[str, ...]) -> np.ndarray:
    gate, up = linear(x, tensors, names[0]), linear(x, tensors, names[1])
    return linear(gate / (1 + np.exp(-gate)) * up, tensors, names[2])
