"""Cost of one engine step: a prefill chunk and decodes of one model on one slice.

`step_table` evaluates the GEMM model for every token count and kernel variant at once; the
simulator reads rows of it. `step_time` is the closed form of a whole step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from c2c.cost.attention import attention_pairs, chunk_kv_tokens
from c2c.cost.constants import Constants
from c2c.cost.gemm_time import GemmTime, gemm_time, kernel_link_gbps, resident_gemm_time
from c2c.cost.traffic import KernelTiles
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import Gemm, ModelSpec, expected_active_experts, gemms, kv_bytes_per_token

__all__ = [
    "DEFAULT_ALPHAS",
    "StepCost",
    "StepTable",
    "elementwise_bytes_per_token",
    "step_table",
    "step_time",
]

Grid = npt.NDArray[np.float64]

DEFAULT_ALPHAS: tuple[float, ...] = tuple(i / 16 for i in range(17))
# norm, norm, rotary embedding with the KV write, attention, activation
OTHER_KERNELS_PER_LAYER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """What a step of one model costs on one slice with one dataflow, slice alone on the link.

    `body_*[t, a]`: all layers' GEMMs, elementwise kernels and launches for t tokens (prefill
    chunk and decodes together) at `alphas[a]`; row 0 is 0. `head_*[r, a]`: the output projection
    for r rows that need logits; row 0 is 0. Exact for every integer, not interpolated.
    Attention comes on top: `kv_read_s_per_token` a cached token read, `attn_s_per_pair` a
    (query, key) pair of prefill, both for all layers. `step_overhead_s` once a step.
    `link_cap_gbps`: what this slice alone draws from the link with this kernel.
    """

    alphas: Grid
    body_s: Grid
    body_link_bytes: Grid
    body_hbm_bytes: Grid
    head_s: Grid
    head_link_bytes: Grid
    head_hbm_bytes: Grid
    step_overhead_s: float
    kv_bytes_per_token: int
    kv_read_s_per_token: float
    attn_s_per_pair: float
    sliding_window: int
    link_cap_gbps: float

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a step."""
        return len(self.body_s) - 1

    @property
    def max_rows(self) -> int:
        """Largest number of rows that need logits in a step."""
        return len(self.head_s) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One step: its duration and the bytes it moves.

    `alone_s` is the duration without contention, `demand_gbps` the average link rate that needs.
    """

    seconds: float
    alone_s: float
    link_bytes: float
    hbm_bytes: float
    demand_gbps: float


def elementwise_bytes_per_token(spec: ModelSpec) -> int:
    """Return HBM bytes per token of everything that is neither a GEMM nor attention's KV reads.

    Counted per layer, each tensor read or written once, in elements: two RMSNorms that also add
    the residual (read x and residual, write both: 4 x hidden each), rotary embedding of q and k
    in place (read and write), v copied into the cache (read and write), attention reading q and
    writing its output, activation (read gate and up, write their product; all chosen experts).
    Once: the embedding row written and the final norm.
    """
    q = spec.heads * spec.head_dim
    kv = spec.kv_heads * spec.head_dim
    middle = spec.intermediate
    if spec.experts:
        middle = spec.experts_per_token * spec.moe_intermediate
    layer = 8 * spec.hidden + 2 * (q + kv) + 2 * kv + 2 * q + 3 * middle
    return int(spec.dtype_bytes * (spec.layers * layer + 3 * spec.hidden))


def step_table(
    spec: ModelSpec,
    slice_: Slice,
    constants: Constants,
    link_gbps: float,
    *,
    max_tokens: int,
    max_rows: int,
    alphas: Sequence[float] | npt.ArrayLike = DEFAULT_ALPHAS,
    weights: Literal["host", "hbm", "staged"] = "host",
    cluster: int = 1,
    tiles: KernelTiles | None = None,
) -> StepTable:
    """Return the step costs of a model on a slice for every token count up to `max_tokens`.

    Experts: with t tokens in a step, `expected_active_experts(t)` experts are read, each with the
    mean number of rows; they run as one grouped GEMM.

    Args:
      spec: the model.
      slice_: the MIG slice.
      constants: calibration constants.
      link_gbps: what the whole link carries.
      max_tokens: largest prefill chunk plus decodes in a step.
      max_rows: largest number of sequences that need logits in a step.
      alphas: the kernel repository's column splits, in [0, 1].
      weights: "host" streams them over the link; "hbm" has them resident (baselines); "staged"
        copies each layer into HBM ahead of its use by the copy engines, overlapped, all experts
        of it. In the last two alpha has no effect.
      cluster: CTAs along M that share a weight tile by multicast.
      tiles: tile shapes; default `KernelTiles(cluster=cluster)`.

    Raises:
      SettingError: a size, an alpha or `weights` is out of range.
    """
    split = np.asarray(alphas, dtype=np.float64)
    if split.ndim != 1 or not len(split) or not ((split >= 0) & (split <= 1)).all():
        raise SettingError("alphas", alphas, "a list of numbers in [0, 1]")
    for name, size in (("max_tokens", max_tokens), ("max_rows", max_rows)):
        if size < 1:
            raise SettingError(name, size, "a whole number above 0")
    if weights not in ("host", "hbm", "staged"):
        raise SettingError("weights", weights, "'host', 'hbm' or 'staged'")
    if link_gbps <= 0:
        raise SettingError("link_gbps", link_gbps, "a number above 0")
    tiles = KernelTiles(cluster=cluster) if tiles is None else tiles
    hbm_rate = slice_.hbm_gbps * 1e9 * constants.hbm_efficiency

    tokens = np.arange(max_tokens + 1, dtype=np.float64)[:, None]
    rows = np.arange(max_rows + 1, dtype=np.float64)[:, None]
    body = _Sum.zeros(max_tokens + 1, len(split))
    head = _Sum.zeros(max_rows + 1, len(split))
    for gemm in gemms(spec):
        into = head if gemm.kind == "head" else body
        m, groups = _rows_and_groups(gemm, spec, rows if gemm.kind == "head" else tokens)
        if weights != "host":
            cost = resident_gemm_time(
                m, gemm.n, gemm.k, slice_=slice_, constants=constants, tiles=tiles,
                element_bytes=spec.dtype_bytes, groups=groups,
            )  # fmt: skip
        else:
            cost = gemm_time(
                m, gemm.n, gemm.k, split, slice_=slice_, constants=constants,
                link_gbps=link_gbps, tiles=tiles, element_bytes=spec.dtype_bytes, groups=groups,
            )  # fmt: skip
        into.add(cost, gemm.count)
    if weights == "staged":
        copy_rate = min(slice_.link_cap_gbps, link_gbps) * 1e9
        for total, kinds in ((body, ("dense", "expert")), (head, ("head",))):
            copied = sum(_weight_bytes(g, spec) for g in gemms(spec) if g.kind in kinds)
            total.stage(copied, copy_rate, hbm_rate)

    elementwise = tokens * elementwise_bytes_per_token(spec)
    body.hbm_bytes += elementwise
    body.seconds += elementwise / hbm_rate
    body.seconds[1:] += OTHER_KERNELS_PER_LAYER * spec.layers * constants.launch_s
    kv_bytes = kv_bytes_per_token(spec)
    pair_flops = 4 * spec.layers * spec.heads * spec.head_dim
    return StepTable(
        alphas=split,
        body_s=body.seconds,
        body_link_bytes=body.link_bytes,
        body_hbm_bytes=body.hbm_bytes,
        head_s=head.seconds,
        head_link_bytes=head.link_bytes,
        head_hbm_bytes=head.hbm_bytes,
        step_overhead_s=constants.step_overhead_s,
        kv_bytes_per_token=int(kv_bytes),
        kv_read_s_per_token=kv_bytes / hbm_rate,
        attn_s_per_pair=pair_flops / (slice_.bf16_tflops * 1e12 * constants.attention_efficiency),
        sliding_window=spec.sliding_window,
        link_cap_gbps=float(kernel_link_gbps(slice_, constants, link_gbps)),
    )


def _rows_and_groups(gemm: Gemm, spec: ModelSpec, tokens: Grid) -> tuple[Grid, Grid | float]:
    """Rows of one GEMM and how many such GEMMs a step launches together."""
    if gemm.kind != "expert":
        return tokens, 1.0
    active = np.asarray(expected_active_experts(spec, tokens), dtype=np.float64)
    share = np.divide(
        tokens * spec.experts_per_token, active, out=np.zeros_like(tokens), where=active > 0
    )
    return share, active


def _weight_bytes(gemm: Gemm, spec: ModelSpec) -> float:
    """Weights of one kind of GEMM in all layers, every expert's."""
    groups = spec.experts if gemm.kind == "expert" else 1
    return float(gemm.count * groups * gemm.n * gemm.k * spec.dtype_bytes)


