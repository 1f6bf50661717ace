"""The shape of a decoder-only transformer."""

import math
from dataclasses import dataclass, fields

from c2c.errors import SettingError

__all__ = ["ModelSpec", "RopeScaling"]

_AT_LEAST_ZERO = (
    "sliding_window",
    "partial_window",
    "partial_window_layers",
    "experts",
    "experts_per_token",
    "moe_intermediate",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context a model was first trained on.

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
class ModelSpec:
    """What a model's weights and caches look like; all layers are alike but for what is said here.

    `sliding_window` is the window of every layer, 0 if there is none or only some layers have
    one: then `partial_window` holds in `partial_window_layers` of them, those whose numbers
    are in `window_layers`. `intermediate` is the width of a dense feed-forward block,
    `moe_intermediate` that of one expert. `dense_layers` are the layers of a mixture of experts
    that have a dense block in its place.
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
    gated_mlp: bool = True  # gate and up; else one matrix up
    norms_per_layer: int = 2
    norm_bias: bool = False
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
    activation: str = "silu"
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rotary_fraction: float = 1.0  # of head_dim, from its start
    norm_eps: float = 1e-5
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                least = 0 if field.name in _AT_LEAST_ZERO else 1
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise SettingError(
                        self._where(field.name), value, f"a whole number, at least {least}"
                    )
            elif field.type is float and not (math.isfinite(value) and value > 0):
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
