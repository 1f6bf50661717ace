"""Section `cocoserve`: layers copied and moved while a model decodes, on one GPU.

Two pools of one GPU stand for two devices, so that copies between them cross no link. A layer of
Llama 2 13B's shape is also copied from pinned host memory meanwhile, which does cross one. Copies
between two GPUs are listed as unmeasured.
"""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from c2c.models import from_hf_config
from c2c.transformer import (
    Executables,
    KvPool,
    Model,
    OnDevice,
    Runner,
    Sampling,
    Shapes,
    Step,
    block_elements,
)  # fmt: skip
from c2c.transformer.linear import linear_by_name
from c2c.transformer.relayout import Relayout, ready_to_move
from c2c.transformer.spread import OverDevices, Path, Spread, layer_bytes
from c2c.transformer.weights.checkpoint import random_params
from experiments.cocoserve.live import Change, Load, scaled
from experiments.gpu.cases import Case, Context, Row, Scale, Unmeasurable
from experiments.gpu.files import scratch
from pallas_kernels.host_memory import to_host

UNMEASURED: Mapping[str, str] = {
    "copies between GPUs": "one GPU: its two pools copy in its own memory",
    "copies of layers at work at once": "one GPU: groups of rows take turns on it",
}
_SIZES: Mapping[Scale, Mapping[str, int]] = {
    "full": {"hidden_size": 5120, "num_hidden_layers": 4, "intermediate_size": 13824,
             "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000},
    "quick": {"hidden_size": 5120, "num_hidden_layers": 2, "intermediate_size": 13824,
              "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
             "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 96},
}  # fmt: skip
_TYPES: Mapping[Scale, str] = {"full": "bfloat16", "quick": "bfloat16", "tiny": "float32"}
_LINEARS: Mapping[Scale, tuple[str, ...]] = {
    "full": ("reference", "hybrid"), "quick": ("reference", "hybrid"), "tiny": ("reference",),
}  # fmt: skip
_ROWS, _CONTEXT, _STEPS = 16, 512, 40


def cases(scale: Scale) -> list[Case]:
    """List what is checked, then what is timed, then what is left open."""
    found = [_case("texts", linear) for linear in _LINEARS[scale]]
    found += [_case("spread", linear) for linear in _LINEARS[scale]]
    found += [_case("relayout", linear) for linear in _LINEARS[scale]]
    found.append(_case("from host memory", "reference"))
    return [*found, *(Case(spec={"what": what}) for what in UNMEASURED)]


def _case(what: str, linear: str) -> Case:
    return Case(spec={"what": what, "linear": linear}, limit_s=120.0, most_s=400.0)


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Check texts, or time one of the questions.

    Raises:
      Unmeasurable: it takes two GPUs.
      AssertionError: texts differ, or something was compiled after all was ready.
    """
    what = spec["what"]
    if what in UNMEASURED:
        raise Unmeasurable(UNMEASURED[what])
    model = _model(spec["linear"], context.scale)
    if what == "texts":
        return _texts(model, context)
    runner = _decoding(model, is_spread=True)
    if what == "spread":
        return _spread(model, runner)
    return _relayout(runner) if what == "relayout" else _from_host(runner)


@functools.cache
def _model(linear: str, scale: Scale) -> Model:
    strategy, dtype = linear_by_name(linear), _TYPES[scale]
    spec = from_hf_config(
        {"model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
         "rope_theta": 1e4, **_SIZES[scale]},
        "llama",
    )  # fmt: skip
    params = random_params(
        spec, np.random.default_rng(0), dtype=dtype, placement=strategy.placement
    )
    return Model(
        spec=spec, params=params, linear=strategy, executables=Executables(scratch("cocoserve"))
    )


def _texts(model: Model, context: Context) -> list[Row]:
    """Serve requests while layers are copied and moved; the texts are those of one device."""
    count = 8 if context.scale == "tiny" else 24
    load = Load(requests=count, operations=count, new=24, seed=context.seed, piece_bytes=1 << 28)
    alone, done = scaled(model, load, jax.devices()[:1] * 2, _drawn)
    equal = sum(a == b for a, b in zip(alone.texts, done.texts, strict=True))
    if equal < count or done.compiled or done.loaded or done.left:
        raise AssertionError(f"{equal} of {count} texts equal, {done.compiled} compiled: {done}")
    same = sum(a == b for a, b in zip(alone.logits, done.logits, strict=True))
    return [{"texts": count, "equal": equal, "operations": len(done.operations),
             "steps": len(alone.logits), "same_logits": same}]  # fmt: skip


def _drawn(over: OverDevices, draws: random.Random) -> Change:
    """Return copies of some layers on either device or both, and requests on any of them."""
    copies = tuple(draws.choice([(0,), (1,), (0, 1)]) for _ in range(over.spec.layers))

    def path() -> Path:
        return tuple(draws.choice(devices) for devices in copies)

    homes = {stay.request: path() for stay in over.kept}
    spread = Spread(copies, (path(), path()))
    return Change(kind="drawn", layers=len(copies), spread=spread, homes=homes)


def _decoding(model: Model, *, is_spread: bool) -> Runner:
    """Return a runner whose seats are all past their prompts, everything compiled."""
    shapes = Shapes(rows=(_ROWS,), budgets=(64,), width=_CONTEXT // 64, mixes=False)
    blocks = (_ROWS + 2) * shapes.width

    def pool() -> KvPool:
        return KvPool(
            blocks, block_elements(model.spec), dtype=model.params.dtype,
            executables=model.executables,
        )  # fmt: skip

    arguments = model.params, model.spec, model.linear
    executor: Any
    if is_spread:
        executor = OverDevices(*arguments, (pool(), pool()), shapes, executables=model.executables)
        ready_to_move(executor)
    else:
        executor = OnDevice(*arguments, pool(), executables=model.executables)
    runner = Runner(executor, shapes)
    runner.warm(draws=(False,), scores=False)
    for request in range(_ROWS):
        runner.submit(request, [request + 1] * 64, new=_CONTEXT - 64, sampling=Sampling())
        runner.finish(runner.start(Step(fill=(request, 64))))
    return runner


def _step_ms(runner: Runner, between: Callable[[], object] = lambda: None) -> list[float]:
    """Return milliseconds of decode steps, each with what is done after it."""
    found = []
    for _ in range(_STEPS):
        begun_s = time.perf_counter()
        runner.finish(runner.start(Step(decode=runner.requests)))
        between()
        found.append(1e3 * (time.perf_counter() - begun_s))
    return found


def _over(runner: Runner) -> OverDevices:
    assert isinstance(runner.executor, OverDevices)
    return runner.executor


def _half(over: OverDevices) -> tuple[Spread, dict[int, tuple[int, ...]]]:
    """Return copies of all layers on the second device, and half of the requests there."""
    layers = over.spec.layers
    spread = Spread(((0, 1),) * layers, ((0,) * layers, (1,) * layers))
    return spread, {request: (request % 2,) * layers for request in range(_ROWS)}


def _spread(model: Model, runner: Runner) -> list[Row]:
    """Time a step of one device, of a spread with all on the first, and of two groups of rows."""
    plain = statistics.median(_step_ms(_decoding(model, is_spread=False)))
    over = _over(runner)
    alone = statistics.median(_step_ms(runner))
    change = Relayout(over, *_half(over))
    while change.advance() is None:
        pass
    two = statistics.median(_step_ms(runner))
    return [{"layers": over.spec.layers, "rows": _ROWS, "one_device_ms": plain,
             "spread_ms": alone, "two_groups_ms": two,
             "copied_bytes": over.held_bytes(1) - over.pools[1].nbytes}]  # fmt: skip


def _relayout(runner: Runner) -> list[Row]:
    """Time steps while all layers and half of the keys and values are copied, by size of piece."""
    rows, over = [], _over(runner)
    back = Spread.alone(over.spec.layers)
    alone = statistics.median(_step_ms(runner))
    for piece_bytes in (16 << 20, 64 << 20, 256 << 20):
        change = Relayout(over, *_half(over), piece_bytes=piece_bytes)
        meanwhile, moved = [], None
        while moved is None:
            begun_s = time.perf_counter()
            runner.finish(runner.start(Step(decode=runner.requests)))
            moved = change.advance()
            meanwhile.append(1e3 * (time.perf_counter() - begun_s))
        rows.append(
            {"piece_bytes": piece_bytes, "pieces": moved.pieces, "step_ms": alone,
             "meanwhile_ms": statistics.median(meanwhile), "longest_ms": max(meanwhile),
             "weight_bytes": moved.weight_bytes, "kv_bytes": moved.kv_bytes}
        )  # fmt: skip
        change = Relayout(over, back, dict.fromkeys(range(_ROWS), back.paths[0]))
        while change.advance() is None:
            pass
    return rows


def _from_host(runner: Runner) -> list[Row]:
    """Time copies of a layer from pinned host memory, alone and while steps run."""
    over = _over(runner)
    layer = over.weights[0, 0]
    leaves = [leaf for leaf in jax.tree.leaves(layer) if leaf.nbytes > 1 << 10]
    hosted = [each.data for each in to_host(leaves)]
    ready: Any = jax.block_until_ready
    there = SingleDeviceSharding(over.device, memory_kind="device")

    def copied() -> list[Any]:
        return [jax.device_put(leaf, there) for leaf in hosted]

    seconds = []
    for _ in range(_STEPS // 4):
        begun_s = time.perf_counter()
        ready(copied())
        seconds.append(time.perf_counter() - begun_s)
    nbytes = sum(leaf.nbytes for leaf in leaves)
    alone = statistics.median(_step_ms(runner))
    meanwhile = statistics.median(_step_ms(runner, lambda: ready(copied())))
    return [{"layer_bytes": layer_bytes(layer), "gbps": nbytes / statistics.median(seconds) / 1e9,
             "step_ms": alone, "step_and_copy_ms": meanwhile}]  # fmt: skip
