"""The shape of a decoder-only transformer."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from c2c.errors import SettingError

__all__ = ["Latent", "LinearAttention", "ModelSpec", "RopeScaling", "WeightFormat"]

_AT_LEAST_ZERO = (
    "shared_intermediate",
    "norm_offset",
    "attention_scale",
    "attention_cap",
    "logit_cap",
    "local_rope_theta",
    "sliding_window",
    "partial_window",
    "partial_window_layers",
    "experts",
    "experts_per_token",
    "moe_intermediate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Stretching of rotary frequencies beyond the context a model was first trained on.

    Attributes:
      kind: the name in the config: "linear", "llama3", "yarn", "longrope" or "dynamic".
      factor: how far the context is stretched; not of "longrope".
      low_freq_factor: of "llama3"; with the next, which wavelengths are between kept and stretched.
      high_freq_factor: of "llama3".
      original_max_position: the context of the first training. Of "dynamic" (and where a config
        does not say) the model's maximum.
      attention_factor: of "yarn" and "longrope", multiplies cosine and sine.
      beta_fast: of "yarn"; turns within the original context from which a frequency is kept.
      beta_slow: of "yarn"; turns below which it is stretched in full.
      truncate: of "yarn", whether the range between those two ends at whole pairs.
      short_factor: of "longrope", by pair, in the original context.
      long_factor: of "longrope", by pair, beyond it.
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
    """Attention over one vector a token that all heads share (DeepSeek-V2, arXiv:2405.04434, 2.1).

    Keys and values of a head are two products of it; what is turned by the position stands beside.

    Attributes:
      kv_rank: values of the vector, which are cached.
      rope_dim: turned values of a key, cached beside it, one set for all heads.
      nope_dim: values of a head's query and key that are not turned.
      value_dim: of a head.
      q_rank: of the vector that queries are products of; 0: they are so of the activations.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """Layers whose past is a state of one size (gated DeltaNet, arXiv:2412.06464).

    Attributes:
      layers: their numbers.
      key_heads: heads of queries, and of keys.
      value_heads: heads of values; each has a state [key_dim, value_dim].
      key_dim: of a head.
      value_dim: of a head.
      kernel: positions that the convolution over queries, keys and values sees.
    """

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """Queries, keys and values of a token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """A published checkpoint's storage of quantised matrices.

    Attributes:
      kind: "fp8" (a byte, a float32 scale a block), "mxfp4" (4 bits, a byte a block), "awq" or
        "gptq" (4 or 8 bits; a float16 scale and a zero point a group; GPTQ also an int32 a column).
      bits: of one weight.
      block: outputs and inputs that share a scale; 0 inputs: all of them.
      experts_only: whether nothing but experts is so stored.
      kept: modules that are not, by their names below the layer.
    """

    kind: Literal["fp8", "mxfp4", "awq", "gptq"]
    bits: int
    block: tuple[int, int]
    experts_only: bool = False
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes of a model's weights and caches; all layers are alike but for what is said here.

    `sliding_window` is the window of every layer, 0 if there is none or only some layers have
    one: then `partial_window` holds in `partial_window_layers` of them, those whose numbers
    are in `window_layers`. `intermediate` is the width of a dense feed-forward block,
    `moe_intermediate` that of one expert. `dense_layers` are the layers of a mixture of experts
    that have a dense block in its place; `shared_intermediate` is the width of what every token
    takes beside its experts, shared experts together. With `latent`, `head_dim` is that of a query.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tie_embeddings: bool
    max_position: int
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # one RMSNorm weight of head_dim for q, one for k
    qk_norm_whole: bool = False  # of all heads together instead
    latent: Latent | None = None
    linear: LinearAttention | None = None
    attention_gate: bool = False  # as many values as queries have, whose sigmoid is multiplied
    gated_mlp: bool = True  # gate and up; else one matrix up
    norms_per_layer: int = 2
    norm_place: Literal["before", "after", "around"] = "before"  # of attention and feed-forward
    norm_offset: float = 0.0  # is added to each norm's weight
    norm_bias: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and feed-forward add
    attention_scale: float = 0.0  # 0: 1 / sqrt(head_dim)
    attention_cap: float = 0.0  # scores s become cap * tanh(s / cap); 0: they stay
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    attention_sinks: bool = False  # one learnt logit a head
    sliding_window: int = 0
    partial_window: int = 0
    partial_window_layers: int = 0
    window_layers: tuple[int, ...] = ()
    experts: int = 0  # 0: dense
    experts_per_token: int = 0
    moe_intermediate: int = 0
    expert_bias: bool = False  # of the router and of every expert's matrices
    dense_layers: tuple[int, ...] = ()
    norm_topk: bool = True  # whether the chosen experts' weights are renormalised
    shared_intermediate: int = 0
    shared_gate: bool = False  # the sigmoid of one value a token scales the shared experts
    router_sigmoid: bool = False  # scores by sigmoid, not softmax
    router_bias: bool = False  # a float32 an expert is added to scores where experts are chosen
    expert_groups: int = 1
    groups_per_token: int = 1  # groups that a token's experts are of, those of the best scores
    routed_scale: float = 1.0
    activation: str = "silu"
    rope_theta: float = 10000.0
    local_rope_theta: float = 0.0  # of layers with a window, which then scale nothing; 0: the same
    rope_scaling: RopeScaling | None = None
    rotary_fraction: float = 1.0  # of head_dim, from its start
    rotary_interleaved: bool = False  # pairs are neighbours, not half of the turned part apart
    norm_eps: float = 1e-5
    dtype_bytes: int = 2
    weights: WeightFormat | None = None  # None: all of dtype_bytes

    @property
    def cached_layers(self) -> int:
        """Layers whose cache grows with the sequence."""
        return self.layers - (len(self.linear.layers) if self.linear else 0)

    @property
    def cached_values(self) -> int:
        """Values that such a layer caches of a token."""
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * self.kv_heads * self.head_dim

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                least = 0 if field.name in _AT_LEAST_ZERO else 1
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise SettingError(
                        self._where(field.name), value, f"a whole number, at least {least}"
                    )
            elif field.type is float:
                is_zero = value == 0.0 and field.name in _AT_LEAST_ZERO
                if not is_zero and not (math.isfinite(value) and value > 0):
                    raise SettingError(self._where(field.name), value, "a number above 0")
        if self.heads % self.kv_heads:
            raise SettingError(
                self._where("kv_heads"), self.kv_heads, f"a divisor of heads ({self.heads})"
            )
        if self.partial_window_layers > self.layers:
            raise SettingError(
                self._where("partial_window_layers"), self.partial_window_layers,
                f"at most layers ({self.layers})",
            )  # fmt: skip
        if self.window_layers and len(self.window_layers) != self.partial_window_layers:
            raise SettingError(
                self._where("window_layers"), self.window_layers,
                f"the numbers of {self.partial_window_layers} layers, as in partial_window_layers",
            )  # fmt: skip
        self._check_experts()

    def _check_experts(self) -> None:
        if self.expert_groups > max(1, self.experts) or self.experts % self.expert_groups:
            raise SettingError(
                self._where("expert_groups"), self.expert_groups,
                f"a divisor of experts ({self.experts})",
            )  # fmt: skip
        if self.groups_per_token > self.expert_groups:
            raise SettingError(
                self._where("groups_per_token"), self.groups_per_token,
                f"at most expert_groups ({self.expert_groups})",
            )  # fmt: skip
        if not self.experts:
            if self.experts_per_token or self.moe_intermediate or self.dense_layers:
                raise SettingError(
                    self._where("experts"), 0, "above 0 where experts_per_token, "
                    "moe_intermediate or dense_layers is set",
                )  # fmt: skip
            return
        wanted = tuple(sorted(set(self.dense_layers) & set(range(self.layers))))
        if self.dense_layers != wanted or len(wanted) == self.layers:
            raise SettingError(
                self._where("dense_layers"), self.dense_layers,
                f"some of the layers from 0 to {self.layers - 1}, in order, not all",
            )  # fmt: skip
        if not 1 <= self.experts_per_token <= self.experts:
            raise SettingError(
                self._where("experts_per_token"), self.experts_per_token,
                f"from 1 to experts ({self.experts})",
            )  # fmt: skip
        if not self.moe_intermediate:
            raise SettingError(self._where("moe_intermediate"), 0, "a whole number above 0")

    def _where(self, field: str) -> str:
        return f"model.{self.name}.{field}"
