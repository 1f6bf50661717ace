"""What this machine's GPU and its link to host memory really do. Takes about a minute.

    python -m experiments.gpu [--out experiments/results] [--quick]

Measures copies over the link (from pinned and from pageable host memory, and back), copies within
device memory and bf16 matrix products, and writes <out>/<device>/link.json with the versions of
everything involved. Needs jax and numpy only, so it runs without the project's environment.
Exits with 2, saying what it found, on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax

MIB = 1 << 20
LINK_SIZES = tuple(n * MIB for n in (1, 4, 16, 64, 256, 1024))
HBM_SIZES = tuple(n * MIB for n in (256, 1024, 4096))  # far above every L2
MATMUL_SIZES = (2048, 4096, 8192)
REPEATS = 10


def seconds_each(run: Callable[[], Any], repeats: int) -> list[float]:
    """Return the wall time of `repeats` calls after one that is not counted.

    Args:
      run: starts the work and returns the array to wait for.
      repeats: how many calls are timed.
    """
    run().block_until_ready()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run().block_until_ready()
        times.append(time.perf_counter() - start)
    return times


def rate(amount: float, times: Sequence[float], unit: float = 1e9) -> dict[str, float]:
    """Return amount / time in `unit`s a second: of the median, best and worst repetition."""
    return {
        "median": amount / statistics.median(times) / unit,
        "best": amount / min(times) / unit,
        "worst": amount / max(times) / unit,
        "repeats": len(times),
    }


def link_copies(
    device: jax.Device, sizes: Sequence[int] = LINK_SIZES, repeats: int = REPEATS
) -> list[dict[str, Any]]:
    """Time copies between host and device memory; GB/s are 1e9 bytes a second, one direction."""
    import jax
    from jax.sharding import SingleDeviceSharding

    on_device = SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
    pinned = SingleDeviceSharding(device, memory_kind="pinned_host")
    rows = []
    for size in sizes:
        pageable = np.arange(size // 4, dtype=np.int32)
        in_pinned = jax.device_put(pageable, pinned).block_until_ready()
        in_device = jax.device_put(pageable, on_device).block_until_ready()
        for name, source, target in (
            ("pinned_to_device", in_pinned, on_device),
            ("pageable_to_device", pageable, on_device),
            ("device_to_pinned", in_device, pinned),
        ):
            times = seconds_each(partial(jax.device_put, source, target), repeats)
            rows.append({"copy": name, "bytes": size, "gbps": rate(size, times)})
    return rows


def sweep_program(passes: int) -> Callable[[jax.Array], jax.Array]:
    """Return a program that reads and writes its argument `passes` times, one after another."""
    import jax
    from jax import numpy as jnp

    def once(i: jax.Array, y: jax.Array) -> jax.Array:
        return y + i.astype(jnp.uint32)

    def sweep(x: jax.Array) -> Any:
        return jax.lax.fori_loop(0, passes, once, x)

    return jax.jit(sweep)


def device_copies(
    device: jax.Device, sizes: Sequence[int] = HBM_SIZES, repeats: int = REPEATS, passes: int = 16
) -> list[dict[str, Any]]:
    """Time reading and writing device memory: each pass reads and writes `bytes` once.

    The passes run inside one program, so that the time to start it does not count as memory time.
    """
    import jax

    sweep = sweep_program(passes)
    rows = []
    for size in sizes:
        x = jax.device_put(np.zeros(size // 4, np.uint32), device)
        times = seconds_each(partial(sweep, x), repeats)
        rows.append({"bytes": size, "gbps_read_plus_write": rate(2 * size * passes, times)})
    return rows


def chain_program(products: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a program that multiplies x by w `products` times, each needing the one before."""
    import jax
    from jax import numpy as jnp

    def chain(x: jax.Array, w: jax.Array) -> Any:
        def once(_: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.matmul(y, w, preferred_element_type=jnp.float32).astype(jnp.bfloat16)

        return jax.lax.fori_loop(0, products, once, x)

    return jax.jit(chain)


def matrix_products(
    device: jax.Device,
    sizes: Sequence[int] = MATMUL_SIZES,
    repeats: int = REPEATS,
    products: int = 16,
) -> list[dict[str, Any]]:
    """Time square bf16 products with float32 accumulation; TFLOP/s count 2 n^3 a product."""
    import jax
    from jax import numpy as jnp

    chain = chain_program(products)
    rows = []
    for n in sizes:
        draw = np.random.default_rng(n)
        x = jax.device_put(draw.standard_normal((n, n), np.float32), device).astype(jnp.bfloat16)
        # Scaled so that values keep their size along the chain: zeros and infinities draw less
        # power, and so run faster, than a model's numbers.
        w = jax.device_put(draw.standard_normal((n, n), np.float32) / np.sqrt(n), device)
        times = seconds_each(partial(chain, x, w.astype(jnp.bfloat16)), repeats)
        rows.append({"n": n, "tflops": rate(2.0 * n**3 * products, times, 1e12)})
    return rows


def measure(device: jax.Device, *, quick: bool = False) -> dict[str, Any]:
    """Run all measurements on `device`; `quick` takes small sizes and three repetitions."""
    if quick:
        return {
            "link": link_copies(device, LINK_SIZES[:2], 3),
            "device_memory": device_copies(device, (16 * MIB,), 3, passes=2),
            "matmul_bf16": matrix_products(device, (256,), 3, products=2),
        }
    return {
        "link": link_copies(device),
        "device_memory": device_copies(device),
        "matmul_bf16": matrix_products(device),
    }


def provenance(device: jax.Device) -> dict[str, Any]:
    """Return what the numbers depend on and the code does not fix; nothing names the machine."""
    return {
        "measured_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "device": device.device_kind,
        "platform": device.platform,
        "compute_capability": getattr(device, "compute_capability", None),
        "driver": query_driver(),
        "runtime": device.client.platform_version,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("jax", "jaxlib", "numpy")},
        "cpu_count": os.cpu_count(),
        "kernel": platform.release(),
        "commit": output_of(["git", "rev-parse", "HEAD"]),
        "arguments": sys.argv[1:],
    }


