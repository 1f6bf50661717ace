"""Kernels of a model's step."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.models import ModelSpec, check_plain_layers
from c2c.ranges import Count, check_fields

__all__ = [
    "Batch",
    "KernelList",
    "StepKernel",
    "Transfer",
    "Weights",
    "step_kernels",
    "transfers_of",
]

_ELEMENT_BYTES = 2  # bf16


@dataclass(frozen=True, slots=True)
class Transfer:
    """Data of one kernel for `weight` later ones."""

    source: int
    target: int
    nbytes: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Weights:
    """Memory for GPUs that run one of these kernels."""

    nbytes: float
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step's input: `rows` sequences of `chunk` new tokens at `context` tokens."""

    rows: Count
    chunk: Count
    context: Count

    def __post_init__(self) -> None:
        check_fields(self, "batch")
        if self.context < self.chunk:
            raise SettingError("batch.context", self.context, f"at least chunk, {self.chunk}")

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return self.rows * self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKernel:
    """One kernel of a step.

    Attributes:
      kind: name, the same in all layers.
      layer: -1: of no layer.
      cache_bytes: of KV read, or of states read and written.
      read_bytes: of other kernels' results.
      takes: indices of the kernels read.
      wire_bytes: sent by a collective to its group.
      product: M, K, N of a GEMM with weights.
      tokens: new tokens of its step; 0: unknown.
      is_decode: whether rows have one new token each.
    """

    kind: str
    layer: int
    tensor_flops: float = 0.0
    core_flops: float = 0.0
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    takes: tuple[int, ...] = ()
    wire_bytes: float = 0.0
    product: tuple[float, float, float] | None = None
    tokens: int = 0
    is_decode: bool = False

    @property
    def is_attention(self) -> bool:
        """True for a kernel of attention, False for feed-forward."""
        return self.kind in _ATTENTION


_ATTENTION = frozenset(
    {
        "norm1",
        "qkv",
        "rope_q",
        "rope_k",
        "kv_write",
        "attention",
        "merge",
        "o",
        "all_reduce_o",
        "add1",
    }
)


# The list follows the kernels that serving engines launch and is the same for all GPUs;
# `c2c.systems.program.xla` reads XLA's kernels from compiled code instead.
def step_kernels(
    spec: ModelSpec, batch: Batch, *, expert_bytes: float = _ELEMENT_BYTES
) -> tuple[StepKernel, ...]:
    """Return a step's kernels: prefill if a row has several tokens, else decode.

    Args:
      expert_bytes: bytes of a stored expert weight.

    Raises:
      SettingError: a layer has unsupported parts.
    """
    check_plain_layers(spec)
    builder = _Builder(spec, batch, expert_bytes)
    x = builder.add("embed", -1, read=0, write=spec.hidden, weight=batch.tokens * spec.hidden)
    for layer in range(spec.layers):
        x = builder.layer(layer, x)
    last = batch.rows * spec.hidden
    norm = builder.add("norm_end", -1, x, core=6 * last, read=last, write=last, is_total=True)
    head = builder.kernels.gemm("head", -1, norm, batch.rows, spec.hidden, spec.vocab)
    logits = batch.rows * spec.vocab
    builder.add("argmax", -1, head, core=logits, read=logits, write=batch.rows, is_total=True)
    return tuple(builder.made)


def transfers_of(kernels: tuple[StepKernel, ...]) -> tuple[Transfer, ...]:
    """Return the transfers between kernels, whole results each."""
    return tuple(
        Transfer(source, target, kernels[source].write_bytes)
        for target, kernel in enumerate(kernels)
        for source in kernel.takes
    )


class KernelList:
    """Kernels in program order, with totals in 16-bit elements."""

    def __init__(self, batch: Batch | None = None) -> None:
        self.made: list[StepKernel] = []
        self.tokens = 0 if batch is None else batch.tokens
        self.is_decode = batch is not None and batch.chunk == 1

    def add(
        self, kind: str, layer: int, *takes: int, tensor: float = 0.0, core: float = 0.0,
        weight: float = 0.0, cache: float = 0.0, read: float = 0.0, write: float = 0.0,
        product: tuple[float, float, float] | None = None,
    ) -> int:  # fmt: skip
        """Add a kernel with its inputs; return its index."""
        self.made.append(
            StepKernel(
                kind=kind, layer=layer, tensor_flops=tensor, core_flops=core,
                weight_bytes=_ELEMENT_BYTES * weight, cache_bytes=_ELEMENT_BYTES * cache,
                read_bytes=_ELEMENT_BYTES * read, write_bytes=_ELEMENT_BYTES * write, takes=takes,
                product=product, tokens=self.tokens, is_decode=self.is_decode,
            )
        )  # fmt: skip
        return len(self.made) - 1

    def gemm(self, kind: str, layer: int, source: int, m: float, k: int, n: int) -> int:
        """Add a GEMM of [m, k] with weights [k, n]."""
        return self.add(kind, layer, source, tensor=2 * m * k * n, weight=k * n, read=m * k,
                        write=m * n, product=(m, k, n))  # fmt: skip


