"""A model's parameters as data: the tensors of a checkpoint that make each stack of weights.

Projections that read the same input are one matrix: q, k and v; gate and up. All are [N, K] (rows
are outputs), as checkpoints store them, so that loading transposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.activations import ACTIVATIONS
from c2c.transformer.rope import KINDS as ROPE_KINDS

__all__ = [
    "EMBEDDING",
    "EXPERTS",
    "FAMILIES",
    "HEAD",
    "Part",
    "Stack",
    "check_supported",
    "feed_forward_places",
    "layout",
]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")

# (gate, up, down) of an expert, and where the experts and their router stand
EXPERTS = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tensor of a checkpoint and where it goes: `stack[at][first : first + shape[0]]`."""

    tensor: str
    shape: tuple[int, ...]
    at: tuple[int, ...] = ()  # (place,) or (place, expert), see `Stack`
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One array of parameters, all layers of a kind: in their order, others left out."""

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
    if spec.activation not in ACTIVATIONS:
        raise SettingError(
            f"{where}.activation", spec.activation, f"one of {', '.join(ACTIVATIONS)}"
        )
    if spec.head_dim % 2:
        raise SettingError(f"{where}.head_dim", spec.head_dim, "an even number, which RoPE pairs")
    _check_rope(spec, f"{where}.rope_scaling")
    if spec.partial_window_layers and not spec.window_layers:
        raise SettingError(f"{where}.window_layers", (), "which layers have the window")


def _check_rope(spec: ModelSpec, where: str) -> None:
    scaling = spec.rope_scaling
    if scaling is None:
        # These families turn whole heads, whatever a config says of a fraction.
        return
    if scaling.kind not in ROPE_KINDS:
        raise SettingError(
            f"{where}.kind", scaling.kind, f"one of default, {', '.join(ROPE_KINDS)}"
        )
    if spec.rotary_fraction != 1.0:
        raise SettingError(
            f"model.{spec.name}.rotary_fraction", spec.rotary_fraction,
            "1.0 where frequencies are scaled",
        )  # fmt: skip
    if scaling.kind == "dynamic" and spec.head_dim == 2:
        raise SettingError(f"model.{spec.name}.head_dim", 2, "at least 4 with dynamic frequencies")
    if scaling.kind == "longrope":
        for name in ("short_factor", "long_factor"):
            count = len(getattr(scaling, name))
            if count != spec.head_dim // 2:
                raise SettingError(
                    f"{where}.{name}", f"{count} numbers", f"head_dim / 2 = {spec.head_dim // 2}"
                )


def feed_forward_places(spec: ModelSpec) -> tuple[tuple[bool, int], ...]:
    """Return of each layer whether it has experts, and its place in the stacks of that kind."""
    places: list[tuple[bool, int]] = []
    counts = {False: 0, True: 0}
    for layer in range(spec.layers):
        sparse = bool(spec.experts) and layer not in spec.dense_layers
        places.append((sparse, counts[sparse]))
        counts[sparse] += 1
    return tuple(places)


def layout(spec: ModelSpec) -> tuple[Stack, ...]:
    """Return every array of parameters, the embedding first; `head` only if it is not tied."""
    h, vocab = spec.hidden, spec.vocab
    stacks = [
        _single("embed", EMBEDDING, (vocab, h)),
        _single("final_norm", "model.norm.weight", (h,)),
        *_norms(spec),
        *_attention(spec),
        *(_experts(spec) if spec.experts else ()),
        *(_feed_forward(spec) if spec.dense_layers or not spec.experts else ()),
    ]
    if not spec.tie_embeddings:
        stacks.append(_single("head", HEAD, (vocab, h), projection=True))
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
    layers: Sequence[int] | None = None,
) -> Stack:
    """Stack tensors of layers; several of them one below the other.

    Args:
      spec: the model.
      name: of the stack.
      tensors: (name below the layer, rows) of each.
      columns: of all of them; None for vectors.
      projection: as in `Stack`.
      layers: those that have these tensors; by default all.
    """
    tail = () if columns is None else (columns,)
    chosen = range(spec.layers) if layers is None else layers

    def parts() -> Iterator[Part]:
        for place, layer in enumerate(chosen):
            first = 0
            for tensor, rows in tensors:
                full = f"model.layers.{layer}.{tensor}"
                yield Part(tensor=full, shape=(rows, *tail), at=(place,), first=first)
                first += rows

    shape = (len(chosen), sum(rows for _, rows in tensors), *tail)
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
    layers = spec.dense_layers or range(spec.layers)

    def stack(
        name: str,
        tensors: tuple[tuple[str, int], ...],
        columns: int | None = None,
    ) -> Stack:
        projection = columns is not None
        return _per_layer(spec, name, tensors, columns, projection=projection, layers=layers)

    def both(suffix: str) -> tuple[tuple[str, int], ...]:
        return ((f"mlp.gate_proj.{suffix}", width), (f"mlp.up_proj.{suffix}", width))

    down = "mlp.down_proj"
    stacks = [
        stack("gate_up", both("weight"), h),
        stack("down", ((f"{down}.weight", h),), width),
    ]
    if spec.mlp_bias:
        stacks += [stack("gate_up_bias", both("bias")), stack("down_bias", ((f"{down}.bias", h),))]
    return stacks


def _experts(spec: ModelSpec) -> list[Stack]:
    h, width, count = spec.hidden, spec.moe_intermediate, spec.experts
    folder, (gate, up, down) = EXPERTS[spec.family]
    layers = [layer for layer in range(spec.layers) if layer not in spec.dense_layers]

    def parts(rows: tuple[tuple[str, int], ...], columns: int) -> Iterator[Part]:
        for place, layer in enumerate(layers):
            for expert in range(count):
                first = 0
                for matrix, size in rows:
                    tensor = f"model.layers.{layer}.{folder}.experts.{expert}.{matrix}.weight"
                    at = (place, expert)
                    yield Part(tensor=tensor, shape=(size, columns), at=at, first=first)
                    first += size

    def stack(name: str, rows: tuple[tuple[str, int], ...], columns: int) -> Stack:
        return Stack(
            name=name,
            shape=(len(layers), count, sum(size for _, size in rows), columns),
            parts=tuple(parts(rows, columns)),
            projection=True,
        )

    return [
        _per_layer(spec, "router", ((f"{folder}.gate.weight", count),), h, layers=layers),
        stack("experts_gate_up", ((gate, width), (up, width)), h),
        stack("experts_down", ((down, h),), width),
    ]