@dataclass(slots=True)
class _Sum:
    """Running totals over the GEMMs of a step."""

    seconds: Grid
    link_bytes: Grid
    hbm_bytes: Grid

    @classmethod
    def zeros(cls, rows: int, columns: int) -> "_Sum":
        return cls(*(np.zeros((rows, columns)) for _ in range(3)))

    def add(self, cost: GemmTime, count: int) -> None:
        self.seconds += count * cost.total_s
        self.link_bytes += count * cost.traffic.link_bytes
        self.hbm_bytes += count * cost.traffic.hbm_bytes

    def stage(self, copied_bytes: float, link_rate: float, hbm_rate: float) -> None:
        """Copy the weights ahead of the products: the slowest of link, HBM and products binds."""
        self.link_bytes[1:] += copied_bytes
        self.hbm_bytes[1:] += copied_bytes
        slowest = np.maximum(copied_bytes / link_rate, self.hbm_bytes / hbm_rate)
        self.seconds[1:] = np.maximum(self.seconds, slowest)[1:]


def step_time(
    table: StepTable,
    *,
    prefill_tokens: int = 0,
    context_tokens: int = 0,
    decode_seqs: int = 0,
    decode_kv_tokens: int = 0,
    head_rows: int = 0,
    alpha_index: int = 0,
    rate_gbps: float | None = None,
) -> StepCost:
    """Return the cost of one step in closed form.

    Args:
      table: the model on its slice.
      prefill_tokens: tokens of the prefill chunk.
      context_tokens: tokens of the same prompt already cached.
      decode_seqs: sequences that decode one token in this step.
      decode_kv_tokens: cached tokens they read, each clipped to the sliding window.
      head_rows: rows that need logits.
      alpha_index: column of the table.
      rate_gbps: link rate the slice gets; None: as much as it can draw.

    Returns:
      Duration and bytes. A step that gets less than its average demand lasts as long as its link
      bytes take at that rate.

    Raises:
      SettingError: more tokens or rows than the table holds, or a rate that is not above 0.
    """
    tokens = prefill_tokens + decode_seqs
    if not 0 <= tokens <= table.max_tokens:
        raise SettingError("step tokens", tokens, f"0 to {table.max_tokens}")
    if not 0 <= head_rows <= table.max_rows:
        raise SettingError("head_rows", head_rows, f"0 to {table.max_rows}")
    if rate_gbps is not None and rate_gbps <= 0:
        raise SettingError("rate_gbps", rate_gbps, "a number above 0, or None")
    a = alpha_index
    alone = float(table.body_s[tokens, a]) + float(table.head_s[head_rows, a])
    alone += table.step_overhead_s
    kv_tokens = decode_kv_tokens
    alone += table.kv_read_s_per_token * decode_kv_tokens
    if prefill_tokens > 0:
        pairs = attention_pairs(context_tokens, prefill_tokens, table.sliding_window)
        keys = chunk_kv_tokens(context_tokens, prefill_tokens, table.sliding_window)
        alone += max(table.attn_s_per_pair * pairs, table.kv_read_s_per_token * keys)
        kv_tokens += keys
    link = float(table.body_link_bytes[tokens, a] + table.head_link_bytes[head_rows, a])
    hbm = float(table.body_hbm_bytes[tokens, a] + table.head_hbm_bytes[head_rows, a])
    hbm += kv_tokens * table.kv_bytes_per_token
    seconds = alone if rate_gbps is None else max(alone, link / (rate_gbps * 1e9))
    return StepCost(
        seconds=seconds,
        alone_s=alone,
        link_bytes=link,
        hbm_bytes=hbm,
        demand_gbps=link / alone / 1e9 if alone > 0 else 0.0,
    )