class _Builder:
    """Builder of a decoder's kernels, per token or in total."""

    def __init__(self, spec: ModelSpec, batch: Batch, expert_bytes: float) -> None:
        self.spec, self.batch = spec, batch
        self.expert_share = expert_bytes / _ELEMENT_BYTES
        self.kernels = KernelList(batch)

    @property
    def made(self) -> list[StepKernel]:
        return self.kernels.made

    def add(
        self, kind: str, layer: int, *takes: int, read: float = 0.0, write: float = 0.0,
        is_total: bool = False, **totals: float,
    ) -> int:  # fmt: skip
        tokens = 1 if is_total else self.batch.tokens
        return self.kernels.add(
            kind, layer, *takes, read=tokens * read, write=tokens * write, product=None, **totals
        )

    def gemm(self, kind: str, layer: int, source: int, k: int, n: int) -> int:
        return self.kernels.gemm(kind, layer, source, self.batch.tokens, k, n)

    def layer(self, layer: int, x: int) -> int:
        spec, batch = self.spec, self.batch
        d, tokens = spec.hidden, batch.tokens
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        norm = self.add("norm1", layer, x, core=6 * tokens * d, read=d, write=d)
        qkv = self.gemm("qkv", layer, norm, d, q + 2 * kv)
        rope_q = self.add("rope_q", layer, qkv, core=6 * tokens * q, read=q, write=q)
        rope_k = self.add("rope_k", layer, qkv, core=6 * tokens * kv, read=kv, write=kv)
        stored = self.add("kv_write", layer, rope_k, qkv, read=2 * kv, write=2 * kv)
        is_decode = batch.chunk == 1
        window = spec.sliding_window
        if layer in spec.window_layers:
            window = spec.partial_window
        pairs = batch.rows * _pairs(batch.chunk, batch.context, window)
        seen = min(batch.context, batch.chunk - 1 + window) if window else batch.context
        products = 4 * pairs * q
        attention = self.add(
            "attention", layer, rope_q, stored,
            tensor=0.0 if is_decode else products,
            core=(products if is_decode else 0.0) + 5 * pairs * spec.heads,
            cache=2 * batch.rows * seen * kv, read=q, write=q,
        )  # fmt: skip
        merge = self.add("merge", layer, attention, core=2 * tokens * q, read=q, write=q)
        o = self.gemm("o", layer, merge, q, d)
        added = self.add("add1", layer, o, x, core=tokens * d, read=2 * d, write=d)
        norm2 = self.add("norm2", layer, added, core=6 * tokens * d, read=d, write=d)
        down = self._experts(layer, norm2) if spec.experts else self._dense(layer, norm2)
        return self.add("add2", layer, down, added, core=tokens * d, read=2 * d, write=d)

    def _dense(self, layer: int, x: int) -> int:
        d, f, tokens = self.spec.hidden, self.spec.intermediate, self.batch.tokens
        up = self.gemm("gate_up", layer, x, d, 2 * f)
        activated = self.add("activate", layer, up, core=6 * tokens * f, read=2 * f, write=f)
        return self.gemm("down", layer, activated, f, d)

    def _experts(self, layer: int, x: int) -> int:
        spec, tokens = self.spec, self.batch.tokens
        d, f, top = spec.hidden, spec.moe_intermediate, spec.experts_per_token
        # expected distinct experts of independent tokens
        touched = spec.experts * (1 - (1 - top / spec.experts) ** tokens)
        router = self.gemm("router", layer, x, d, spec.experts)
        chosen = self.add(
            "choose", layer, router, core=tokens * spec.experts, read=spec.experts, write=2 * top
        )
        sorted_ = self.add("gather", layer, x, chosen, read=d + 2 * top, write=top * d)
        up = self.add(
            "experts_gate_up", layer, sorted_, tensor=4 * tokens * top * d * f,
            weight=2 * touched * d * f * self.expert_share, read=top * d, write=2 * top * f,
        )  # fmt: skip
        activated = self.add(
            "activate", layer, up, core=6 * tokens * top * f, read=2 * top * f, write=top * f
        )
        down = self.add(
            "experts_down", layer, activated, tensor=2 * tokens * top * d * f,
            weight=touched * d * f * self.expert_share, read=top * f, write=top * d,
        )  # fmt: skip
        return self.add(
            "combine", layer, down, chosen, core=2 * tokens * top * d, read=top * d + 2 * top,
            write=d,
        )  # fmt: skip


def _pairs(chunk: int, context: int, window: int) -> float:
    """Return the (query, key) pairs of a row's new tokens, each with itself and earlier ones.

    >>> _pairs(3, 5, 0), _pairs(3, 5, 4), _pairs(1, 9, 4)
    (12.0, 11.0, 4.0)
    """
    first = context - chunk + 1
    if not window or context <= window:
        return chunk * (first + context) / 2
    growing = max(0, window - first)  # tokens that see less than a full window
    return growing * (first + window - 1) / 2 + float((chunk - growing) * window)
