"""Families with several kinds of heads or widths."""

from collections.abc import Iterable, Mapping
from typing import Any

from c2c.errors import SettingError
from c2c.models.family import Family, all_but_each, biases, shared_experts, sizes
from c2c.models.reader import Reader
from c2c.models.spec import Heads

__all__ = ["SEVERAL_HEADS"]


def _gemma4(read: Reader) -> dict[str, Any]:
    for name, value in (("hidden_size_per_layer_input", 0), ("num_kv_shared_layers", 0),
                        ("use_double_wide_mlp", False)):  # fmt: skip
        read.demand(name, value, value)
    heads, dim = read.whole("num_attention_heads"), read.whole("head_dim")
    local = Heads(heads=heads, kv_heads=read.whole("num_key_value_heads"), head_dim=dim,
                  value_dim=dim)  # fmt: skip
    shares = read.flag("attention_k_eq_v", default=False)
    values = sizes(read) | biases(read, out=True) | {
        "head_dim": read.whole("global_head_dim", default=dim),
        "kv_heads": read.whole("num_global_key_value_heads", default=local.kv_heads)
        if shares else local.kv_heads,
        "keys_are_values": shares,
        "windowed_heads": local,
        "qk_norm": True,
        "norms_per_layer": 4,
        "norm_place": "around",
        "embedding_scale": read.whole("hidden_size") ** 0.5,
        "attention_scale": 1.0,
        "logit_cap": read.factor("final_logit_softcapping", 1.0)
        if read.config.get("final_logit_softcapping") else 0.0,
        "activation": str(read.config["hidden_activation"]),
        "more_bytes": 2 * read.layers(),  # a factor of each layer's result
    }  # fmt: skip
    if not read.flag("enable_moe_block", default=False):
        return values
    experts = read.whole("num_experts")
    return values | {
        "experts": experts,
        "experts_per_token": read.whole("top_k_experts"),
        "moe_intermediate": read.whole("moe_intermediate_size"),
        "shared_intermediate": values["intermediate"],
        "norms_per_layer": 7,
        # factors of a router's inputs, and of its results
        "more_parameters": read.layers() * (read.whole("hidden_size") + experts),
    }


