"""Digests of graphs' results on random inputs."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from c2c.systems.medusa import Regions
from c2c.systems.program import AllocationId, Device

__all__ = ["begun", "median_s", "outputs_of", "plain_regions", "regions_from"]

INPUTS: Final = (0, 1, 2)  # seeds of the random inputs


def outputs_of(
    device: Device,
    executable_of: Callable[[int], int],
    regions: Mapping[int, Regions],
    addresses: Mapping[AllocationId, int],
) -> dict[str, list[str]]:
    """Return digests of results on random inputs, by batch size."""
    result = {}
    for batch, region in regions.items():
        executable = executable_of(batch)
        device.upload(executable)
        digests = []
        for seed in INPUTS:
            draw = np.random.default_rng(seed)
            for name, offset, nbytes in region.given:
                values = np.frombuffer(draw.bytes(nbytes), np.uint8).copy()
                values[1::2] &= 0xBF  # the exponent's highest bit
                device.write(addresses[name] + offset, values.tobytes())
            device.launch_graph(executable)
            device.synchronise()
            outputs = [device.read(addresses[n] + offset, size) for n, offset, size in region.left]
            digests.append(hashlib.sha256(b"".join(outputs)).hexdigest())
        result[str(batch)] = digests
    return result


def begun(device: Device, graphs: Mapping[int, int]) -> dict[str, Any]:
    """Return seconds of instantiation and upload, and of launches by batch size."""
    begin = time.perf_counter()
    executables = {batch: device.instantiate(graph) for batch, graph in graphs.items()}
    instantiated = time.perf_counter()
    for executable in executables.values():
        device.upload(executable)
    device.synchronise()
    uploaded = time.perf_counter()
    first, later = {}, {}
    for batch, executable in executables.items():

        def launch(executable: int = executable) -> None:
            device.launch_graph(executable)
            device.synchronise()

        launched = time.perf_counter()
        launch()
        first[str(batch)] = time.perf_counter() - launched
        later[str(batch)] = median_s(launch)
        device.destroy_executable(executable)
    return {
        "instantiate_s": instantiated - begin, "upload_s": uploaded - instantiated,
        "first_launch_s": first, "launch_s": later,
    }  # fmt: skip


def median_s(run: Callable[[], None], repeats: int = 5) -> float:
    """Return the median of the seconds of repeated calls."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def plain_regions(regions: Regions) -> dict[str, Any]:
    """Return regions as JSON values."""
    return {"given": regions.given, "left": regions.left}


def regions_from(values: Mapping[str, Any]) -> Regions:
    """Return regions from JSON values."""
    inputs, outputs = (
        tuple((AllocationId(*name), offset, nbytes) for name, offset, nbytes in values[part])
        for part in ("given", "left")
    )
    return Regions(inputs, outputs)
