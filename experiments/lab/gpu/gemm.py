"""Stages `decode`, `mix` and `tall`."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from experiments.lab.gpu.cases import Row, Unmeasurable
from experiments.lab.gpu.timing import time_launches
from experiments.lab.gpu.worker import Settings
from pallas_kernels.gemm import Gemm, choose, machine_for, plans, predict, present_machine
from pallas_kernels.gemm.staging import reader_of, staged_s
from pallas_kernels.hybrid_gemm import hybrid_gemm

# Launches use copies of the weights in turn, together several times the L2.
_COLD_BYTES: Final = 256 * 10**6
_MOST_COPIES: Final = 64
_COMPILED: Final = ("kernel", "best")
_OURS: Final = (*_COMPILED, "chosen", "ring")
_programs: dict[str, Any] = {}  # compiled, or why not


def measure(spec: Mapping[str, Any], settings: Settings) -> list[Row]:
    """Measure one case of `spec["what"]`.

    - kernel: at an alpha, a cluster and SMs; `best`: by the cost model; `chosen`: by default.
    - ring: weights copied by pieces beside products; `serial`: copied first; `resident`: in HBM.
    - bound: the copy engine, device memory and tensor cores alone.
    """
    if "promotion" in spec and "promote.so" not in Path("/proc/self/maps").read_text("utf-8"):
        raise Unmeasurable("promote.so is not loaded")
    if spec["what"] == "bound":
        return [_bound(spec["of"], settings)]
    m, k, n = spec["m"], spec["k"], spec["n"]
    amounts = {
        "weight_bytes": 2 * k * n,
        "activation_bytes": 2 * m * (k + n),
        "flops": 2.0 * m * k * n,
        "device_sms": _sms(settings),
    }
    launch = _ours(spec, settings) if spec["what"] in _OURS else _rival(spec, settings)
    times = time_launches(launch, target_s=settings.target_s, repetitions=settings.repetitions)
    return [amounts | _predicted(spec, settings) | times.columns()]


def compile_all(specs: Sequence[Mapping[str, Any]], settings: Settings) -> None:
    """Compile all cases' kernels, a thread a core."""
    spec_of = {_name(spec): spec for spec in specs if spec["what"] in _COMPILED}
    missing = [spec for name, spec in spec_of.items() if name not in _programs]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(functools.partial(_compile, settings=settings), missing))


def _name(spec: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in spec.items() if key != "promotion"})


def _compile(spec: Mapping[str, Any], settings: Settings) -> None:
    device = jax.devices()[0]
    copies = _copies(spec, settings)
    host = SingleDeviceSharding(device, memory_kind="pinned_host")
    struct: Any = jax.ShapeDtypeStruct  # untyped
    x = struct((spec["m"], spec["k"]), jnp.bfloat16, sharding=SingleDeviceSharding(device))
    w = struct(_shape(spec, copies), jnp.bfloat16, sharding=host)
    layer = struct((), jnp.int32, sharding=SingleDeviceSharding(device))
    try:
        _programs[_name(spec)] = _function(spec, settings).lower(x, w, layer).compile()
    except Exception as error:  # noqa: BLE001 - the case raises it again, whatever it is
        _programs[_name(spec)] = error


def _function(spec: Mapping[str, Any], settings: Settings) -> Any:
    options: dict[str, Any] = {"w_layout": spec["layout"], "backend": settings.backend}
    if spec["what"] == "kernel":
        options |= {"alpha": spec["alpha"], "cluster": spec.get("cluster", 1)}
        options |= {"sm_limit": spec["sms"]} if "sms" in spec else {}
    return jax.jit(lambda x, w, layer: hybrid_gemm(x, w, layer=layer, reader="sms", **options))


def _ours(spec: Mapping[str, Any], settings: Settings) -> Callable[[int], Any]:
    x = _normal((spec["m"], spec["k"]), 1.0, settings.seed)
    copies = _copies(spec, settings)
    w = _weights(_shape(spec, copies), spec["k"], "pinned_host", settings.seed)
    if spec["what"] not in _COMPILED:
        call = functools.partial(
            hybrid_gemm, x, w, w_layout=spec["layout"], backend=settings.backend,
            reader="auto" if spec["what"] == "chosen" else "copy_engine",
        )  # fmt: skip
        return lambda number: call(layer=number % copies)
    if _name(spec) not in _programs:
        _compile(spec, settings)
    program = _programs[_name(spec)]
    if isinstance(program, Exception):
        raise program
    layers = [jnp.int32(i) for i in range(copies)]
    return lambda number: program(x, w, layers[number % copies])


