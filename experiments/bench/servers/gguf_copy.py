"""GGUF copies of float32 checkpoints, for servers that read no other format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ARCHITECTURES", "END", "write_gguf"]

ARCHITECTURES = ("llama", "qwen3")
"""Architectures that llama.cpp computes as Hugging Face does, with tensor names known here."""

_OF_ALL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_OF_A_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_BYTES = 256
END = 2
"""End-of-text token; servers differ in whether they sample it when told to ignore the end."""


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of q or k in llama.cpp's order: rotary pairs are neighbours."""
    half = len(rows) // heads // 2
    return rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def _renamed(
    tensors: dict[str, np.ndarray], config: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    heads = {
        "attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]
    }  # fmt: skip
    for name, values in tensors.items():
        if name in _OF_ALL:
            yield _OF_ALL[name], values
            continue
        _, _, layer, part = name.removesuffix(".weight").split(".", 3)
        kind = _OF_A_LAYER[part]
        turned = config["model_type"] == "llama" and kind in heads
        rows = _interleaved(values, heads[kind]) if turned else values
        yield f"blk.{layer}.{kind}.weight", rows


def write_gguf(folder: Path, to: Path) -> Path:
    """Write a checkpoint (one file, float32, of `ARCHITECTURES`) as a GGUF file, bit for bit.

    Texts of tokens are invented: prompts must be token ids. No text is a part of a character,
    since a server holds such tokens back until the character is whole.
    """
    import gguf
    from safetensors.numpy import load_file

    from c2c.models import from_hf_config

    config = json.loads((folder / "config.json").read_text())
    spec = from_hf_config(config, folder.name)
    writer = gguf.GGUFWriter(to, config["model_type"])
    writer.add_block_count(spec.layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_vocab_size(spec.vocab)
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(_BYTES))]
    texts += [f"w{number}" for number in range(len(texts), spec.vocab)]
    special = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([-float(number) for number in range(spec.vocab)])
    writer.add_token_types([*special, *[gguf.TokenType.NORMAL] * (spec.vocab - len(special))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(END)
    for name, values in _renamed(load_file(folder / "model.safetensors"), config):
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
