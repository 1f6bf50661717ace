"""What two unlike GPUs can do for one model: one of them, both apart, or together in three ways.

Requests a second that each way sustains under one load, the slowest part deciding, and where the
weights fit. `kernels` is Tessera's; `prefill_decode` and `attention_ffn` are what it compares with;
`replicas` is two GPUs that serve independently, which needs no link and which the paper leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from c2c.errors import SettingError
from c2c.hardware import Gpu
from c2c.models import ModelSpec, kv_bytes_per_token, weight_bytes
from c2c.systems.tessera.costs import Efficiency, work_of
from c2c.systems.tessera.kernels import Batch, StepKernel, step_kernels
from c2c.systems.tessera.plan import Plan, memory_of, stages_of
from c2c.systems.tessera.planner import plan, relaxation_s
from c2c.systems.tessera.work import Gpus, Transfer, Weights, joined

__all__ = ["WAYS", "Load", "Way", "best_way", "ways"]

WAYS: Final = ("left", "right", "replicas", "prefill_decode", "attention_ffn", "kernels", "limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that are all alike.

    Attributes:
      prompt: tokens of each.
      output: tokens generated for each.
      rows: of a decode step.
      prompts: of a prefill step.
    """

    prompt: int
    output: int
    rows: int = 64
    prompts: int = 4

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "rows", "prompts"):
            if getattr(self, name) < 1:
                raise SettingError(f"load.{name}", getattr(self, name), "a whole number above 0")

    @property
    def prefill(self) -> Batch:
        """A prefill step."""
        return Batch(rows=self.prompts, chunk=self.prompt, context=self.prompt)

    @property
    def decode(self) -> Batch:
        """A decode step, half of the output generated."""
        return Batch(rows=self.rows, chunk=1, context=self.prompt + max(1, self.output // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to use the GPUs.

    Attributes:
      name: of `WAYS`.
      requests_per_s: that it sustains; 0: the model does not fit.
      price: of the GPUs that it takes, relative.
      held_bytes: weights and cache on each GPU.
      plan: of ways that place kernels.
      detail: which GPU does what.
    """

    name: str
    requests_per_s: float
    price: float
    held_bytes: tuple[float, ...]
    plan: Plan | None = None
    detail: str = ""

    @property
    def efficiency(self) -> float:
        """Requests a second for the price."""
        return self.requests_per_s / self.price


def ways(
    spec: ModelSpec,
    pair: Sequence[tuple[str, Gpu]],
    load: Load,
    *,
    gbps: float,
    latency_s: float,
    efficiency: Efficiency | None = None,
    gap: float = 0.01,
) -> tuple[Way, ...]:
    """Return all ways, in the order of `WAYS`.

    Args:
      spec: the model.
      pair: two GPUs with names, left and right.
      load: what they serve.
      gbps: of the link between them, each way.
      latency_s: of a transfer.
      efficiency: of kernels.
      gap: at which the planner may stop.

    Raises:
      SettingError: not two GPUs, or one lacks a price or a rate.
    """
    if len(pair) != 2:
        raise SettingError("pair", [name for name, _ in pair], "two GPUs")
    made = _Pair(spec, pair, load, Gpus.alike([n for n, _ in pair], gbps=gbps, latency_s=latency_s),
                 efficiency)  # fmt: skip
    return (
        made.single(0),
        made.single(1),
        made.replicas(),
        made.prefill_decode(),
        made.attention_ffn(),
        made.kernels(gap),
        made.limit(),
    )


def best_way(found: Sequence[Way], *, by_price: bool = False) -> Way:
    """Return the way of most requests a second, or most for the price; the simpler of equals.

    Raises:
      SettingError: the model fits in no way.
    """
    real = [way for way in found if way.name != "limit" and way.requests_per_s > 0]
    if not real:
        held = max((max(way.held_bytes) for way in found), default=0.0)
        raise SettingError("model", f"{held:.0f} bytes", "one that the memory of both GPUs holds")
    return max(real, key=lambda w: w.efficiency if by_price else w.requests_per_s)


class _Pair:
    """A model under a load over two GPUs, in seconds a request."""

    def __init__(
        self,
        spec: ModelSpec,
        pair: Sequence[tuple[str, Gpu]],
        load: Load,
        link: Gpus,
        efficiency: Efficiency | None,
    ) -> None:
        self.names = [name for name, _ in pair]
        self.load, self.link = load, link
        self.prices = [_price(name, gpu) for name, gpu in pair]
        self.room = [float(gpu.hbm_bytes) for _, gpu in pair]
        gpus = [gpu for _, gpu in pair]
        steps = [step_kernels(spec, batch) for batch in (load.prefill, load.decode)]
        counts = (1 / load.prompts, load.output / load.rows)
        self.parts = [work_of(kernels, gpus, efficiency) for kernels in steps]
        self.seconds = [
            [float(t) * count for t in work.times.sum(0)]
            for work, count in zip(self.parts, counts, strict=True)
        ]
        self.weights = float(weight_bytes(spec))
        context = load.prompt + load.output
        self.cache = float(kv_bytes_per_token(spec)) * load.rows * context
        self.prompt_kv = float(kv_bytes_per_token(spec)) * load.prompt
        both = joined(list(zip(self.parts, counts, strict=True)))
        kernels = [kernel for step in steps for kernel in step]
        keys = self.prompt_kv * load.prompts / spec.layers
        handed = [
            Transfer(source, target, keys, counts[0])
            for source, target in _keys_and_values(steps[0], steps[1])
        ]
        self.is_attention = [kernel.is_attention for kernel in kernels]
        self.both = replace(
            both,
            transfers=(*both.transfers, *handed),
            weights=self._kept(spec, [(k.kind, k.layer) for k in kernels]),
        )

    def _kept(self, spec: ModelSpec, of: Sequence[tuple[str, int]]) -> tuple[Weights, ...]:
        """Return what prefill and decode kernels of one kind and layer keep together.

        The cache goes with attention, the matrices with the kernels that read them; the embedding
        and the head have a table each, or share one.
        """
        decode = step_kernels(spec, Batch(rows=2**20, chunk=1, context=1))
        matrices = {
            (k.kind, k.layer): k.weight_bytes
            for k in decode
            if k.weight_bytes and k.kind != "embed"
        }
        if not spec.tie_embeddings:
            matrices["embed", -1] = matrices["head", -1]
        for layer in range(spec.layers):
            matrices["attention", layer] = self.cache / spec.layers
        readers: dict[tuple[str, int], list[int]] = {}
        for number, key in enumerate(of):
            if key in matrices:
                readers.setdefault(key, []).append(number)
        return tuple(Weights(matrices[key], tuple(numbers)) for key, numbers in readers.items())

    def single(self, gpu: int) -> Way:
        """One GPU, the other one not bought."""
        held = [0.0, 0.0]
        held[gpu] = self.weights + self.cache
        rate = 1 / (self.seconds[0][gpu] + self.seconds[1][gpu])
        return Way(
            name=WAYS[gpu], requests_per_s=rate if held[gpu] <= self.room[gpu] else 0.0,
            price=self.prices[gpu], held_bytes=tuple(held), detail=self.names[gpu],
        )  # fmt: skip

    def replicas(self) -> Way:
        """Each serves as many requests as it can."""
        each = [self.single(gpu) for gpu in range(2)]
        fits = all(way.requests_per_s for way in each)
        return Way(
            name="replicas", requests_per_s=sum(w.requests_per_s for w in each) if fits else 0.0,
            price=sum(self.prices), held_bytes=(self.weights + self.cache,) * 2,
            detail=" | ".join(self.names),
        )  # fmt: skip

    def prefill_decode(self) -> Way:
        """The better of both directions; a prompt's keys and values are sent."""
        found = []
        for u, g in ((0, 1), (1, 0)):
            sent = self.link.seconds(self.prompt_kv, u, g)
            slowest = max(self.seconds[0][u], self.seconds[1][g], sent)
            held = [0.0, 0.0]
            held[u] = self.weights + self.prompt_kv * self.load.prompts
            held[g] = self.weights + self.cache
            fits = all(h <= room for h, room in zip(held, self.room, strict=True))
            found.append(
                Way(
                    name="prefill_decode", requests_per_s=1 / slowest if fits else 0.0,
                    price=sum(self.prices), held_bytes=tuple(held),
                    detail=f"prefill on {self.names[u]}, decode on {self.names[g]}",
                )
            )  # fmt: skip
        return max(found, key=lambda way: way.requests_per_s)

    def attention_ffn(self) -> Way:
        """The better of both directions."""
        found = []
        for u, g in ((0, 1), (1, 0)):
            gpu_of = [u if attends else g for attends in self.is_attention]
            stages, _ = stages_of(self.both, self.link, gpu_of)
            detail = f"attention on {self.names[u]}, the rest on {self.names[g]}"
            found.append(self._placed("attention_ffn", gpu_of, max(s.seconds for s in stages),
                                      detail=detail))  # fmt: skip
        return max(found, key=lambda way: way.requests_per_s)

    def kernels(self, gap: float) -> Way:
        """One plan for prefill and decode; within memory."""
        limited = replace(self.link, memory_bytes=tuple(self.room))
        try:
            # transfers that several kernels need are sent once, as a worker does
            made = plan(self.both, limited, "throughput", gap=gap)
        except SettingError as problem:
            if problem.field not in ("weights", "placement"):
                raise
            return Way(
                name="kernels", requests_per_s=0.0, price=sum(self.prices),
                held_bytes=(self.weights + self.cache, 0.0), detail="any placement",
            )  # fmt: skip
        share = sum(made.gpu_of) / len(made.gpu_of)
        detail = f"{share:.0%} of kernels on {self.names[1]}, gap {made.gap:.1%}"
        return self._placed("kernels", made.gpu_of, made.objective_s, plan=made, detail=detail)

    def limit(self) -> Way:
        """Kernels split in any way, nothing sent, no limit on memory."""
        return Way(
            name="limit", requests_per_s=1 / relaxation_s(self.both), price=sum(self.prices),
            held_bytes=(0.0, 0.0), detail="no transfers, kernels divisible",
        )  # fmt: skip

    def _placed(
        self, name: str, gpu_of: Sequence[int], seconds: float, *, plan: Plan | None = None,
        detail: str,
    ) -> Way:  # fmt: skip
        held = memory_of(self.both, gpu_of, 2)
        fits = all(h <= room for h, room in zip(held, self.room, strict=True))
        return Way(
            name=name, requests_per_s=1 / seconds if fits else 0.0, price=sum(self.prices),
            held_bytes=held, plan=plan, detail=detail,
        )  # fmt: skip


def _keys_and_values(
    prefill: Sequence[StepKernel], decode: Sequence[StepKernel]
) -> Iterator[tuple[int, int]]:
    """Yield what writes a layer's keys and values in prefill, and what reads them in decode."""
    writers = {k.layer: number for number, k in enumerate(prefill) if k.kind == "kv_write"}
    for number, kernel in enumerate(decode, len(prefill)):
        if kernel.kind == "attention":
            yield writers[kernel.layer], number


def _price(name: str, gpu: Gpu) -> float:
    if gpu.price is None:
        raise SettingError(f"hardware.{name}.gpu.price", None, "a number above 0")
    return gpu.price
