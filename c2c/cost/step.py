"""Cost of an engine's step of a model on a slice."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from c2c.cost.attention import cache_pairs, chunk_places
from c2c.cost.attention_time import decode_attention_s, pair_s, prefill_attention_s
from c2c.cost.constants import Constants
from c2c.cost.gemm_time import gemm_time, kernel_link_gbps
from c2c.cost.kernels import kernel_of, kernels
from c2c.cost.resident import (
    ResidentTime,
    expert_layer_time,
    resident_gemm_time,
    throttled_s,
)
from c2c.cost.routing import Routing, expert_load
from c2c.cost.tiles import KernelTiles
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import (
    CacheShape,
    Gemm,
    ModelSpec,
    cache_shape,
    gemm_bytes,
    gemms,
    kv_bytes_per_token,
    mixers,
    read_shape,
    state_bytes,
)
from c2c.ranges import AboveZero, Count, check_value

__all__ = [
    "DEFAULT_ALPHAS",
    "StepCost",
    "StepTable",
    "at_best_alpha",
    "elementwise_bytes_per_token",
    "launched",
    "step_table",
    "step_time",
]

Grid = npt.NDArray[np.float64]

EXPERT_DOWN = "expert_down"  # see `c2c.models.gemms`
DEFAULT_ALPHAS: tuple[float, ...] = tuple(i / 16 for i in range(17))
# norm, norm, rotary embedding with the KV write, activation; attention has a floor of its own
ELEMENTWISE_KERNELS_PER_LAYER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Step costs of a model on one slice with one dataflow, alone on the link.

    `body_*[t, a]`: all layers' GEMMs, elementwise kernels and launches for t tokens at `alphas[a]`.
    `head_*[r, a]`: output projection for r rows that need logits. Attention of all layers is added:
    `kv_read_s_per_token` per cached token read, `attn_s_per_pair` per (query, key) pair of prefill,
    `prefill_attention_s[t]` for t tokens of a chunk, `decode_attention_s[n]` for n decodes. Row 0
    of all is 0. `sparse` is what attention reads where that is less than `cache`, which a sequence
    holds (a window's tokens). `step_overhead_s` is once per step; `body_*` has the host's excess.
    `link_cap_gbps`: link rate of this slice alone. With speculation a step with decodes takes
    `passes` of a pass over `verified` more rows for each.
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
    prefill_attention_s: Grid
    decode_attention_s: Grid
    cache: CacheShape
    link_cap_gbps: float
    sparse: CacheShape | None = None
    passes: float = 1.0
    verified: int = 0
    draft_read_s_per_token: float = 0.0
    draft_kv_reads: float = 0.0
    draft_bytes: float = 0.0

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a step."""
        return len(self.body_s) - 1

    @property
    def max_rows(self) -> int:
        """Most rows with logits in a step."""
        return len(self.head_s) - 1

    @property
    def reads(self) -> CacheShape:
        """Cache positions read by attention, in `cache`'s unit."""
        return self.cache if self.sparse is None else self.sparse

    @property
    def decode_read_s_per_token(self) -> float:
        """Seconds of a cached token in a decode, with the draft."""
        return self.passes * self.kv_read_s_per_token + self.draft_read_s_per_token

    @property
    def decode_reads(self) -> float:
        """Reads of a cached token by a decoded one, draft included."""
        return self.passes + self.draft_kv_reads

    @property
    def token_places(self) -> int:
        """Cache positions of a token in all layers, see `CacheShape`."""
        return self.cache.full + self.cache.windowed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Duration of one step and the bytes it moves.

    `alone_s` is without contention, `demand_gbps` the average link rate.
    """

    seconds: float
    alone_s: float
    link_bytes: float
    hbm_bytes: float
    demand_gbps: float


def elementwise_bytes_per_token(spec: ModelSpec) -> int:
    """Return HBM bytes per token of all but GEMMs and KV reads.

    Each tensor counts once read or written: a layer's norms with residual, rotary embedding, v into
    the cache, attention's q and output, activation. Once: the embedding row and the final norm.
    """
    middle = spec.intermediate
    if spec.experts:
        middle = spec.experts_per_token * spec.moe_intermediate + spec.shared_intermediate
    blocks = spec.layers - len(spec.without_feed_forward)
    halves = len(spec.without_attention) + len(spec.without_feed_forward)
    norms = max(2, spec.norms_per_layer)
    total = 4 * spec.hidden * (norms * spec.layers - norms // 2 * halves)
    total += 3 * middle * blocks
    total += sum(len(mixer.layers) * mixer.moved for mixer in mixers(spec))
    return int(spec.dtype_bytes * (total + 3 * spec.hidden))


def launched(table: StepTable, launch_s: float) -> StepTable:
    """Return the costs with decodes launched kernel by kernel."""
    rows = np.arange(len(table.decode_attention_s))
    head_s = table.head_s.min(axis=1)[np.minimum(rows, table.max_rows)]
    gpu_s = table.body_s.min(axis=1)[rows] + head_s + table.decode_attention_s
    more_s = np.maximum(0.0, launch_s - gpu_s) * (rows > 0)
    if not more_s.any():
        return table
    return replace(table, decode_attention_s=table.decode_attention_s + more_s)


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
    routing: Routing | None = None,
    experts_over: int = 1,
) -> StepTable:
    """Return a model's step costs on a slice.

    Args:
      link_gbps: of the whole link.
      max_tokens: most tokens of a step, prefill and decodes.
      max_rows: most rows with logits.
      alphas: column splits, in [0, 1].
      weights: "host": streamed; "hbm": resident; "staged": each layer, with all experts, is copied
        ahead. Alpha affects "host" alone.
      cluster: CTAs along M that share a weight tile.
      routing: default: independent.
      experts_over: GPUs that share a layer's experts.

    Raises:
      SettingError: a value out of range, or no such kernels.
    """
    split = np.asarray(alphas, dtype=np.float64)
    if split.ndim != 1 or not len(split) or not ((split >= 0) & (split <= 1)).all():
        raise SettingError("alphas", alphas, "a list of numbers in [0, 1]")
    check_value(max_tokens, Count, "max_tokens")
    check_value(max_rows, Count, "max_rows")
    check_value(weights, Literal["host", "hbm", "staged"], "weights")
    check_value(link_gbps, AboveZero, "link_gbps")
    if weights == "host" and not slice_.kernels_read:
        raise SettingError(
            "hardware.link.kernels_read", False, "true for a system that streams weights into "
            "kernels", "Others copy them, such as system=serverlessllm.",
        )  # fmt: skip
    form, names = spec.weights, ("bf16", *kernels(constants.name))
    if form is not None and form.is_demanded and form.kernel not in names:
        allowed = f"one of {', '.join(names)} on {constants.name}"
        raise SettingError("precision.compute", form.kernel, allowed)
    tiles = KernelTiles(cluster=cluster) if tiles is None else tiles
    routing = Routing() if routing is None else routing
    calibration, constants = constants, constants.on(slice_)
    hbm = slice_.hbm_gbps * 1e9

    tokens = np.arange(max_tokens + 1, dtype=np.float64)[:, None]
    rows = np.arange(max_rows + 1, dtype=np.float64)[:, None]
    body = _Sum.zeros(max_tokens + 1, len(split))
    head = _Sum.zeros(max_rows + 1, len(split))
    busy_s = np.zeros(max_tokens + 1)  # for tensor cores on resident weights
    for gemm in gemms(spec):
        into, m = (head, rows) if gemm.kind == "head" else (body, tokens)
        if weights == "host":
            m, groups = _rows_and_groups(gemm, spec, m, routing, experts_over)
            cost = gemm_time(
                m, gemm.n, gemm.k, split, slice_=slice_, constants=constants,
                link_gbps=link_gbps, tiles=tiles, element_bytes=spec.dtype_bytes, groups=groups,
                stored=_stored(gemm, spec),
            )  # fmt: skip
            moved = cost.traffic
            into.add(gemm.count, cost.time_s, moved.link_bytes, moved.hbm_bytes)
        elif gemm.name != EXPERT_DOWN:  # included in the fused layer
            timing = _resident(gemm, spec, m, slice_, calibration, routing, experts_over)
            into.add(gemm.count, timing.total_s, 0.0, timing.hbm_bytes)
            if into is body:
                busy_s += gemm.count * timing.compute_s
    body.seconds += _column(throttled_s(busy_s, busy_s, constants))
    if weights == "staged":
        copy_rate = min(slice_.link_cap_gbps, link_gbps) * 1e9
        for total, kinds in ((body, ("dense", "expert")), (head, ("head",))):
            copied = sum(
                _weight_bytes(g, spec, experts_over) for g in gemms(spec) if g.kind in kinds
            )
            total.stage(copied, copy_rate, hbm * constants.hbm_efficiency)

    elementwise = tokens * elementwise_bytes_per_token(spec)
    body.hbm_bytes += elementwise
    body.seconds += elementwise / (hbm * constants.elementwise_efficiency)
    body.seconds[1:] += ELEMENTWISE_KERNELS_PER_LAYER * spec.layers * constants.elementwise_s
    kv_bytes = kv_bytes_per_token(spec)
    kv_rate = hbm * constants.decode_hbm_efficiency
    counts = tokens[:, 0]
    # layers by the multiply-adds of a query with a cached position, and by their heads: products
    # of queries with keys and of weights with values, whose sizes may differ
    pairs, shapes = Counter[float](), Counter[tuple[int, int, int, int]]()
    for mixer in mixers(spec):
        if mixer.caches:
            pairs[sum(cache.pair / cache.ratio for cache in mixer.caches)] += len(mixer.layers)
            shape = (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.readers)
            shapes[shape] += len(mixer.layers)
    attention_s, decoding_s = np.zeros_like(counts), 2.0 * state_bytes(spec) / kv_rate * counts
    for (heads, kv_heads, head_dim, readers), layers in shapes.items():
        attention_s = attention_s + layers * prefill_attention_s(
            counts, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
            element_bytes=spec.dtype_bytes, slice_=slice_, constants=constants,
        )  # fmt: skip
        # decoding, all heads read one latent vector; a state is read and written
        decoding_s = decoding_s + layers * decode_attention_s(
            counts, kv_heads=readers, slice_=slice_, constants=constants
        )
    storage, read = cache_shape(spec), read_shape(spec)
    host = constants.host
    launches_s = host.launches_s(spec, tokens, routing, experts_over)
    hidden_s = body.seconds + head.seconds[1] + _column(np.minimum(attention_s, decoding_s))
    body.seconds += np.maximum(0.0, launches_s - hidden_s)
    head.seconds += host.sequence_s * rows
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
        kv_read_s_per_token=kv_bytes / kv_rate,
        attn_s_per_pair=float(
            sum(
                layers * pair_s(1, pair / 2, slice_=slice_, constants=constants)
                for pair, layers in pairs.items()
            )
        ),
        prefill_attention_s=attention_s,
        decode_attention_s=decoding_s,
        cache=storage,
        sparse=None if read == storage else read,
        link_cap_gbps=float(kernel_link_gbps(slice_, constants, link_gbps)),
    )


def at_best_alpha(table: StepTable, gbps: float) -> StepTable:
    """Return a table with the best alpha of each size at a rate of the link.

    Args:
      gbps: the slice's rate beside others, 1e9 bytes/s.
    """

    def best(alone_s: Grid, link_bytes: Grid, hbm_bytes: Grid) -> tuple[Grid, Grid, Grid]:
        index = np.maximum(alone_s, link_bytes / (gbps * 1e9)).argmin(axis=1)[:, None]
        grids = alone_s, link_bytes, hbm_bytes
        one, two, three = (np.take_along_axis(grid, index, axis=1) for grid in grids)
        return one, two, three

    body = best(table.body_s, table.body_link_bytes, table.body_hbm_bytes)
    head = best(table.head_s, table.head_link_bytes, table.head_hbm_bytes)
    return replace(
        table, alphas=table.alphas[:1], body_s=body[0], body_link_bytes=body[1],
        body_hbm_bytes=body[2], head_s=head[0], head_link_bytes=head[1], head_hbm_bytes=head[2],
    )  # fmt: skip


def _resident(
    gemm: Gemm, spec: ModelSpec, m: Grid, slice_: Slice, constants: Constants, routing: Routing,
    experts_over: int,
) -> ResidentTime:  # fmt: skip
    width: float = spec.dtype_bytes
    stored = _stored(gemm, spec)
    if stored < width:
        kernel = next((form.kernel for form in gemm.forms if form is not None), "bf16")
        constants, width = kernel_of(constants, kernel, width)
    constants = constants.on(slice_)
    if gemm.kind == "expert":
        return expert_layer_time(
            m[:, 0], hidden=spec.expert_hidden or spec.hidden, gated=spec.gated_mlp,
            intermediate=spec.moe_intermediate, experts=spec.experts,
            experts_per_token=spec.experts_per_token, slice_=slice_, constants=constants,
            element_bytes=width, routing=routing, stored=stored, over=experts_over,
        )  # fmt: skip
    return resident_gemm_time(
        m[:, 0], gemm.n, gemm.k, slice_=slice_, constants=constants,
        element_bytes=width, stored=stored,
    )  # fmt: skip


def _rows_and_groups(
    gemm: Gemm, spec: ModelSpec, tokens: Grid, routing: Routing, experts_over: int
) -> tuple[Grid, Grid | float]:
    if gemm.kind != "expert":
        return tokens, 1.0
    active = expert_load(tokens, spec.experts, spec.experts_per_token, routing).active
    share = np.divide(
        tokens * spec.experts_per_token, active, out=np.zeros_like(tokens), where=active > 0
    )
    return share, active / experts_over


def _stored(gemm: Gemm, spec: ModelSpec) -> float:
    """Return a stored weight's bytes, its share of scales included."""
    return gemm_bytes(spec, gemm) / (gemm.k * gemm.n)


