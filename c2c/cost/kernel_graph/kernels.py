"""The kernels of a step of a model by its shape: what each computes, moves, and takes from others.

A list of what serving engines launch, one for all GPUs. What XLA launches is read from its own code
(`c2c.systems.program.xla`); this is for models and batches of any size, in no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from c2c.errors import SettingError
from c2c.models import ModelSpec, check_plain_layers

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
    """Data that one kernel writes and a later one reads.

    `weight` counts it as often as that: it is 1 but where works are joined.
    """

    source: int
    target: int
    nbytes: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Weights:
    """Memory that every GPU needs on which one of these kernels runs."""

    nbytes: float
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step's input: `rows` sequences of `chunk` new tokens each, at `context` tokens."""

    rows: int
    chunk: int
    context: int

    def __post_init__(self) -> None:
        for name in ("rows", "chunk", "context"):
            if getattr(self, name) < 1:
                raise SettingError(f"batch.{name}", getattr(self, name), "a whole number above 0")
        if self.context < self.chunk:
            raise SettingError("batch.context", self.context, f"at least chunk, {self.chunk}")

    @property
    def tokens(self) -> int:
        """New tokens of all rows."""
        return self.rows * self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKernel:
    """A kernel.

    Attributes:
      kind: what it is, the same in all layers.
      layer: which; -1: it belongs to none.
      tensor_flops: on tensor cores.
      core_flops: on CUDA cores.
      weight_bytes: of parameters that it reads.
      cache_bytes: of keys and values that it reads, or of states that it reads and writes.
      read_bytes: of what other kernels of the step wrote.
      write_bytes: of its result.
      takes: kernels whose results it reads.
      wire_bytes: that a collective sends to the other GPUs of a group.
      product: M, K and N, where it is a product of [M, K] with a matrix [K, N] of weights.
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

    @property
    def is_attention(self) -> bool:
        """True if it is of the attention block, not of the feed-forward one."""
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


def step_kernels(
    spec: ModelSpec, batch: Batch, *, expert_bytes: float = _ELEMENT_BYTES
) -> tuple[StepKernel, ...]:
    """Return the kernels of a step: prefill where a row has several tokens, else decode.

    Args:
      spec: the model.
      batch: what the step works on.
      expert_bytes: of a weight of an expert, which a kernel turns into 16 bits as it reads it.

    Raises:
      SettingError: a layer has parts that are not known here.
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
    """Return what goes between kernels: the producer's whole result."""
    return tuple(
        Transfer(source, target, kernels[source].write_bytes)
        for target, kernel in enumerate(kernels)
        for source in kernel.takes
    )


class KernelList:
    """Kernels in program order; all that is said of one is a total, in elements of 16 bits."""

    def __init__(self) -> None:
        self.made: list[StepKernel] = []

    def add(
        self, kind: str, layer: int, *takes: int, tensor: float = 0.0, core: float = 0.0,
        weight: float = 0.0, cache: float = 0.0, read: float = 0.0, write: float = 0.0,
    ) -> int:  # fmt: skip
        """Add a kernel that takes others' results; return its number."""
        self.made.append(
            StepKernel(
                kind=kind, layer=layer, tensor_flops=tensor, core_flops=core,
                weight_bytes=_ELEMENT_BYTES * weight, cache_bytes=_ELEMENT_BYTES * cache,
                read_bytes=_ELEMENT_BYTES * read, write_bytes=_ELEMENT_BYTES * write, takes=takes,
            )
        )  # fmt: skip
        return len(self.made) - 1

    def gemm(self, kind: str, layer: int, taken: int, m: float, k: int, n: int) -> int:
        """Add a product of [m, k] with a matrix [k, n] of weights."""
        number = self.add(kind, layer, taken, tensor=2 * m * k * n, weight=k * n, read=m * k,
                          write=m * n)  # fmt: skip
        self.made[number] = replace(self.made[number], product=(m, k, n))
        return number


class _Builder:
    """Adds kernels of a decoder; what they read and write is counted by token, or in total."""

    def __init__(self, spec: ModelSpec, batch: Batch, expert_bytes: float) -> None:
        self.spec, self.batch = spec, batch
        self.expert_share = expert_bytes / _ELEMENT_BYTES
        self.kernels = KernelList()

    @property
    def made(self) -> list[StepKernel]:
        return self.kernels.made

    def add(
        self, kind: str, layer: int, *takes: int, read: float = 0.0, write: float = 0.0,
        is_total: bool = False, **totals: float,
    ) -> int:  # fmt: skip
        """Add a kernel; return its number. FLOPs, weights and cache are totals."""
        tokens = 1 if is_total else self.batch.tokens
        return self.kernels.add(
            kind, layer, *takes, read=tokens * read, write=tokens * write, **totals
        )

    def gemm(self, kind: str, layer: int, taken: int, k: int, n: int) -> int:
        """Add a product of all tokens with a matrix [k, n]."""
        return self.kernels.gemm(kind, layer, taken, self.batch.tokens, k, n)

    def layer(self, layer: int, x: int) -> int:
        """Add a layer that reads kernel `x`; return its last one."""
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
        # distinct experts that independent tokens choose, in the mean
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
    """Return how many tokens the new ones of a row see together, each itself and those before.

    >>> _pairs(3, 5, 0), _pairs(3, 5, 4), _pairs(1, 9, 4)
    (12.0, 11.0, 4.0)
    """
    first = context - chunk + 1
    if not window or context <= window:
        return chunk * (first + context) / 2
    growing = max(0, window - first)  # tokens that see fewer than the window holds
    return growing * (first + window - 1) / 2 + float((chunk - growing) * window)
