"""Layout of parameters: checkpoint tensors of each stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from c2c.errors import SettingError
from c2c.models import FAMILIES as READ
from c2c.models import ModelSpec
from c2c.transformer.layers.activations import ACTIVATIONS
from c2c.transformer.layers.rope import KINDS as ROPE_KINDS
from c2c.transformer.layers.rope import turned

__all__ = [
    "EMBEDDING",
    "FAMILIES",
    "HEAD",
    "NAMES",
    "Names",
    "Part",
    "Stack",
    "check_supported",
    "feed_forward_places",
    "layout",
]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_BEFORE = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_GEMMA = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Tensor names of a family below a layer.

    Attributes:
      qkv: fused q, k and v tensor, if any.
      gate_up: fused gate and up tensor, if any.
      experts: folder of experts, and (gate, up, down) of one; of one name: tensors of all experts,
        [experts, inputs, outputs].
      router: in that folder, like `router_bias` and `shared`.
    """

    norms: Mapping[str, str] = field(default_factory=lambda: _BEFORE)
    qkv: str = ""
    gate_up: str = ""
    experts: tuple[str, tuple[str, str, str]] | tuple[str, tuple[str, str]] | None = None
    router: str = "gate"
    router_bias: str = "gate.e_score_correction_bias"
    shared: str = "shared_experts"
    dense: str = "mlp"


