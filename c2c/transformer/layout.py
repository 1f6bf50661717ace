"""Which tensors of a checkpoint make which stack of weights: the model's parameters as data.

Projections that read the same input are one matrix: q, k and v; gate and up. All are [N, K] (rows
are outputs), as checkpoints store them, so that loading transposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.models import ModelSpec

__all__ = ["FAMILIES", "Part", "Stack", "check_supported", "layout"]

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
_ROPE_KINDS = ("linear", "llama3")

# (gate, up, down) of an expert, and where the experts and their router stand
_EXPERTS = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tensor of a checkpoint and where it goes: `stack[at][first : first + shape[0]]`."""

    tensor: str
    shape: tuple[int, ...]
    at: tuple[int, ...] = ()  # (layer,) or (layer, expert)
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One array of parameters, all layers of a kind."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    projection: bool  # a GEMM's weights, which may stay in host memory


def check_supported(spec: ModelSpec) -> None:
    """Return if the transformer computes models of this kind.

    Raises:
      SettingError: the family, activation or rotary embedding is not supported; names it.
    """
    where = f"model.{spec.name}"
    if spec.family not in FAMILIES:
        raise SettingError(f"{where}.family", spec.family, f"one of {', '.join(FAMILIES)}")
    if spec.activation != "silu":
        raise SettingError(f"{where}.activation", spec.activation, "'silu', the only one supported")
    scaling = spec.rope_scaling
    if scaling is not None and scaling.kind not in _ROPE_KINDS:
        raise SettingError(
            f"{where}.rope_scaling.kind", scaling.kind, f"one of default, {', '.join(_ROPE_KINDS)}"
        )
    if spec.rotary_fraction != 1.0:
        raise SettingError(f"{where}.rotary_fraction", spec.rotary_fraction, "1.0")
    if spec.head_dim % 2:
        raise SettingError(f"{where}.head_dim", spec.head_dim, "an even number, which RoPE pairs")
    if spec.partial_window_layers and not spec.window_layers:
        raise SettingError(f"{where}.window_layers", (), "which layers have the window")


def layout(spec: ModelSpec) -> tuple[Stack, ...]:
    """Return every array of parameters, the embedding first; `head` only if it is not tied."""
    h, vocab = spec.hidden, spec.vocab
    stacks = [
        _single("embed", "model.embed_tokens.weight", (vocab, h)),
        _single("final_norm", "model.norm.weight", (h,)),
        *_norms(spec),
        *_attention(spec),
        *(_experts(spec) if spec.experts else _feed_forward(spec)),
    ]
    if not spec.tie_embeddings:
        stacks.append(_single("head", "lm_head.weight", (vocab, h), projection=True))
    return tuple(stacks)


def _single(name: str, tensor: str, shape: tuple[int, ...], *, projection: bool = False) -> Stack:
    part = Part(tensor=tensor, shape=shape)
    return Stack(name=name, shape=shape, parts=(part,), projection=projection)


def _per_layer(
    spec: ModelSpec,
    name: str,
    tensors: tuple[tuple[str, int], ...],
    columns: int | None,
    *,
    projection: bool = False,
) -> Stack:
    """Stack tensors of every layer; several of them one below the other.

    Args:
      spec: the model.
      name: of the stack.
      tensors: (name below the layer, rows) of each.
      columns: of all of them; None for vectors.
      projection: as in `Stack`.
    """
    tail = () if columns is None else (columns,)

    def parts() -> Iterator[Part]:
        for layer in range(spec.layers):
            first = 0
            for tensor, rows in tensors:
                full = f"model.layers.{layer}.{tensor}"
                yield Part(tensor=full, shape=(rows, *tail), at=(layer,), first=first)
                first += rows

    shape = (spec.layers, sum(rows for _, rows in tensors), *tail)
    return Stack(name=name, shape=shape, parts=tuple(parts()), projection=projection)


def _norms(spec: ModelSpec) -> list[Stack]:
    names = {
        "attention_norm": ("input_layernorm", spec.hidden),
        "mlp_norm": ("post_attention_layernorm", spec.hidden),
    }
    if spec.qk_norm:
        names |= {
            "q_norm": ("self_attn.q_norm", spec.head_dim),
            "k_norm": ("self_attn.k_norm", spec.head_dim),
        }
    return [
        _per_layer(spec, name, ((f"{tensor}.weight", width),), None)
        for name, (tensor, width) in names.items()
    ]


def _attention(spec: ModelSpec) -> list[Stack]:
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    rows = (("q", q), ("k", kv), ("v", kv))

    def named(suffix: str) -> tuple[tuple[str, int], ...]:
        return tuple((f"self_attn.{name}_proj.{suffix}", size) for name, size in rows)

    out = "self_attn.o_proj"
    stacks = [
        _per_layer(spec, "qkv", named("weight"), spec.hidden, projection=True),
        _per_layer(spec, "o", ((f"{out}.weight", spec.hidden),), q, projection=True),
    ]
    if spec.qkv_bias:
        stacks.append(_per_layer(spec, "qkv_bias", named("bias"), None))
    if spec.o_bias:
        stacks.append(_per_layer(spec, "o_bias", ((f"{out}.bias", spec.hidden),), None))
    return stacks


def _feed_forward(spec: ModelSpec) -> list[Stack]:
    h, width = spec.hidden, spec.intermediate

    def both(suffix: str) -> tuple[tuple[str, int], ...]:
        return ((f"mlp.gate_proj.{suffix}", width), (f"mlp.up_proj.{suffix}", width))

    down = "mlp.down_proj"
    stacks = [
        _per_layer(spec, "gate_up", both("weight"), h, projection=True),
        _per_layer(spec, "down", ((f"{down}.weight", h),), width, projection=True),
    ]
    if spec.mlp_bias:
        stacks.append(_per_layer(spec, "gate_up_bias", both("bias"), None))
        stacks.append(_per_layer(spec, "down_bias", ((f"{down}.bias", h),), None))
    return stacks


def _experts(spec: ModelSpec) -> list[Stack]:
    h, width, count = spec.hidden, spec.moe_intermediate, spec.experts
    folder, (gate, up, down) = _EXPERTS[spec.family]

    def parts(rows: tuple[tuple[str, int], ...], columns: int) -> Iterator[Part]:
        for layer in range(spec.layers):
            for expert in range(count):
                first = 0
                for matrix, size in rows:
                    tensor = f"model.layers.{layer}.{folder}.experts.{expert}.{matrix}.weight"
                    at = (layer, expert)
                    yield Part(tensor=tensor, shape=(size, columns), at=at, first=first)
                    first += size

    def stack(name: str, rows: tuple[tuple[str, int], ...], columns: int) -> Stack:
        return Stack(
            name=name,
            shape=(spec.layers, count, sum(size for _, size in rows), columns),
            parts=tuple(parts(rows, columns)),
            projection=True,
        )

    return [
        _per_layer(spec, "router", ((f"{folder}.gate.weight", count),), h),
        stack("experts_gate_up", ((gate, width), (up, width)), h),
        stack("experts_down", ((down, h),), width),
    ]
