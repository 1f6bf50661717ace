"""Families with sparse attention by an index."""

from collections.abc import Mapping
from typing import Any

from c2c.errors import SettingError
from c2c.models.family import Family, deepseek_v3, shared_experts, sizes
from c2c.models.reader import Reader
from c2c.models.spec import Compressed, Indexer

__all__ = ["SPARSE"]


def _deepseek_v32(read: Reader) -> dict[str, Any]:
    layers, kinds = read.layers(), read.config.get("indexer_types")
    every = tuple(range(layers))
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) < layers):
        raise SettingError(f"{read.where}.indexer_types", kinds, f"a list of {layers} names")
    index_layers = every if kinds is None else tuple(i for i in every if kinds[i] == "full")
    index = Indexer(
        heads=read.whole("index_n_heads"), dim=read.whole("index_head_dim"),
        top_k=read.whole("index_topk"), layers=index_layers, sparse=every,
    )  # fmt: skip
    return deepseek_v3(read) | {"index": index}


def _minimax_m2(read: Reader) -> dict[str, Any]:
    width = read.whole("intermediate_size")
    shared = read.whole("shared_intermediate_size", default=0, least=0)
    norm = read.flag("use_qk_norm", default=True)
    return sizes(read) | {
        "qk_norm": norm,
        "qk_norm_whole": read.config.get("qk_norm_type", "per_layer") == "per_layer",
        "experts": read.whole("num_local_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
        "shared_intermediate": shared,
        "router_sigmoid": read.config.get("scoring_func", "sigmoid") == "sigmoid",
        "router_bias": read.flag("use_routing_bias", default=True),
    }


def _rotated_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    part, dim = config.get("rotary_dim"), config.get("head_dim")
    if not part or not dim or "partial_rotary_factor" in config:
        return {}
    return {"partial_rotary_factor": part / dim}


def _minimax_m3(read: Reader) -> dict[str, Any]:
    layers, where = read.layers(), f"{read.where}.sparse_attention_config"
    form = read.config.get("sparse_attention_config")
    if not isinstance(form, Mapping):
        raise SettingError(where, form, "a mapping")
    inner, on = Reader(form, where), form.get("sparse_attention_freq")
    if not isinstance(on, list) or len(on) != layers:
        raise SettingError(f"{where}.sparse_attention_freq", on, f"a list of {layers} of 0 and 1")
    sparse = tuple(i for i, flag in enumerate(on) if flag)
    index = Indexer(
        heads=inner.whole("sparse_num_index_heads"), dim=inner.whole("sparse_index_dim"),
        top_k=inner.whole("sparse_topk_blocks") * inner.whole("sparse_block_size"),
        layers=sparse, sparse=sparse, is_weighted=False,
    )  # fmt: skip
    is_sparse = inner.flag("use_sparse_attention", default=True)
    shared = read.whole("shared_intermediate_size", default=0, least=0)
    return shared_experts(read) | {
        "intermediate": read.whole("dense_intermediate_size", "intermediate_size"),
        "shared_intermediate": shared * read.whole("n_shared_experts", default=1, least=0),
        "index": index if is_sparse else None,
        "attention_gate": read.flag("attention_output_gate", default=False),
        "qk_norm": read.flag("use_qk_norm", default=True),
        "norm_offset": 1.0 if read.flag("use_gemma_norm", default=False) else 0.0,
        "norm_topk": True,
        "router_sigmoid": True,
        "router_bias": read.flag("use_routing_bias", default=True),
    }


def _expert_width(config: Mapping[str, Any]) -> Mapping[str, Any]:
    width = config.get("moe_intermediate_size") or config.get("intermediate_size")
    return {"moe_intermediate_size": width}


def _deepseek_v4(read: Reader) -> dict[str, Any]:
    layers, heads, hidden = (
        read.layers(),
        read.whole("num_attention_heads"),
        read.whole("hidden_size"),
    )
    ratios = read.config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers:
        raise SettingError(f"{read.where}.compress_ratios", ratios, f"a list of {layers} ratios")
    form = Compressed(
        ratios=tuple(ratios[:layers]), window=read.whole("sliding_window"),
        q_rank=read.whole("q_lora_rank"), out_rank=read.whole("o_lora_rank"),
        out_groups=read.whole("o_groups"), index_ratio=4,
        index_heads=read.whole("index_n_heads"), index_dim=read.whole("index_head_dim"),
        top_k=read.whole("index_topk"),
    )  # fmt: skip
    streams, vocab = read.whole("hc_mult"), read.whole("vocab_size")
    mixed = (2 + streams) * streams  # weights of a block's streams, before, after and across it
    block = mixed * streams * hidden + mixed + 3
    wide = 2 * layers * block + streams * streams * hidden + streams + 1
    values = shared_experts(read)
    hashed = read.whole("num_hash_layers", default=3, least=0)
    missing = hashed * values["experts"]  # biases: a table has the experts of each token instead
    tables = 8 * hashed * vocab * values["experts_per_token"]
    return values | {
        "compressed": form,
        "more_parameters": wide - missing,
        "more_bytes": 2 * wide - 2 * missing + 2 * layers * heads + tables,  # the rest of float32
        "router_bias": True,
    }


def _deepseek_v4_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    result = {"intermediate_size": config.get("moe_intermediate_size")}
    form = config.get("quantization_config")
    if not isinstance(form, Mapping):
        return result
    kind = config.get("expert_dtype")
    is_short = form.get("scale_fmt") == "ue8m0" and kind != "fp8"
    packed: dict[str, Any] = {"scale_bytes": 1} if is_short else {}
    if kind == "fp4" and not form.get("quantized_layers"):
        packed["quantized_layers"] = {"ffn.experts": {"quant_algo": "MXFP4"}}
    return result | {"quantization_config": {**form, **packed}}


_V4 = Family(
    fields=_deepseek_v4,
    prepare=_deepseek_v4_names,
    modules={"mlp": "ffn"},
    defaults={"norm_topk_prob": True, "n_group": 1},
)
_V32 = Family(fields=_deepseek_v32, defaults={"norm_topk_prob": True})
_SPARSE_MOE = {
    "mlp.experts.gate_proj": "block_sparse_moe.experts.w1",
    "mlp.experts.up_proj": "block_sparse_moe.experts.w3",
    "mlp.experts.down_proj": "block_sparse_moe.experts.w2",
    "mlp.gate": "block_sparse_moe.gate", "mlp.shared_experts": "block_sparse_moe.shared_experts",
}  # fmt: skip
_M3 = Family(
    fields=_minimax_m3, prepare=_expert_width, modules=_SPARSE_MOE, turns_part=True,
    defaults={"norm_topk_prob": True},
)  # fmt: skip

SPARSE: dict[str, Family] = {
    "deepseek_ref": _V4,
    "deepseek_v32": _V32,
    "deepseek_v4": _V4,
    "glm_moe_dsa": _V32,
    "minimax_m2": Family(
        fields=_minimax_m2,
        defaults={"head_dim": 128, "rope_theta": 5e6},
        prepare=_rotated_part,
        turns_part=True,
        modules=_SPARSE_MOE,
    ),
    "minimax_m3": _M3,
    "minimax_m3_vl": _M3,
}