_MIXED = ("mlp", ("gate_proj", "up_proj", "down_proj"))
_LLAMA4 = Names(
    experts=("feed_forward", ("gate_up_proj", "down_proj")),
    router="router",
    shared="shared_expert",
    dense="feed_forward",
)
NAMES: Mapping[str, Names] = {
    "deepseek_v3": Names(experts=_MIXED),
    "gemma2": Names(norms=_GEMMA),
    "gemma3": Names(norms=_GEMMA),
    "gemma3_text": Names(norms=_GEMMA),
    "glm4": Names(
        norms={
            "attention_norm": "input_layernorm",
            "attention_out_norm": "post_self_attn_layernorm",
            "mlp_norm": "post_attention_layernorm",
            "mlp_out_norm": "post_mlp_layernorm",
        },
        gate_up="mlp.gate_up_proj",
    ),
    "glm4_moe": Names(experts=_MIXED),
    "granite": Names(),
    "kimi_k2": Names(experts=_MIXED),
    "kimi_k25": Names(experts=_MIXED),
    "llama": Names(),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "minimax_m2": Names(
        experts=("block_sparse_moe", ("w1", "w3", "w2")), router_bias="e_score_correction_bias"
    ),
    "mistral": Names(),
    "mixtral": Names(experts=("block_sparse_moe", ("w1", "w3", "w2"))),
    "olmo2": Names(
        norms={
            "attention_out_norm": "post_attention_layernorm",
            "mlp_out_norm": "post_feedforward_layernorm",
        }
    ),
    "phi3": Names(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"),
    "qwen2": Names(),
    "qwen2_5_vl": Names(),
    "qwen3": Names(),
    "qwen3_moe": Names(experts=_MIXED),
    "qwen3_vl": Names(),
}
FAMILIES = tuple(NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Checkpoint tensor for `stack[at][first : first + shape[0]]`."""

    tensor: str
    shape: tuple[int, ...]
    at: tuple[int, ...] = ()  # (place,) or (place, expert), see `Stack`
    first: int = 0
    transposed: bool = False  # all of stack[at], with the last two axes swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Parameter array over a kind's layers."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    projection: bool  # a GEMM's weights, which may stay in host memory


def check_supported(spec: ModelSpec) -> None:
    """Validate that the transformer supports a model."""
    where = f"model.{spec.name}"
    if spec.family not in FAMILIES:
        raise SettingError(f"{where}.family", spec.family, f"one of {', '.join(FAMILIES)}")
    if spec.activation not in ACTIVATIONS:
        raise SettingError(
            f"{where}.activation", spec.activation, f"one of {', '.join(ACTIVATIONS)}"
        )
    if turned(spec) % 2 or not turned(spec):
        field = "head_dim" if spec.rotary_fraction == 1.0 else "rotary_fraction"
        value = getattr(spec, field)
        raise SettingError(f"{where}.{field}", value, "an even number (RoPE rotates pairs)")
    _check_rope(spec, f"{where}.rope_scaling")
    if spec.partial_window_layers and not spec.window_layers:
        raise SettingError(f"{where}.window_layers", (), "the layers with the window")


def _check_rope(spec: ModelSpec, where: str) -> None:
    scaling = spec.rope_scaling
    if scaling is None:
        return
    if scaling.kind not in ROPE_KINDS:
        raise SettingError(
            f"{where}.kind", scaling.kind, f"one of default, {', '.join(ROPE_KINDS)}"
        )
    if spec.rotary_fraction != 1.0 and not READ[spec.family].turns_part:
        raise SettingError(
            f"model.{spec.name}.rotary_fraction", spec.rotary_fraction,
            "1.0 if frequencies are scaled",
        )  # fmt: skip
    if scaling.kind == "dynamic" and spec.head_dim == 2:
        raise SettingError(f"model.{spec.name}.head_dim", 2, "at least 4 with dynamic frequencies")
    if scaling.kind == "longrope":
        for name in ("short_factor", "long_factor"):
            count = len(getattr(scaling, name))
            if count != turned(spec) // 2:
                quantity = (
                    "head_dim / 2" if spec.rotary_fraction == 1.0 else "half of what is turned"
                )
                raise SettingError(
                    f"{where}.{name}", f"{count} numbers", f"{quantity} = {turned(spec) // 2}"
                )


def feed_forward_places(spec: ModelSpec) -> tuple[tuple[bool, int], ...]:
    """Return for each layer: has it experts, and its index in its kind's stacks."""
    places: list[tuple[bool, int]] = []
    counts = {False: 0, True: 0}
    for layer in range(spec.layers):
        sparse = bool(spec.experts) and layer not in spec.dense_layers
        places.append((sparse, counts[sparse]))
        counts[sparse] += 1
    return tuple(places)


# Projections with the same input are one matrix: q, k and v; gate and up. All are [N, K] (rows are
# outputs), as in checkpoints, so that loading needs no transposes.
def layout(spec: ModelSpec) -> tuple[Stack, ...]:
    """Return all arrays, embedding first; `head` if not tied."""
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
    names = {name: (tensor, spec.hidden) for name, tensor in NAMES[spec.family].norms.items()}
    if spec.qk_norm:
        heads = (spec.heads, spec.kv_heads) if spec.qk_norm_whole else (1, 1)
        for name, count in zip(("q_norm", "k_norm"), heads, strict=True):
            names[name] = (f"self_attn.{name}", count * spec.head_dim)
    return [
        _per_layer(spec, name, ((f"{tensor}.weight", width),), None)
        for name, (tensor, width) in names.items()
    ]


def _attention(spec: ModelSpec) -> list[Stack]:
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    form = spec.latent
    sizes = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)]
    if form is not None:
        first = ("q_a_proj", form.q_rank) if form.q_rank else ("q_proj", q)
        sizes = [first, ("kv_a_proj_with_mqa", form.kv_rank + form.rope_dim)]
    rows: tuple[tuple[str, int], ...] = tuple((f"self_attn.{name}", n) for name, n in sizes)
    if fused := NAMES[spec.family].qkv:
        rows = ((fused, q + 2 * kv),)

    def named(suffix: str) -> tuple[tuple[str, int], ...]:
        return tuple((f"{name}.{suffix}", size) for name, size in rows)

    out = "self_attn.o_proj"
    values = spec.heads * (form.value_dim if form else spec.head_dim)
    stacks = [
        _per_layer(spec, "qkv", named("weight"), spec.hidden, projection=True),
        _per_layer(spec, "o", ((f"{out}.weight", spec.hidden),), values, projection=True),
    ]
    if form is not None:
        both = spec.heads * (form.nope_dim + form.value_dim)
        up = (("self_attn.kv_b_proj.weight", both),)
        stacks.append(_per_layer(spec, "kv_b", up, form.kv_rank))
        for name, size in (("q_a", form.q_rank), ("kv_a", form.kv_rank)):
            if size:
                norm = ((f"self_attn.{name}_layernorm.weight", size),)
                stacks.append(_per_layer(spec, f"{name}_norm", norm, None))
    if form is not None and form.q_rank:
        q_b = (("self_attn.q_b_proj.weight", q),)
        stacks.append(_per_layer(spec, "q_b", q_b, form.q_rank, projection=True))
    if spec.qkv_bias:
        stacks.append(_per_layer(spec, "qkv_bias", named("bias"), None))
    if spec.o_bias:
        stacks.append(_per_layer(spec, "o_bias", ((f"{out}.bias", spec.hidden),), None))
    return stacks


