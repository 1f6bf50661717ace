"""Conversion of GGUF metadata and tensor names to Hugging Face's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from c2c.errors import DataError
from c2c.transformer.gguf.header import GgufHeader

__all__ = ["ARCHITECTURES", "Source", "hf_config", "hf_tensors"]

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")
ROPE_FACTORS = "rope_freqs.weight"

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Stored tensor of a Hugging Face name, and expected shape.

    `expert`: index into a stack; `heads`: heads with interleaved halves (0: none), as llama.cpp
    rotates neighbouring rows.
    """

    stored: str
    shape: tuple[int, ...]
    expert: int | None = None
    heads: int = 0


def hf_config(header: GgufHeader, rope_factors: np.ndarray | None, source: str) -> dict[str, Any]:
    """Return a GGUF file's content of a config.json."""
    read = _Reader(header.metadata, source)
    architecture = read.architecture
    experts = read.whole("expert_count", default=0)
    window = read.whole("attention.sliding_window", default=0)
    family = _family(architecture, experts, window)
    heads = read.whole("attention.head_count")
    hidden = read.whole("embedding_length")
    head_dim = read.whole(
        "attention.key_length", default=read.whole("rope.dimension_count", default=hidden // heads)
    )
    read.demand("attention.value_length", head_dim)
    read.demand("rope.dimension_count", head_dim)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise DataError(source, "tensor 'token_embd.weight' is missing")
    layers = read.whole("block_count")
    if layers > len(header.tensors):
        raise DataError(
            source, f"{architecture}.block_count is {layers}, but there are only "
            f"{len(header.tensors)} tensors",
        )  # fmt: skip
    router = header.tensors.get("blk.0.ffn_gate_inp.weight")
    if experts and (router is None or router.shape[0] != experts):
        raise DataError(
            source, f"{architecture}.expert_count is {experts}, but the router is "
            f"{'missing' if router is None else f'for {router.shape[0]}'}",
        )  # fmt: skip
    theta = read.number("rope.freq_base", default=10000.0)
    config: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": read.whole("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "intermediate_size": read.whole("feed_forward_length"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": read.whole("context_length"),
        "rms_norm_eps": read.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(read, rope_factors, head_dim, theta),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": family != "qwen2" and "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": family == "llama" and "blk.0.ffn_gate.bias" in header.tensors,
        "sliding_window": window or None,
        "torch_dtype": _dtype(header),
    }
    if architecture.startswith("qwen"):
        config["use_sliding_window"] = bool(window)
        config["max_window_layers"] = 0 if window else config["num_hidden_layers"]
    if family == "mixtral":
        config["num_local_experts"] = experts
    if family == "qwen3_moe":
        # The only kind in llama.cpp: every layer sparse, the chosen weights renormalised.
        config |= {
            "num_experts": experts,
            "moe_intermediate_size": read.whole("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if experts:
        config["num_experts_per_tok"] = read.whole("expert_used_count")
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return config


def hf_tensors(config: Mapping[str, Any]) -> dict[str, Source]:
    """Map each Hugging Face tensor name to its stored tensor."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    result = {
        "model.embed_tokens.weight": Source(stored="token_embd.weight", shape=(vocab, hidden)),
        "model.norm.weight": Source(stored="output_norm.weight", shape=(hidden,)),
    }
    if not config["tie_word_embeddings"]:
        result["lm_head.weight"] = Source(stored="output.weight", shape=(vocab, hidden))
    for layer in range(config["num_hidden_layers"]):
        for name, source in (*_attention(config, layer), *_feed_forward(config, layer)):
            result[f"model.layers.{layer}.{name}"] = source
    return result


def _attention(config: Mapping[str, Any], layer: int) -> Iterator[tuple[str, Source]]:
    block, hidden, size = f"blk.{layer}", config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    family = config["model_type"]
    interleaved = not family.startswith("qwen")
    biased = {
        "q": family == "qwen2" or config["attention_bias"],
        "o": config["attention_bias"],
    }
    yield "input_layernorm.weight", Source(stored=f"{block}.attn_norm.weight", shape=(hidden,))
    yield (
        "post_attention_layernorm.weight",
        Source(stored=f"{block}.ffn_norm.weight", shape=(hidden,)),
    )
    for letter, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        order = count if interleaved and letter != "v" else 0
        stored, rows = f"{block}.attn_{letter}", count * size
        yield (
            f"self_attn.{letter}_proj.weight",
            Source(stored=f"{stored}.weight", shape=(rows, hidden), heads=order),
        )
        if biased["q"]:
            yield (
                f"self_attn.{letter}_proj.bias",
                Source(stored=f"{stored}.bias", shape=(rows,), heads=order),
            )
        if letter != "v" and family in ("qwen3", "qwen3_moe"):
            yield (
                f"self_attn.{letter}_norm.weight",
                Source(stored=f"{stored}_norm.weight", shape=(size,)),
            )
    stored = f"{block}.attn_output"
    yield "self_attn.o_proj.weight", Source(stored=f"{stored}.weight", shape=(hidden, heads * size))
    if biased["o"]:
        yield "self_attn.o_proj.bias", Source(stored=f"{stored}.bias", shape=(hidden,))


def _feed_forward(config: Mapping[str, Any], layer: int) -> Iterator[tuple[str, Source]]:
    block, hidden, family = f"blk.{layer}", config["hidden_size"], config["model_type"]
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    experts, parent, width = 0, "mlp", config["intermediate_size"]
    if family == "mixtral":
        names = {"gate": "w1", "up": "w3", "down": "w2"}
        experts, parent = config["num_local_experts"], "block_sparse_moe"
    elif family == "qwen3_moe":
        experts, width = config["num_experts"], config["moe_intermediate_size"]
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    if not experts:
        for part, name in names.items():
            stored, shape = f"{block}.ffn_{part}", shapes[part]
            yield f"{parent}.{name}.weight", Source(stored=f"{stored}.weight", shape=shape)
            if config["mlp_bias"]:
                yield f"{parent}.{name}.bias", Source(stored=f"{stored}.bias", shape=shape[:1])
        return
    yield (
        f"{parent}.gate.weight",
        Source(stored=f"{block}.ffn_gate_inp.weight", shape=(experts, hidden)),
    )
    for expert in range(experts):
        for part, name in names.items():
            stack = Source(
                stored=f"{block}.ffn_{part}_exps.weight", shape=shapes[part], expert=expert
            )
            yield f"{parent}.experts.{expert}.{name}.weight", stack


class _Reader:
    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.metadata = metadata
        self.source = source
        self.architecture = str(metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise DataError(
                source, f"architecture {metadata.get('general.architecture')!r} is not supported",
                f"Supported: {', '.join(ARCHITECTURES)}.",
            )  # fmt: skip
        if metadata.get("split.count", 0) > 1:
            raise DataError(
                source, f"one of {metadata['split.count']} parts of a model",
                "Merge them with llama.cpp's llama-gguf-split --merge.",
            )  # fmt: skip

    def whole(self, name: str, default: int | None = None) -> int:
        key = f"{self.architecture}.{name}"
        value = self.metadata.get(key, default)
        if value is None:
            raise DataError(self.source, f"metadata key {key!r} is missing")
        least = 0 if default == 0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(
                self.source, f"{key} is {value!r}, not a whole number of at least {least}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        key = f"{self.architecture}.{name}"
        value = self.metadata.get(key, default)
        if value is None:
            raise DataError(self.source, f"metadata key {key!r} is missing")
        if not isinstance(value, float) or not (math.isfinite(value) and value > 0):
            raise DataError(self.source, f"{key} is {value!r}, not a number above 0")
        return float(str(np.float32(value)))  # 1e-05, not 9.999999747378752e-06

    def demand(self, name: str, width: int) -> None:
        size = self.whole(name, default=width)
        if size != width:
            raise DataError(
                self.source, f"{self.architecture}.{name} is {size}, the size of a head {width}: "
                "only equal ones are supported",
            )  # fmt: skip


def _family(architecture: str, experts: int, window: int) -> str:
    if architecture == "llama":  # its metadata does not distinguish Mistral and Mixtral
        return "mixtral" if experts else "mistral" if window else "llama"
    return "qwen3_moe" if architecture == "qwen3moe" else architecture


def _dtype(header: GgufHeader) -> str:
    kinds = {info.kind.name for info in header.tensors.values() if len(info.shape) > 1}
    if kinds == {"F32"}:
        return "float32"
    return "float16" if "F16" in kinds and "BF16" not in kinds else "bfloat16"


def _rope_scaling(
    read: _Reader, factors: np.ndarray | None, head_dim: int, theta: float
) -> dict[str, Any] | None:
    kind = read.metadata.get(f"{read.architecture}.rope.scaling.type", "none")
    if factors is not None:
        if kind != "none":
            raise DataError(read.source, f"{ROPE_FACTORS} with rope.scaling.type {kind!r}")
        return _llama3_scaling(factors, head_dim, theta, read.source)
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": read.number("rope.scaling.factor")}
    if f"{read.architecture}.rope.scaling.original_context_length" in read.metadata:
        length = read.whole("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = length
    return scaling


def _llama3_scaling(
    factors: np.ndarray, head_dim: int, theta: float, source: str
) -> dict[str, Any] | None:
    """Recover the settings of Llama 3's RoPE scaling from its frequency factors.

    Only ratios matter: low_freq_factor is 1, as published.
    """
    if factors.shape != (head_dim // 2,):
        raise DataError(source, f"{ROPE_FACTORS} has shape {factors.shape}, not ({head_dim // 2},)")
    factors = factors.astype(np.float64)
    factor = float(factors.max())
    if factor == factors.min() == 1:
        return None
    turns = theta ** (-np.arange(0, head_dim, 2) / head_dim) / (2 * math.pi)  # 1 / wavelength
    between = (factors > 1.000001) & (factors < factor * 0.999999)
    settings = [(4.0, 8192)]  # as published for Llama 3.1, 3.2 and 3.3
    if between.sum() >= 2:
        smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
        slope, offset = np.polyfit(turns[between], smooth, 1)
        if offset < 0 < slope:
            settings.append((round(1 - 1 / offset, 4), round(-slope / offset)))
    for high, length in settings:
        smooth = ((length * turns - 1) / (high - 1)).clip(0, 1)
        if np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=1e-4, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": high,
                "original_max_position_embeddings": length,
            }
    raise DataError(source, f"{ROPE_FACTORS} is not a Llama 3 scaling")