def _llama4(read: Reader) -> dict[str, Any]:
    layers, step = read.layers(), read.whole("interleave_moe_layer_step", default=1)
    sparse = read.config.get("moe_layers") or list(range(step - 1, layers, step))
    if not isinstance(sparse, list) or not set(sparse) <= set(range(layers)):
        raise SettingError(f"{read.where}.moe_layers", sparse, f"numbers from 0 to {layers - 1}")
    width = read.whole("intermediate_size")
    chunk = read.whole("attention_chunk_size", default=2**30)
    if read.flag("attn_temperature_tuning", default=True):
        chunk = min(chunk, read.whole("floor_scale", default=8192) - 1)
    turned = set(_llama4_windowed(read, layers))
    return biases(read, out=True) | {
        "norm_topk": False,
        "weighted_inputs": True,
        "rotary_interleaved": True,
        "unrotated_layers": tuple(i for i in range(layers) if i not in turned),
        "qk_unit": read.flag("use_qk_norm", default=True),
        "plain_tokens": chunk,
        "intermediate": read.whole("intermediate_size_mlp"),
        "max_position": read.whole("max_position_embeddings"),
        "experts": read.whole("num_local_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
        "shared_intermediate": width,
        "dense_layers": tuple(i for i in range(layers) if i not in sparse),
        "router_sigmoid": True,
    }


def _llama4_chunks(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"sliding_window": config.get("attention_chunk_size")}


def _llama4_windowed(read: Reader, layers: int) -> Iterable[int]:
    turned = read.config.get("no_rope_layers")
    if turned and (not isinstance(turned, list) or len(turned) != layers):
        raise SettingError(f"{read.where}.no_rope_layers", turned, f"a list of {layers} of 0 and 1")
    step = read.whole("no_rope_layer_interval", default=4)
    return (i for i in range(layers) if (turned[i] if turned else (i + 1) % step))


def _mimo_v2(read: Reader) -> dict[str, Any]:
    local = Heads(
        heads=read.whole("swa_num_attention_heads", "num_attention_heads"),
        kv_heads=read.whole("swa_num_key_value_heads", "num_key_value_heads"),
        head_dim=read.whole("swa_head_dim", "head_dim"),
        value_dim=read.whole("swa_v_head_dim", "v_head_dim"),
        sinks=read.flag("add_swa_attention_sink_bias", default=False),
    )
    return (
        shared_experts(read)
        | biases(read, out=False)
        | {
            "value_dim": read.whole("v_head_dim"),
            "windowed_heads": local,
            "attention_sinks": read.flag("add_full_attention_sink_bias", default=False),
            "norm_eps": read.factor("layernorm_epsilon", 1e-6),
            "router_sigmoid": True,
            "router_bias": True,
        }
    )


def _mimo_windowed(read: Reader, layers: int) -> Iterable[int]:
    pattern = read.config.get("hybrid_layer_pattern")
    if not isinstance(pattern, list) or len(pattern) != layers:
        raise SettingError(f"{read.where}.hybrid_layer_pattern", pattern, f"a list of {layers}")
    return (i for i, kind in enumerate(pattern) if kind == 1)


def _step3(read: Reader) -> dict[str, Any]:
    heads, kv_heads = read.whole("num_attention_heads"), read.whole("num_key_value_heads")
    other = read.config.get("attention_other_setting")
    inner = Reader(other if isinstance(other, Mapping) else {}, f"{read.where}.attention_other")
    local = inner.whole("num_attention_heads", default=heads)
    local = read.whole("num_sliding_attention_heads", default=local)
    dim = read.whole("head_dim")
    return shared_experts(read) | biases(read, out=True) | {
        "shared_intermediate": read.whole("share_expert_dim", default=0, least=0),
        "windowed_heads": None if local == heads else Heads(
            heads=local, kv_heads=inner.whole("num_attention_groups", default=kv_heads),
            head_dim=dim, value_dim=dim,
        ),
        "head_gate": True,
        "qk_norm": True,
        "norm_offset": 1.0,
        "routed_scale": read.factor("moe_router_scaling_factor", 1.0),
        "router_sigmoid": True,
        "router_bias": True,
    }  # fmt: skip


def _step_windowed(_: Reader, layers: int) -> Iterable[int]:
    return (i for i in range(layers) if i % 4)


_STEP_NAMES = {
    "moe_num_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok",
    "num_attention_groups": "num_key_value_heads", "share_expert_dims": "share_expert_dim",
    "max_seq_len": "max_position_embeddings",
}  # fmt: skip


def _step_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    result: dict[str, Any] = {
        new: config[old] for old, new in _STEP_NAMES.items() if old in config and new not in config
    }
    layers, sparse = config.get("num_hidden_layers"), config.get("moe_layers_enum")
    if sparse is not None and type(layers) is int:
        chosen = set(map(int, sparse.split(",") if isinstance(sparse, str) else sparse))
        result["mlp_layer_types"] = ["sparse" if i in chosen else "dense" for i in range(layers)]
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and type(layers) is int:  # blocks for further tokens stand behind
        result["layer_types"] = kinds[:layers]
    return result


def _nas(read: Reader) -> dict[str, Any]:
    hidden, layers, heads = (
        read.whole("hidden_size"),
        read.layers(),
        read.whole("num_attention_heads"),
    )
    blocks = read.config.get("block_configs")
    where = f"{read.where}.block_configs"
    if not isinstance(blocks, list) or len(blocks) != layers:
        raise SettingError(where, "a list of other length", f"a list of {layers} mappings")
    widths, groups, bare = [], set[int](), []
    for i, block in enumerate(blocks):
        attention = Reader(block["attention"], f"{where}[{i}].attention")
        block_ffn = Reader(block["ffn"], f"{where}[{i}].ffn")
        for part in (attention, block_ffn):
            part.demand("replace_with_linear", False, False)
        for name in ("window_length", "num_sink_tokens", "sparsify"):
            attention.demand(name, None, None)
        if attention.flag("no_op", default=False):
            bare.append(i)
        else:
            groups.add(attention.whole("n_heads_in_group"))
        if block_ffn.flag("no_op", default=False):
            widths.append(0)
        else:
            width = int(2 * block_ffn.factor("ffn_mult", 1.0) * hidden / 3)
            widths.append(-(-width // 256) * 256)
    if len(groups) != 1:
        raise SettingError(where, sorted(groups), "one n_heads_in_group")
    return {
        "intermediate": max(widths),
        "max_position": read.whole("max_position_embeddings"),
        "kv_heads": heads // groups.pop(),
        "widths": tuple(widths),
        "without_attention": tuple(bare),
        "without_feed_forward": tuple(i for i, width in enumerate(widths) if not width),
    }


_GEMMA4 = Family(
    fields=_gemma4,
    defaults={
        "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
        "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
    },
    windowed=all_but_each(6),
    modules={"mlp.experts": "experts", "mlp.gate": "router.proj", "mlp.shared_experts": "mlp"},
)  # fmt: skip
_LLAMA4 = Family(
    fields=_llama4,
    windowed=_llama4_windowed,
    names_layers=False,
    prepare=_llama4_chunks,
    defaults={"attention_chunk_size": 8192, "head_dim": 128, "rope_theta": 500000.0,
              "rms_norm_eps": 1e-5},
    modules={"mlp.gate": "feed_forward.router", "mlp.shared_experts": "feed_forward.shared_expert",
             "mlp": "feed_forward"},
)  # fmt: skip
_STEP3 = Family(
    fields=_step3,
    prepare=_step_names,
    windowed=_step_windowed,
    defaults={"rms_norm_eps": 1e-5, "norm_topk_prob": True, "first_k_dense_replace": 3},
)

SEVERAL_HEADS: dict[str, Family] = {
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "mimo_v2_flash": Family(fields=_mimo_v2, windowed=_mimo_windowed, names_layers=False),
    "nemotron-nas": Family(fields=_nas),
    "step3p5": _STEP3,
    "step3p7": _STEP3,
}