def query_driver() -> dict[str, str] | None:
    """Return the driver's own words on the first GPU, or None where nvidia-smi gives none."""
    fields = (
        "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,"
        "pcie.link.gen.max,pcie.link.width.max,mig.mode.current"
    )
    answer = output_of(["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"])
    if answer is None:
        return None
    return dict(zip(fields.split(","), (v.strip() for v in answer.split(",")), strict=False))


def output_of(command: Sequence[str]) -> str | None:
    """Return what `command` prints, or None if it does not exist or fails."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands, no input
            command,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def folder_name(device_kind: str) -> str:
    """Return the device's name as a folder: "NVIDIA H200" becomes "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device_kind.lower()).strip("-")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def summary(results: Mapping[str, Any]) -> str:
    """Return the best median of each measurement, a line each."""
    best: dict[str, float] = {}
    for row in results["link"]:
        best[row["copy"]] = max(best.get(row["copy"], 0.0), row["gbps"]["median"])
    lines = [f"{name:22s} {gbps:9.1f} GB/s" for name, gbps in best.items()]
    memory = max(row["gbps_read_plus_write"]["median"] for row in results["device_memory"])
    products = max(row["tflops"]["median"] for row in results["matmul_bf16"])
    lines.append(f"{'device_memory':22s} {memory:9.1f} GB/s (read + write)")
    lines.append(f"{'matmul_bf16':22s} {products:9.1f} TFLOP/s")
    return "\n".join(lines)


def find_gpu() -> jax.Device:
    """Return the first GPU.

    Raises:
      RuntimeError: there is none that jax can use; says what jax sees instead.
    """
    import jax

    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        seen = ", ".join(sorted({d.device_kind for d in jax.devices()}))
        raise RuntimeError(f"jax {jax.__version__} sees no GPU here, only: {seen}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a summary and write the file; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that it works")
    options = parser.parse_args(arguments)
    try:
        device = find_gpu()
    except RuntimeError as error:
        print(f"{error}.", file=sys.stderr)
        driver = query_driver()
        if driver is None:
            print("nvidia-smi finds none either: this machine has no NVIDIA GPU.", file=sys.stderr)
        else:
            print(
                f"The driver sees {driver['name']}; jax needs CUDA: pip install -e '.[cuda]'.",
                file=sys.stderr,
            )
        return 2
    print(f"Measuring {device.device_kind} ...", flush=True)
    results = measure(device, quick=options.quick)
    path = options.out / folder_name(device.device_kind) / "link.json"
    write_json(path, {"provenance": provenance(device), "quick": options.quick, **results})
    print(summary(results))
    print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