def _weight_bytes(gemm: Gemm, spec: ModelSpec, experts_over: int) -> float:
    groups = spec.experts // experts_over if gemm.kind == "expert" else 1
    return float(gemm.count * groups * gemm_bytes(spec, gemm))


def _column(values: Grid | float) -> Grid:
    grid = np.asarray(values)
    return grid[:, None] if grid.ndim == 1 else grid


@dataclass(slots=True)
class _Sum:
    seconds: Grid
    link_bytes: Grid
    hbm_bytes: Grid

    @classmethod
    def zeros(cls, rows: int, columns: int) -> "_Sum":
        return cls(*(np.zeros((rows, columns)) for _ in range(3)))

    def add(self, count: int, seconds: Grid, link_bytes: Grid | float, hbm_bytes: Grid) -> None:
        self.seconds += count * _column(seconds)
        self.link_bytes += count * _column(link_bytes)
        self.hbm_bytes += count * _column(hbm_bytes)

    def stage(self, copied_bytes: float, link_rate: float, hbm_rate: float) -> None:
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
    decode_kv_tokens: float = 0,
    head_rows: int = 0,
    alpha_index: int = 0,
    rate_gbps: float | None = None,
) -> StepCost:
    """Return the cost of one step in closed form.

    Args:
      context_tokens: cached tokens of the same prompt.
      decode_kv_tokens: read by the decodes, mean over layers.
      alpha_index: column of the table.
      rate_gbps: of the slice; None: as much as it can draw.

    Returns:
      Duration and bytes; below its average demand, the time of its link bytes.

    Raises:
      SettingError: too many tokens or rows, or a rate not above 0.
    """
    passes = table.passes if decode_seqs > 0 else 1.0
    tokens = int(prefill_tokens / passes + 0.5) + decode_seqs * (1 + table.verified)
    head_rows += decode_seqs * table.verified
    if not 0 <= tokens <= table.max_tokens:
        raise SettingError("step tokens", tokens, f"0 to {table.max_tokens}")
    if not 0 <= head_rows <= table.max_rows:
        raise SettingError("head_rows", head_rows, f"0 to {table.max_rows}")
    if rate_gbps is not None and rate_gbps <= 0:
        raise SettingError("rate_gbps", rate_gbps, "a number above 0, or None")
    a = alpha_index
    alone = float(table.body_s[tokens, a]) + float(table.head_s[head_rows, a])
    alone = passes * (alone + table.step_overhead_s)
    kv_tokens = table.decode_reads * decode_kv_tokens
    alone += table.decode_read_s_per_token * decode_kv_tokens
    alone += float(table.decode_attention_s[decode_seqs])
    if prefill_tokens > 0:
        pairs = cache_pairs(context_tokens, prefill_tokens, table.reads) / table.token_places
        keys = chunk_places(context_tokens, prefill_tokens, table.reads) / table.token_places
        alone += max(table.attn_s_per_pair * pairs, table.kv_read_s_per_token * keys)
        alone += float(table.prefill_attention_s[prefill_tokens])
        kv_tokens += keys
    link = passes * float(table.body_link_bytes[tokens, a] + table.head_link_bytes[head_rows, a])
    hbm = passes * float(table.body_hbm_bytes[tokens, a] + table.head_hbm_bytes[head_rows, a])
    hbm += table.draft_bytes * (decode_seqs > 0)
    states = 2 * (decode_seqs + (prefill_tokens > 0)) * table.cache.state / table.token_places
    hbm += (kv_tokens + states) * table.kv_bytes_per_token
    seconds = alone if rate_gbps is None else max(alone, link / (rate_gbps * 1e9))
    return StepCost(
        seconds=seconds,
        alone_s=alone,
        link_bytes=link,
        hbm_bytes=hbm,
        demand_gbps=link / alone / 1e9 if alone > 0 else 0.0,
    )
