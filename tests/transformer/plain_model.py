"""The same models written plainly in NumPy and float64, without anything of c2c."""

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
    x = embed[ids] * config.get("embedding_multiplier", 1.0)
    gemma = config["model_type"].startswith("gemma")
    if gemma:
        x = x * math.sqrt(config["hidden_size"])
    places = NORMS.get(config["model_type"], NORMS["llama"])
    share = config.get("residual_multiplier", 1.0)
    for layer in range(config["num_hidden_layers"]):
        mine = {
            name.removeprefix(f"model.layers.{layer}."): wide(values)
            for name, values in tensors.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        if gemma:
            mine |= {name: 1 + w for name, w in mine.items() if name.endswith("norm.weight")}

        def normed(place: int, x: np.ndarray, mine: Tensors = mine) -> np.ndarray:
            name = places[place]
            return norm(x, mine[f"{name}.weight"], config["rms_norm_eps"]) if name else x

        x = x + share * normed(1, attention(config, mine, layer, lengths, normed(0, x)))
        x = x + share * normed(3, feed_forward(config, mine, normed(2, x)))
    x = norm(x, gemma + wide(tensors["model.norm.weight"]), config["rms_norm_eps"])
    head = embed if config.get("tie_word_embeddings") else wide(tensors["lm_head.weight"])
    return capped(x @ head.T / config.get("logits_scaling", 1.0), config, "final")


# before and after attention, before and after the feed-forward block
NORMS: Mapping[str, tuple[str, str, str, str]] = {
    "llama": ("input_layernorm", "", "post_attention_layernorm", ""),
    "olmo2": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    "gemma2": (
        *("input_layernorm", "post_attention_layernorm"),
        *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
    "glm4": (
        *("input_layernorm", "post_self_attn_layernorm"),
        *("post_attention_layernorm", "post_mlp_layernorm"),
    ),
}
NORMS = {**NORMS, "gemma3_text": NORMS["gemma2"]}


def capped(scores: np.ndarray, config: Config, which: str) -> np.ndarray:
    cap = config.get(f"{which}_logit_softcapping")
    return cap * np.tanh(scores / cap) if cap else scores


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
    if "self_attn.kv_b_proj.weight" in tensors:
        return latent_attention(config, tensors, lengths, x)
    if "self_attn.qkv_proj.weight" in tensors:
        whole = linear(x, tensors, "self_attn.qkv_proj")
        q, k, v = np.split(whole, [heads * dim, (heads + kv_heads) * dim], axis=-1)
    else:
        q, k, v = (linear(x, tensors, f"self_attn.{name}_proj") for name in "qkv")
    whole_norm = config["model_type"] in ("olmo2", "minimax_m2")
    if whole_norm:  # of all heads together
        q = norm(q, tensors["self_attn.q_norm.weight"], config["rms_norm_eps"])
        k = norm(k, tensors["self_attn.k_norm.weight"], config["rms_norm_eps"])
    q, k, v = (each.reshape(count, -1, dim) for each in (q, k, v))
    if "self_attn.q_norm.weight" in tensors and not whole_norm:
        q = norm(q, tensors["self_attn.q_norm.weight"], config["rms_norm_eps"])
        k = norm(k, tensors["self_attn.k_norm.weight"], config["rms_norm_eps"])
    window = window_of(config, layer)
    turning = config
    if window and "rope_local_base_freq" in config:
        turning = {**config, "rope_theta": config["rope_local_base_freq"], "rope_scaling": None}
    if config["model_type"] != "llama4_text":
        q, k = rope(turning, q, dim, lengths), rope(turning, k, dim, lengths)
    elif config["no_rope_layers"][layer]:
        q, k = (norm(rope(config, each, dim, lengths), np.ones(dim), config["rms_norm_eps"])
                for each in (q, k))  # fmt: skip
    scale = config.get("attention_multiplier", config.get("query_pre_attn_scalar", dim) ** -0.5)
    out = np.zeros((count, heads, dim))
    for head in range(heads):
        group = head // (heads // kv_heads)
        for i in range(count):
            first = max(0, i - window + 1) if window else 0
            scores = capped(k[first : i + 1, group] @ q[i, head] * scale, config, "attn")
            weights = np.exp(scores - scores.max())
            out[i, head] = weights / weights.sum() @ v[first : i + 1, group]
    return linear(out.reshape(count, -1), tensors, "self_attn.o_proj")


def latent_attention(
    config: Config, tensors: Tensors, lengths: list[int], x: np.ndarray
) -> np.ndarray:
    """Keys and values of each head are widened from the latent vector."""
    heads, rank, at = config["num_attention_heads"], config["kv_lora_rank"], "self_attn"
    nope, rope_dim = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    if config["q_lora_rank"]:
        inner = norm(linear(x, tensors, f"{at}.q_a_proj"), tensors[f"{at}.q_a_layernorm.weight"],
                     1e-6)  # fmt: skip
        q = linear(inner, tensors, f"{at}.q_b_proj")
    else:
        q = linear(x, tensors, f"{at}.q_proj")
    q = q.reshape(len(x), heads, nope + rope_dim)
    both = linear(x, tensors, f"{at}.kv_a_proj_with_mqa")
    latent = norm(both[:, :rank], tensors[f"{at}.kv_a_layernorm.weight"], 1e-6)
    wide = linear(latent, tensors, f"{at}.kv_b_proj").reshape(len(x), heads, -1)
    turned = rope(config, both[:, None, rank:], rope_dim, lengths).repeat(heads, axis=1)
    q = np.concatenate([q[..., :nope], rope(config, q[..., nope:], rope_dim, lengths)], axis=-1)
    k = np.concatenate([wide[..., :nope], turned], axis=-1)
    scaling = config.get("rope_scaling") or {}
    stretch = 0.1 * scaling.get("mscale_all_dim", 0) * math.log(scaling.get("factor", 1)) + 1
    scores = np.einsum("qhd,khd->hqk", q, k) * (nope + rope_dim) ** -0.5 * stretch**2
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", weights, wide[..., nope:]).reshape(len(x), -1)
    return linear(out, tensors, f"{at}.o_proj")


def window_of(config: Config, layer: int) -> int | None:
    window = config.get("sliding_window")
    if config["model_type"].startswith("gemma"):
        each = config.get("sliding_window_pattern", 2)
        return window if (layer + 1) % each else None
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
    part = config.get("rotary_dim") or int(dim * config.get("partial_rotary_factor", 1.0))
    turns = np.array([turns_of(settings, most, part, length) for length in lengths])
    angle = np.arange(len(x))[:, None, None] * turns[:, None]
    scale = settings.get("attention_factor", 1.0)
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    out = x.copy()
    neighbours = config["model_type"] in ("glm4", "llama4_text")
    if "kv_lora_rank" in config:
        neighbours = config.get("rope_interleave", True)
    for i in range(part // 2):
        a, b = (2 * i, 2 * i + 1) if neighbours else (i, i + part // 2)
        out[..., a] = x[..., a] * cos[..., i] - x[..., b] * sin[..., i]
        out[..., b] = x[..., b] * cos[..., i] + x[..., a] * sin[..., i]
    return out


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
    if "mlp.gate_up_proj.weight" in tensors:
        gate, up = np.split(linear(x, tensors, "mlp.gate_up_proj"), 2, axis=-1)
        return linear(activation(config)(gate) * up, tensors, "mlp.down_proj")
    if config["model_type"] == "llama4_text":
        return llama4_block(config, tensors, x)
    if "block_sparse_moe.e_score_correction_bias" in tensors:
        return grouped_experts(
            {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, **config},
            tensors, x, "block_sparse_moe", ("w1", "w3", "w2"), "e_score_correction_bias",
        )  # fmt: skip
    if "mlp.gate.e_score_correction_bias" in tensors:
        return grouped_experts(config, tensors, x)
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
    return linear(activation(config)(gate) * up, tensors, names[2])


def llama4_block(config: Config, tensors: Tensors, x: np.ndarray) -> np.ndarray:
    """Weights of the router multiply the inputs of experts, whose matrices are inputs x outputs."""
    at, names = "feed_forward", ("gate_proj", "up_proj", "down_proj")
    if f"{at}.gate_proj.weight" in tensors:
        return swiglu(config, x, tensors, tuple(f"{at}.{n}" for n in names))
    out = swiglu(config, x, tensors, tuple(f"{at}.shared_expert.{n}" for n in names))
    for i, logits in enumerate(linear(x, tensors, f"{at}.router")):
        for e in np.argsort(-logits)[: config["num_experts_per_tok"]]:
            inputs = x[i] / (1 + np.exp(-logits[e]))
            gate, up = np.split(inputs @ tensors[f"{at}.experts.gate_up_proj"][e], 2)
            out[i] += (activation(config)(gate) * up) @ tensors[f"{at}.experts.down_proj"][e]
    return out


def grouped_experts(
    config: Config,
    tensors: Tensors,
    x: np.ndarray,
    at: str = "mlp",
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
    bias: str = "gate.e_score_correction_bias",
) -> np.ndarray:
    """Experts of the groups whose two best have the largest sums, and those that all take."""
    out = np.zeros_like(x)
    if f"{at}.shared_experts.{names[0]}.weight" in tensors:
        out = swiglu(config, x, tensors, tuple(f"{at}.shared_experts.{n}" for n in names))
    for i, logits in enumerate(linear(x, tensors, f"{at}.gate")):
        scores = 1 / (1 + np.exp(-logits))
        choice = (scores + tensors[f"{at}.{bias}"]).reshape(config["n_group"], -1)
        sums = np.sort(choice, axis=1)[:, -2:].sum(axis=1)
        for group in np.argsort(-sums)[config["topk_group"] :]:
            choice[group] = -np.inf
        best = np.argsort(-choice.reshape(-1))[: config["num_experts_per_tok"]]
        weights = config["routed_scaling_factor"] * scores[best] / scores[best].sum()
        for expert, weight in zip(best, weights, strict=True):
            path = tuple(f"{at}.experts.{expert}.{name}" for name in names)
            out[i] += weight * swiglu(config, x[i : i + 1], tensors, path)[0]
    return out


def activation(config: Config) -> Callable[[np.ndarray], np.ndarray]:
    return ACTIVATIONS[config.get("hidden_activation", config["hidden_act"])]


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
