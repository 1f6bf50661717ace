"""Families with states instead of caches, or one block a layer."""

from collections.abc import Mapping
from typing import Any

from c2c.errors import SettingError
from c2c.models.family import Family, deepseek_v3, qwen3, qwen3_moe
from c2c.models.reader import Reader
from c2c.models.spec import LinearAttention

__all__ = ["HYBRIDS"]


def _kinds(read: Reader, name: str, kind: str) -> tuple[int, ...] | None:
    kinds, layers = read.config.get(name), read.layers()
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) < layers:
        raise SettingError(f"{read.where}.{name}", kinds, f"a list of {layers} names")
    return tuple(i for i in range(layers) if kinds[i] == kind)


def _delta(read: Reader, *, fused: bool) -> dict[str, Any]:
    chosen = _kinds(read, "layer_types", "linear_attention")
    if chosen is None:
        step = read.whole("full_attention_interval", default=4)
        chosen = tuple(i for i in range(read.layers()) if (i + 1) % step)
    key_heads, heads = read.whole("linear_num_key_heads"), read.whole("linear_num_value_heads")
    key_dim, dim = read.whole("linear_key_head_dim"), read.whole("linear_value_head_dim")
    kernel = read.whole("linear_conv_kernel_dim")
    channels, values = 2 * key_heads * key_dim + heads * dim, heads * dim
    into = {"qkv": channels, "z": values, "b": heads, "a": heads}
    if fused:
        into = {"qkvz": channels + values, "ba": 2 * heads}
    linear = LinearAttention(
        layers=chosen, key_heads=key_heads, value_heads=heads, key_dim=key_dim, value_dim=dim,
        kernel=kernel, inputs=tuple((f"linear_attn.in_proj_{k}", n) for k, n in into.items()),
        output="linear_attn.out_proj",
        parameters=channels * kernel + 2 * heads + dim,  # two numbers a head, a norm of one head
    )  # fmt: skip
    return {
        "linear": linear if chosen else None,
        "attention_gate": True,
        "norm_offset": 1.0,
    }


def _qwen3_next(read: Reader) -> dict[str, Any]:
    return qwen3_moe(read) | _delta(read, fused=True) | _shared_expert(read)


def _qwen3_5(read: Reader) -> dict[str, Any]:
    return qwen3(read) | _delta(read, fused=False)


def _qwen3_5_moe(read: Reader) -> dict[str, Any]:
    return qwen3_moe(read) | _delta(read, fused=False) | _shared_expert(read)


def _shared_expert(read: Reader) -> dict[str, Any]:
    width = read.whole("shared_expert_intermediate_size")
    return {"shared_intermediate": width, "shared_gate": True}


def _no_dense_width(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"intermediate_size": config.get("intermediate_size")
            or config.get("moe_intermediate_size")}  # fmt: skip


_QWEN3_NEXT = {
    "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25,
    "norm_topk_prob": True,
}  # fmt: skip
_SHARED = {"mlp.shared_experts": "mlp.shared_expert"}
_QWEN3_5 = Family(
    fields=_qwen3_5, defaults={**_QWEN3_NEXT, "num_key_value_heads": 4}, turns_part=True
)
_QWEN3_5_MOE = Family(
    fields=_qwen3_5_moe, defaults=_QWEN3_NEXT, turns_part=True, prepare=_no_dense_width,
    modules=_SHARED,
)  # fmt: skip


def _kimi_linear(read: Reader) -> dict[str, Any]:
    form = read.config.get("linear_attn_config")
    if not isinstance(form, Mapping):
        raise SettingError(f"{read.where}.linear_attn_config", form, "a mapping")
    inner = Reader(form, f"{read.where}.linear_attn_config")
    chosen, layers = form.get("kda_layers"), read.layers()
    if not isinstance(chosen, list) or not set(chosen) <= set(range(1, layers + 1)):
        raise SettingError(f"{inner.where}.kda_layers", chosen, f"numbers from 1 to {layers}")
    heads, dim = inner.whole("num_heads"), inner.whole("head_dim")
    kernel, width, prefix = inner.whole("short_conv_kernel_size"), heads * dim, "self_attn"
    into = {"q_proj": width, "k_proj": width, "v_proj": width, "b_proj": heads, "f_a_proj": dim}
    between = [(f"{prefix}.f_b_proj", dim, width)]
    if inner.flag("use_full_rank_gate", default=False):
        into["g_proj"] = width
    else:
        into["g_a_proj"] = dim
        between.append((f"{prefix}.g_b_proj", dim, width))
    linear = LinearAttention(
        layers=tuple(sorted(i - 1 for i in chosen)), key_heads=heads, value_heads=heads,
        key_dim=dim, value_dim=dim, kernel=kernel,
        inputs=tuple((f"{prefix}.{name}", n) for name, n in into.items()), inner=tuple(between),
        output=f"{prefix}.o_proj",
        # convolution, a bias a channel and a decay a head, a norm of one head
        parameters=3 * width * kernel + width + heads + dim,
    )  # fmt: skip
    values = deepseek_v3(read)
    narrow = read.whole("routed_expert_hidden_size", default=0, least=0)
    norms = read.flag("latent_moe_use_norm", default=False) * narrow
    sparse = values["experts"] and read.layers() - len(values["dense_layers"])
    return values | {
        "linear": linear,
        "attention_gate": read.flag("mla_use_output_gate", default=False),
        "expert_hidden": narrow,
        "more_parameters": norms * sparse,
    }