def _feed_forward(spec: ModelSpec) -> list[Stack]:
    h, width, folder = spec.hidden, spec.intermediate, NAMES[spec.family].dense
    layers = spec.dense_layers or range(spec.layers)

    def stack(
        name: str,
        tensors: tuple[tuple[str, int], ...],
        columns: int | None = None,
    ) -> Stack:
        projection = columns is not None
        return _per_layer(spec, name, tensors, columns, projection=projection, layers=layers)

    def both(suffix: str) -> tuple[tuple[str, int], ...]:
        if fused := NAMES[spec.family].gate_up:
            return ((f"{fused}.{suffix}", 2 * width),)
        return ((f"{folder}.gate_proj.{suffix}", width), (f"{folder}.up_proj.{suffix}", width))

    down = f"{folder}.down_proj"
    stacks = [
        stack("gate_up", both("weight"), h),
        stack("down", ((f"{down}.weight", h),), width),
    ]
    if spec.mlp_bias:
        stacks += [stack("gate_up_bias", both("bias")), stack("down_bias", ((f"{down}.bias", h),))]
    return stacks


def _experts(spec: ModelSpec) -> list[Stack]:
    h, width, count = spec.hidden, spec.moe_intermediate, spec.experts
    names = NAMES[spec.family]
    assert names.experts is not None  # of families with experts
    folder, matrices = names.experts
    gate, up, down = matrices if len(matrices) == 3 else ("gate_proj", "up_proj", "down_proj")
    layers = [layer for layer in range(spec.layers) if layer not in spec.dense_layers]

    def parts(rows: tuple[tuple[str, int], ...], columns: int) -> Iterator[Part]:
        for place, layer in enumerate(layers):
            if len(matrices) == 2:
                one = f"model.layers.{layer}.{folder}.experts.{matrices[rows[0][0] == down]}"
                shape = (count, columns, sum(size for _, size in rows))
                yield Part(tensor=one, shape=shape, at=(place,), transposed=True)
                continue
            for expert in range(count):
                first = 0
                for matrix, size in rows:
                    tensor = f"model.layers.{layer}.{folder}.experts.{expert}.{matrix}.weight"
                    index = (place, expert)
                    yield Part(tensor=tensor, shape=(size, columns), at=index, first=first)
                    first += size

    def stack(name: str, rows: tuple[tuple[str, int], ...], columns: int) -> Stack:
        return Stack(
            name=name,
            shape=(len(layers), count, sum(size for _, size in rows), columns),
            parts=tuple(parts(rows, columns)),
            projection=True,
        )

    def beside(name: str, rows: tuple[tuple[str, int], ...], columns: int | None) -> Stack:
        into = tuple((f"{folder}.{tensor}", size) for tensor, size in rows)
        projection = name.startswith("shared")
        return _per_layer(spec, name, into, columns, projection=projection, layers=layers)

    stacks = [
        beside("router", ((f"{names.router}.weight", count),), h),
        stack("experts_gate_up", ((gate, width), (up, width)), h),
        stack("experts_down", ((down, h),), width),
    ]
    if spec.router_bias:
        stacks.append(beside("router_bias", ((names.router_bias, count),), None))
    if wide := spec.shared_intermediate:
        prefix = names.shared
        both = tuple((f"{prefix}.{name}.weight", wide) for name in (gate, up))
        stacks.append(beside("shared_gate_up", both, h))
        stacks.append(beside("shared_down", ((f"{prefix}.{down}.weight", h),), wide))
    return stacks
