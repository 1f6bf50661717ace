"""Shape of a decoder-only transformer."""

from dataclasses import dataclass
from typing import Literal

from c2c.errors import refuse
from c2c.ranges import AboveZero, Count, FromZero, Index, check_fields

__all__ = [
    "Compressed",
    "Heads",
    "Indexer",
    "Latent",
    "LinearAttention",
    "ModelSpec",
    "OtherFormat",
    "RopeScaling",
    "WeightFormat",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Scaling of rotary frequencies beyond the original context.

    Attributes:
      kind: "linear", "llama3", "yarn", "longrope" or "dynamic".
      factor: of the context; unused by "longrope".
      low_freq_factor: "llama3": interpolation up to the next bound.
      high_freq_factor: "llama3".
      original_max_position: of the training; by default, and for "dynamic", the maximum.
      attention_factor: "yarn", "longrope": of cosine and sine.
      beta_fast: "yarn": turns in the original context; above, frequencies stay.
      beta_slow: "yarn": turns; below, full scaling.
      truncate: "yarn": whether the range ends at whole pairs.
      short_factor: "longrope": per pair, within the original context.
      long_factor: "longrope": per pair, beyond it.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Latent attention: one vector per token for all heads (DeepSeek-V2, arXiv:2405.04434, 2.1).

    Attributes:
      kv_rank: size of the cached vector.
      rope_dim: rotated key values, cached beside it, for all heads.
      nope_dim: unrotated values of a head.
      value_dim: of a head.
      q_rank: of the latent vector of queries; 0: none.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Attention heads of other windowed layers; `sinks`: a learned logit each."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    sinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Sparse attention: small heads score cached keys, attention reads the best.

    Attributes:
      heads: index heads, with one key.
      top_k: most positions read.
      layers: layers with an index; other sparse layers use the last one.
      is_weighted: whether heads have projected weights.

    Source: DeepSeek-V3.2-Exp, arXiv:2512.02556, section 2.1.
    """

    heads: int
    dim: int
    top_k: int
    layers: tuple[int, ...]
    sparse: tuple[int, ...]
    is_weighted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Attention over the last positions and compressed earlier ones (DeepSeek-V4).

    One head of `ModelSpec.head_dim` is key and value. A layer of ratio r has an entry for each r
    positions beside its window.

    Attributes:
      ratios: of each layer; 0: the window alone.
      window: uncompressed positions.
      q_rank: of the latent vector of queries.
      out_rank: of a group's latent output.
      out_groups: head groups with output projections.
      index_ratio: of layers that read `top_k` entries by an index.
    """

    ratios: tuple[int, ...]
    window: int
    q_rank: int
    out_rank: int
    out_groups: int
    index_ratio: int
    index_heads: int
    index_dim: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Layers with a fixed-size state of a sequence instead of a cache.

    Gated DeltaNet (arXiv:2412.06464), Kimi Delta Attention (arXiv:2510.26692) and Mamba-2
    (arXiv:2405.21060) (its groups, state, heads: here key heads, key size, value size).

    Attributes:
      key_heads: query heads, and key heads.
      value_heads: each has a state [key_dim, value_dim].
      kernel: width of the convolution, in positions.
      inputs: projecting modules and their columns.
      parameters: of a layer outside of projections: convolution, norms, decays.
      element_bytes: of a state's value.
    """

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    inputs: tuple[tuple[str, int], ...]
    output: str
    parameters: int
    inner: tuple[tuple[str, int, int], ...] = ()
    element_bytes: int = 4

    @property
    def channels(self) -> int:
        """Channels of a token's queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Quantisation format of a checkpoint.

    Attributes:
      bits: of a weight.
      block: outputs and inputs that share a scale; 0: all.
      scale_bytes: of a scale.
      has_zeros: whether scales have zero points of `bits`.
      input_bytes: further bytes an input, such as GPTQ's order of groups.
      matrix_bytes: further bytes a matrix, such as NVFP4's scale of scales.
      kernel: of `conf/kernels`; "bf16": weights are widened.
      is_demanded: whether chips without such kernels are refused; else they widen weights.
    """

    kind: Literal["fp8", "mxfp4", "awq", "gptq", "modelopt", "compressed-tensors"]
    bits: int
    block: tuple[int, int]
    scale_bytes: int = 4
    has_zeros: bool = False
    input_bytes: int = 0
    matrix_bytes: int = 0
    experts_only: bool = False
    others: tuple["OtherFormat", ...] = ()
    kernel: Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"] = "bf16"
    is_demanded: bool = False


@dataclass(frozen=True, slots=True)
class OtherFormat:
    """Other modules of a name by `form` (None: unquantised), in `layers` (None: all)."""

    module: str
    layers: tuple[int, ...] | None
    form: WeightFormat | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes of a model's weights and caches, alike in all layers but for the fields below.

    `sliding_window` is every layer's window; 0: none, or `partial_window` in `window_layers`.
    `intermediate` is a dense block's width, `moe_intermediate` of an expert, `shared_intermediate`
    of all shared experts or a dense block beside the experts; `dense_layers` have no experts. With
    `latent`, `head_dim` is of a query head. Layers without attention or feed-forward block have
    half the norms.
    """

    name: str
    family: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count
    tie_embeddings: bool
    max_position: Count
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # one RMSNorm weight of head_dim for q, one for k
    qk_norm_whole: bool = False  # one such norm over all heads together instead
    latent: Latent | None = None
    linear: LinearAttention | None = None
    index: Indexer | None = None
    compressed: Compressed | None = None
    windowed_heads: Heads | None = None  # None: those of all layers
    value_dim: Index = 0  # of a head; 0: head_dim
    keys_are_values: bool = False  # one projection of both, outside of windowed_heads
    without_attention: tuple[int, ...] = ()
    without_feed_forward: tuple[int, ...] = ()
    attention_gate: bool = False  # sigmoid gate as wide as attention's result
    head_gate: bool = False  # one sigmoid value a head instead
    gated_mlp: bool = True  # gate and up; False: one matrix up
    norms_per_layer: Count = 2
    norm_place: Literal["before", "after", "around"] = "before"  # relative to a block
    norm_offset: FromZero = 0.0  # added to each norm's weight
    norm_bias: bool = False
    embedding_scale: AboveZero = 1.0
    residual_scale: AboveZero = 1.0  # factor of attention and feed-forward outputs
    attention_scale: FromZero = 0.0  # 0: 1 / sqrt(head_dim)
    attention_cap: FromZero = 0.0  # scores s become cap * tanh(s / cap); 0: no cap
    logit_scale: AboveZero = 1.0
    logit_cap: FromZero = 0.0
    attention_sinks: bool = False  # one learned logit per head
    sliding_window: Index = 0
    partial_window: Index = 0
    partial_window_layers: Index = 0
    window_layers: tuple[int, ...] = ()
    experts: Index = 0  # 0: dense
    experts_per_token: Index = 0
    moe_intermediate: Index = 0
    expert_hidden: Index = 0  # width between two projections around the experts; 0: hidden
    widths: tuple[int, ...] = ()  # of each layer's dense block; empty: intermediate
    expert_bias: bool = False  # biases of the router and of each expert's matrices
    dense_layers: tuple[int, ...] = ()
    norm_topk: bool = True  # whether the chosen experts' weights are renormalised
    shared_intermediate: Index = 0
    shared_gate: bool = False  # shared experts are scaled by one sigmoid value per token
    router_sigmoid: bool = False  # scores by sigmoid, not softmax
    router_bias: bool = False  # per-expert float32 added to scores only to choose experts
    expert_groups: Count = 1
    groups_per_token: Count = 1  # best-scoring groups that a token's experts are from
    routed_scale: AboveZero = 1.0
    weighted_inputs: bool = False  # a router's weights multiply experts' inputs, not results
    activation: str = "silu"
    rope_theta: AboveZero = 10000.0
    local_rope_theta: FromZero = 0.0  # base of windowed layers, without scaling; 0: the same
    rope_scaling: RopeScaling | None = None
    rotary_fraction: AboveZero = 1.0  # rotated share of head_dim, from its start
    rotary_interleaved: bool = False  # pairs are neighbours, not half of the rotated part apart
    unrotated_layers: tuple[int, ...] = ()  # without positions
    qk_unit: bool = False  # q and k of rotated layers are divided by their root mean squares
    plain_tokens: Index = 0  # beyond, attention is chunked or rescaled; 0: nowhere
    norm_eps: AboveZero = 1e-5
    more_parameters: Index = 0  # in all layers together, outside of matrices: scales, streams
    more_bytes: Index = 0  # stored beside: tables, and what such parameters have over dtype_bytes
    dtype_bytes: Count = 2
    kv_dtype_bytes: Index = 0  # of a cached value; 0: dtype_bytes
    weights: WeightFormat | None = None  # None: dtype_bytes per weight

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers with a growing cache."""
        others = {*(self.linear.layers if self.linear else ()), *self.without_attention}
        return tuple(layer for layer in range(self.layers) if layer not in others)

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with experts, in order."""
        others = set(self.dense_layers) if self.experts else range(self.layers)
        return tuple(layer for layer in range(self.layers) if layer not in others)

    def __post_init__(self) -> None:
        check_fields(self, f"model.{self.name}")
        where, experts = f"model.{self.name}", self.experts
        some = tuple(sorted(set(self.dense_layers) & set(range(self.layers))))
        refuse(
            (self.heads % self.kv_heads, f"{where}.kv_heads", self.kv_heads,
             f"a divisor of heads ({self.heads})"),
            (self.partial_window_layers > self.layers, f"{where}.partial_window_layers",
             self.partial_window_layers, f"at most layers ({self.layers})"),
            (self.window_layers and len(self.window_layers) != self.partial_window_layers,
             f"{where}.window_layers", self.window_layers,
             f"the numbers of {self.partial_window_layers} layers, as in partial_window_layers"),
            (self.expert_groups > max(1, experts) or experts % self.expert_groups,
             f"{where}.expert_groups", self.expert_groups, f"a divisor of experts ({experts})"),
            (self.groups_per_token > self.expert_groups, f"{where}.groups_per_token",
             self.groups_per_token, f"at most expert_groups ({self.expert_groups})"),
            (not experts and (self.experts_per_token or self.moe_intermediate or self.dense_layers),
             f"{where}.experts", 0, "above 0 where experts_per_token, moe_intermediate or "
             "dense_layers is set"),
            (experts and (self.dense_layers != some or len(some) == self.layers),
             f"{where}.dense_layers", self.dense_layers,
             f"some of the layers from 0 to {self.layers - 1}, in order, not all"),
            (experts and not 1 <= self.experts_per_token <= experts, f"{where}.experts_per_token",
             self.experts_per_token, f"from 1 to experts ({experts})"),
            (experts and not self.moe_intermediate, f"{where}.moe_intermediate", 0,
             "a whole number above 0"),
        )  # fmt: skip