def _rival(spec: Mapping[str, Any], settings: Settings) -> Callable[[int], Any]:
    x = _normal((spec["m"], spec["k"]), 1.0, settings.seed)
    shape, copies = _shape(spec, 1)[1:], _copies(spec, settings)
    resident = spec["what"] == "resident"
    kind = "device" if resident else "pinned_host"
    stored = [_weights(shape, spec["k"], kind, settings.seed + i) for i in range(copies)]
    if resident:
        return lambda number: _product(x, stored[number % copies])

    def launch(number: int) -> Any:
        # Waiting keeps a launch's copy from overlapping the product of the launch before it.
        moved = jax.device_put(stored[number % copies], SingleDeviceSharding(jax.devices()[0]))
        return _product(x, moved.block_until_ready()).block_until_ready()

    return launch


@jax.jit
def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    product = jax.lax.dot_general(
        x, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    return product.astype(x.dtype)


def _predicted(spec: Mapping[str, Any], settings: Settings) -> Row:
    if spec["what"] not in _OURS:
        return {}
    m, k, n = -(-spec["m"] // 8) * 8, spec["k"], spec["n"]
    gemm = Gemm(m=m, k=k, n=n, layers=_copies(spec, settings), w_layout=spec["layout"])
    machine = machine_for() if settings.tiny else present_machine()
    if spec["what"] == "ring":
        return {"predicted_s": staged_s(gemm, machine)}
    if spec["what"] == "chosen":
        return {"reader": reader_of(gemm, machine)}
    alpha, cluster = spec.get("alpha"), spec.get("cluster", 1 if "alpha" in spec else None)
    config = choose(gemm, machine, cluster=cluster, alpha=alpha)
    if alpha is None:
        return {"tm": config.tm, "tn": config.tn, "kc": config.kc, "used_cluster": config.cluster}
    plan = plans(gemm, config, alpha, spec.get("sms"))
    time_s = float(predict(gemm, config, plan, machine).time_s)
    return {"predicted_s": time_s, "tm": config.tm, "tn": config.tn, "kc": config.kc}


def _bound(unit: str, settings: Settings) -> Row:
    """Measure copy engine, device memory (bytes read and written) or tensor cores alone."""
    device = jax.devices()[0]
    size = 1 << (20 if settings.tiny else 28)
    if unit == "copy_engine":
        host = _weights((size // 2,), 1, "pinned_host", settings.seed)
        amount, column = size, "gbps"
        launch: Callable[[int], Any] = lambda _: jax.device_put(host, SingleDeviceSharding(device))  # noqa: E731
    elif unit == "hbm":
        array = _weights((2 * size,), 1, "device", settings.seed)
        amount, column = 2 * array.nbytes, "gbps"
        run = jax.jit(lambda a: -a)
        launch = lambda _: run(array)  # noqa: E731
    else:
        n = 128 if settings.tiny else 8192
        a = _normal((n, n), n**-0.5, settings.seed)
        amount, column = 2 * n**3, "tflops"
        launch = lambda _: _product(a, a)  # noqa: E731
    times = time_launches(launch, target_s=settings.target_s, repetitions=settings.repetitions)
    scale = 1e12 if column == "tflops" else 1e9
    return {column: amount / times.median_s / scale, **times.columns()}


def _sms(settings: Settings) -> int:
    first: Any = jax.devices()[0]
    return 4 if settings.tiny else int(first.core_count)


def _copies(spec: Mapping[str, Any], settings: Settings) -> int:
    nbytes = 2 * spec["k"] * spec["n"]
    return 2 if settings.tiny else max(2, min(_MOST_COPIES, math.ceil(_COLD_BYTES / nbytes)))


def _shape(spec: Mapping[str, Any], copies: int) -> tuple[int, ...]:
    k, n = spec["k"], spec["n"]
    stored = {"kn": (k, n), "nk": (n, k), "tiles": (n // 64, k // 64, 64, 64)}
    return copies, *stored[spec["layout"]]


@functools.lru_cache(maxsize=2)
def _weights(shape: tuple[int, ...], k: int, kind: str, seed: int) -> jax.Array:
    array = _normal(shape, k**-0.5, seed)
    placed: jax.Array = jax.device_put(
        array, SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
    )
    placed.block_until_ready()
    return placed


@functools.partial(jax.jit, static_argnames=("shape", "scale"))
def _normal(shape: tuple[int, ...], scale: float, seed: int) -> jax.Array:
    drawn: jax.Array = jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)
    scaled: jax.Array = drawn * jnp.bfloat16(scale)
    return scaled
