"""Small GGUF files with known weights, written by the gguf library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from c2c.transformer.gguf.blocks import QuantizedTensor

SIZES = {
    "hidden": 256, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 64, "width": 512,
    "vocab": 96, "experts": 3,
}  # fmt: skip


def quantised_rows(rng: np.random.Generator, kind: GGMLQuantizationType, n: int, k: int) -> Any:
    """Random rows of blocks: the library's own quantiser, or random bits where it has none."""
    if kind.name in ("Q4_K", "Q6_K", "Q5_K"):
        block, size = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (n * k // block, size), dtype=np.uint8)
        halves = (208,) if kind.name == "Q6_K" else (0, 2)
        for at in halves:
            scale = rng.normal(0, 0.01, (len(blocks), 1)).astype(np.float16)
            blocks[:, at : at + 2] = scale.view(np.uint8)
        return blocks.reshape(n, -1)
    weights = rng.normal(0, 0.05, (n, k)).astype(np.float32)
    return gguf.quantize(weights, kind)


@dataclass
class Built:
    """A written file: each tensor's values in float32, and its storage."""

    path: Path
    wanted: dict[str, np.ndarray] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k."""
    n = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, n, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class Builder:
    """Writes a model of one architecture; attributes may be changed before `write`."""

    def __init__(self, arch: str = "llama", kind: str = "F32", *, moe: bool = False, seed: int = 0):
        self.arch, self.moe = arch, moe
        self.kind = GGMLQuantizationType[kind]
        self.rng = np.random.default_rng(seed)
        self.sizes = dict(SIZES)
        self.keys: dict[str, Any] = {}
        self.drop: set[str] = set()
        self.extra: dict[str, np.ndarray] = {}
        self.tied = False
        self.raw_kinds: dict[str, GGMLQuantizationType] = {}

    def matrices(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """(stored name, Hugging Face name, shape, heads whose rows are interleaved)."""
        s = self.sizes
        q, kv, h, w = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"], 256, s["width"]
        result = [("token_embd.weight", "model.embed_tokens.weight", (s["vocab"], h), 0)]
        if not self.tied:
            result.append(("output.weight", "lm_head.weight", (s["vocab"], h), 0))
        llama = self.arch == "llama"
        for layer in range(s["layers"]):
            b, p = f"blk.{layer}", f"model.layers.{layer}"
            result += [
                (f"{b}.attn_q.weight", f"{p}.self_attn.q_proj.weight", (q, h), llama * s["heads"]),
                (
                    f"{b}.attn_k.weight", f"{p}.self_attn.k_proj.weight", (kv, h),
                    llama * s["kv_heads"],
                ),
                (f"{b}.attn_v.weight", f"{p}.self_attn.v_proj.weight", (kv, h), 0),
                (f"{b}.attn_output.weight", f"{p}.self_attn.o_proj.weight", (h, q), 0),
            ]  # fmt: skip
            if not self.moe:
                result += [
                    (f"{b}.ffn_gate.weight", f"{p}.mlp.gate_proj.weight", (w, h), 0),
                    (f"{b}.ffn_up.weight", f"{p}.mlp.up_proj.weight", (w, h), 0),
                    (f"{b}.ffn_down.weight", f"{p}.mlp.down_proj.weight", (h, w), 0),
                ]
        return result

    def stacks(self) -> list[tuple[str, list[str], tuple[int, int]]]:
        """(stored name, the experts' Hugging Face names, one expert's shape)."""
        if not self.moe:
            return []
        w, result = self.sizes["width"], []
        mixtral = self.arch == "llama"
        names = {"gate": "w1", "up": "w3", "down": "w2"} if mixtral else {}
        parent = "block_sparse_moe" if mixtral else "mlp"
        for layer in range(self.sizes["layers"]):
            for part, shape in (("gate", (w, 256)), ("up", (w, 256)), ("down", (256, w))):
                name = names.get(part, f"{part}_proj")
                result.append(
                    (
                        f"blk.{layer}.ffn_{part}_exps.weight",
                        [
                            f"model.layers.{layer}.{parent}.experts.{e}.{name}.weight"
                            for e in range(self.sizes["experts"])
                        ],
                        shape,
                    )
                )
        return result

    def vectors(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        s = self.sizes
        q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        result: list[tuple[str, str, tuple[int, ...], int]] = [
            ("output_norm.weight", "model.norm.weight", (256,), 0)
        ]
        for layer in range(s["layers"]):
            b, p = f"blk.{layer}", f"model.layers.{layer}"
            result += [
                (f"{b}.attn_norm.weight", f"{p}.input_layernorm.weight", (256,), 0),
                (f"{b}.ffn_norm.weight", f"{p}.post_attention_layernorm.weight", (256,), 0),
            ]
            if self.arch == "qwen2":
                result += [
                    (f"{b}.attn_{x}.bias", f"{p}.self_attn.{x}_proj.bias", (n,), 0)
                    for x, n in (("q", q), ("k", kv), ("v", kv))
                ]
            if self.arch in ("qwen3", "qwen3moe"):
                result += [
                    (f"{b}.attn_{x}_norm.weight", f"{p}.self_attn.{x}_norm.weight", (64,), 0)
                    for x in "qk"
                ]
            if self.moe:
                parent = "block_sparse_moe" if self.arch == "llama" else "mlp"
                result.append(
                    (
                        f"{b}.ffn_gate_inp.weight", f"{p}.{parent}.gate.weight",
                        (s["experts"], 256), 0,
                    )
                )  # fmt: skip
        return result

    def metadata(self) -> dict[str, Any]:
        s, a = self.sizes, self.arch
        found: dict[str, Any] = {
            f"{a}.block_count": s["layers"], f"{a}.context_length": 2048,
            f"{a}.embedding_length": 256, f"{a}.feed_forward_length": s["width"],
            f"{a}.attention.head_count": s["heads"], f"{a}.attention.head_count_kv": s["kv_heads"],
            f"{a}.attention.layer_norm_rms_epsilon": 1e-5, f"{a}.rope.freq_base": 500000.0,
        }  # fmt: skip
        if self.moe:
            found[f"{a}.expert_count"] = s["experts"]
            found[f"{a}.expert_used_count"] = 2
            found[f"{a}.expert_feed_forward_length"] = s["width"]
        return {**found, **self.keys}

    def write(self, path: Path) -> Built:
        built = Built(path)
        writer = gguf.GGUFWriter(path, self.arch)
        for key, value in self.metadata().items():
            if value is None:
                continue
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
        for stored, name, shape, heads in self.matrices():
            kind = self.raw_kinds.get(stored, self.kind)
            rows = quantised_rows(self.rng, kind, *shape)
            built.wanted[name] = gguf.dequantize(rows, kind).reshape(shape)
            built.kinds[name] = kind.name
            self._add(writer, stored, interleave(rows, heads) if heads else rows, kind)
        for stored, names, shape in self.stacks():
            rows = [quantised_rows(self.rng, self.kind, *shape) for _ in names]
            for name, part in zip(names, rows, strict=True):
                built.wanted[name] = gguf.dequantize(part, self.kind).reshape(shape)
                built.kinds[name] = self.kind.name
            self._add(writer, stored, np.stack(rows), self.kind)
        for stored, name, shape, heads in self.vectors():
            vector = self.rng.normal(1, 0.1, shape).astype(np.float32)
            built.wanted[name], built.kinds[name] = vector, "F32"
            self._add(
                writer, stored, interleave(vector, heads) if heads else vector,
                GGMLQuantizationType.F32,
            )  # fmt: skip
        for stored, array in self.extra.items():
            self._add(writer, stored, array, GGMLQuantizationType.F32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return built

    def _add(self, writer: Any, name: str, data: np.ndarray, kind: GGMLQuantizationType) -> None:
        if name in self.drop:
            return
        plain = kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=None if plain else kind)


def dequantized(tensor: QuantizedTensor) -> np.ndarray:
    """The matrix of integers, scales and minima, in float32."""
    groups = tensor.values.reshape(len(tensor.values), -1, tensor.group).astype(np.float32)
    out = groups * tensor.scales[:, :, None]
    if tensor.minima is not None:
        out += tensor.minima[:, :, None]
    return out.reshape(tensor.values.shape)