_KIMI_NAMES = {
    "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
    "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "model_max_length": "max_position_embeddings",
}  # fmt: skip


def _kimi_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = {new: config[old] for old, new in _KIMI_NAMES.items() if old in config}
    sizes = [config.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    widths = [size for size in sizes if type(size) is int]
    return fields | ({"head_dim": sum(widths)} if len(widths) == len(sizes) else {})


_KIMI = Family(
    fields=_kimi_linear,
    prepare=_kimi_names,
    modules={"mlp.experts": "block_sparse_moe.experts", "mlp.gate": "block_sparse_moe.gate",
             "mlp.shared_experts": "block_sparse_moe.shared_experts"},
)  # fmt: skip


def _nemotron_h(read: Reader) -> dict[str, Any]:
    kinds, layers = read.config["layers_block_type"], read.layers()
    blocks = {
        kind: tuple(i for i in range(layers) if kinds[i] == kind) for kind in _BLOCKS.values()
    }
    others = sum(blocks.values(), ())
    if len(others) < layers:
        unknown = next(kinds[i] for i in range(layers) if i not in others)
        raise SettingError(
            f"{read.where}.layers_block_type", unknown, f"one of {', '.join(_BLOCKS.values())}"
        )
    for name in ("mamba_proj_bias", "mlp_bias", "use_bias"):
        read.demand(name, False, False)
    heads, dim = read.whole("mamba_num_heads"), read.whole("mamba_head_dim")
    groups, state = read.whole("n_groups"), read.whole("ssm_state_size")
    kernel, inner = read.whole("conv_kernel"), heads * dim
    channels, bias = inner + 2 * groups * state, read.flag("use_conv_bias", default=True)
    dtype = str(read.config.get("mamba_ssm_cache_dtype") or "float32")
    if dtype not in _STATE_BYTES:
        raise SettingError(
            f"{read.where}.mamba_ssm_cache_dtype", dtype, f"one of {', '.join(_STATE_BYTES)}"
        )
    linear = LinearAttention(
        layers=blocks["mamba"], key_heads=groups, value_heads=heads, key_dim=state, value_dim=dim,
        kernel=kernel, inputs=(("mixer.in_proj", inner + channels + heads),),
        output="mixer.out_proj", element_bytes=_STATE_BYTES[dtype],
        # convolution, three numbers a head, a norm
        parameters=channels * (kernel + bias) + 3 * heads + inner,
    )  # fmt: skip
    values = {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
        "qkv_bias": read.flag("attention_bias", default=False),
        "o_bias": read.flag("attention_bias", default=False),
        "linear": linear,
        "gated_mlp": False,
        "without_attention": tuple(sorted((*blocks["moe"], *blocks["mlp"]))),
        "without_feed_forward": tuple(sorted((*blocks["mamba"], *blocks["attention"]))),
        "activation": str(read.config.get("mlp_hidden_act") or "relu2"),
    }
    if not blocks["moe"]:
        return values
    shared = read.whole("moe_shared_expert_intermediate_size", default=0, least=0)
    return values | {
        "experts": read.whole("n_routed_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": read.whole("moe_intermediate_size"),
        "expert_hidden": read.whole("moe_latent_size", default=0, least=0),
        "shared_intermediate": shared * read.whole("n_shared_experts", default=1, least=0),
        "dense_layers": tuple(i for i in range(layers) if i not in blocks["moe"]),
        "norm_topk": read.flag("norm_topk_prob", default=True),
        "routed_scale": read.factor("routed_scaling_factor", 1.0),
        "router_sigmoid": True,
        "router_bias": True,
    }


_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _blocks(config: Mapping[str, Any]) -> Mapping[str, Any]:
    pattern = config.get("hybrid_override_pattern")
    kinds = config.get("layers_block_type") or [_BLOCKS.get(c, c) for c in str(pattern or "")]
    fields = {"layers_block_type": kinds, "num_hidden_layers": len(kinds)}
    head = config.get("head_dim") or config.get("attention_head_dim")
    return fields | ({"head_dim": head} if head else {})


_MIXER = {
    "mlp.gate": "mixer.gate", "mlp.experts_in": "mixer.fc1_latent_proj",
    "mlp.experts_out": "mixer.fc2_latent_proj", "mlp": "mixer", "self_attn": "mixer",
}  # fmt: skip

HYBRIDS: dict[str, Family] = {
    "kimi_k3": _KIMI,
    "kimi_linear": _KIMI,
    "nemotron_h": Family(fields=_nemotron_h, prepare=_blocks, modules=_MIXER),
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5_MOE,
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_next": Family(
        fields=_qwen3_next, defaults=_QWEN3_NEXT, turns_part=True, modules=_SHARED
    ),
}
