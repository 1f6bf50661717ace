"""Section `link`: copies over the host link, copies in device memory, matrix products.

Needs none of our kernels: these are the rates that any program can get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.gpu.cases import Case, Context, Row, Scale
from experiments.gpu.timing import rates, seconds_each

MIB = 1 << 20
COPIES = ("pinned_to_device", "pageable_to_device", "device_to_pinned")
SIZES: Mapping[Scale, Mapping[str, tuple[int, ...]]] = {
    "full": {
        "link": tuple(n * MIB for n in (256, 1024, 64, 16, 4, 1)),
        "device_memory": tuple(n * MIB for n in (1024, 4096, 256)),  # far above every L2
        "matmul_bf16": (8192, 4096, 2048),
    },
    "quick": {"link": (64 * MIB,), "device_memory": (256 * MIB,), "matmul_bf16": (4096,)},
    "tiny": {"link": (MIB,), "device_memory": (MIB,), "matmul_bf16": (256,)},
}


def cases(scale: Scale) -> list[Case]:
    """List the measurements, the largest sizes first."""
    sizes = SIZES[scale]
    return [
        *(Case(spec=memory(n)) for n in sizes["device_memory"]),
        *(Case(spec=product(n)) for n in sizes["matmul_bf16"]),
        *(Case(spec=copy(name, n)) for n in sizes["link"] for name in COPIES),
    ]


def copy(name: str, nbytes: int) -> dict[str, Any]:
    """Return the spec of a copy over the link."""
    return {"what": "link", "copy": name, "bytes": nbytes}


def memory(nbytes: int) -> dict[str, Any]:
    """Return the spec of reading and writing device memory."""
    return {"what": "device_memory", "bytes": nbytes}


def product(n: int) -> dict[str, Any]:
    """Return the spec of square matrix products."""
    return {"what": "matmul_bf16", "n": n}


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case."""
    repeats, few = max(context.repetitions[0], 3), context.scale == "tiny"
    if spec["what"] == "link":
        return [link_copy(spec["copy"], spec["bytes"], repeats)]
    if spec["what"] == "device_memory":
        return [device_copy(spec["bytes"], repeats, passes=2 if few else 16)]
    return [matrix_products(spec["n"], repeats, products=2 if few else 16)]


def link_copy(name: str, nbytes: int, repeats: int) -> Row:
    """Time copies between host and device memory; GB/s are 1e9 bytes a second, one direction."""
    import jax
    from jax.sharding import SingleDeviceSharding

    device = jax.devices()[0]
    on_device = SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
    pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
    pageable = np.arange(nbytes // 4, dtype=np.int32)
    if name == "pinned_to_device":
        source, target = jax.device_put(pageable, pinned).block_until_ready(), on_device
    elif name == "pageable_to_device":
        source, target = pageable, on_device
    else:
        source, target = jax.device_put(pageable, on_device).block_until_ready(), pinned
    return {**rates(nbytes, seconds_each(partial(jax.device_put, source, target), repeats), "gbps")}


def sweep_program(passes: int) -> Callable[[Any], Any]:
    """Return a program that reads and writes its argument `passes` times, one after another."""
    import jax
    from jax import numpy as jnp

    def once(i: jax.Array, y: jax.Array) -> jax.Array:
        return y + i.astype(jnp.uint32)

    def sweep(x: jax.Array) -> Any:
        return jax.lax.fori_loop(0, passes, once, x)

    return jax.jit(sweep)


def device_copy(nbytes: int, repeats: int, *, passes: int) -> Row:
    """Time reading and writing device memory: each pass reads and writes `nbytes` once.

    The passes run inside one program, so that the time to start it does not count as memory time.
    """
    import jax

    values = np.random.default_rng(0).integers(0, 2**32, nbytes // 4, np.uint32)
    times = seconds_each(partial(sweep_program(passes), jax.device_put(values)), repeats)
    return {**rates(2 * nbytes * passes, times, "gbps")}


def chain_program(products: int) -> Callable[[Any, Any], Any]:
    """Return a program that multiplies x by w `products` times, each needing the one before."""
    import jax
    from jax import numpy as jnp

    def chain(x: jax.Array, w: jax.Array) -> Any:
        def once(_: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.matmul(y, w, preferred_element_type=jnp.float32).astype(jnp.bfloat16)

        return jax.lax.fori_loop(0, products, once, x)

    return jax.jit(chain)


def matrix_products(n: int, repeats: int, *, products: int) -> Row:
    """Time square bf16 products with float32 accumulation; TFLOP/s count 2 n^3 a product."""
    import jax
    from jax import numpy as jnp

    draw = np.random.default_rng(n)
    x = jnp.asarray(draw.standard_normal((n, n), np.float32), jnp.bfloat16)
    # Scaled so that values keep their size along the chain: zeros and infinities draw less
    # power, and so run faster, than a model's numbers.
    w = jnp.asarray(draw.standard_normal((n, n), np.float32) / np.sqrt(n), jnp.bfloat16)
    times = seconds_each(partial(chain_program(products), jax.device_put(x), w), repeats)
    return {**rates(2.0 * n**3 * products, times, "tflops", 1e12)}
