"""Compilation of the event loop into the on-disk cache: `python -m c2c.simulator.warm`."""

from __future__ import annotations

import gc
import time

import numpy as np

from c2c.compiling.machine_code import cache_dir
from c2c.cost import load_constants
from c2c.hardware import load_platform
from c2c.models import Deployment, load_spec
from c2c.serving import Profile, ServingSetup, SystemSpec, prepare
from c2c.simulator.machine import build_machine
from c2c.simulator.run import Simulation, run_blocks
from c2c.workloads import RequestBlock

__all__ = ["warm"]


def warm() -> float:
    """Compile (or load) the event loop; return the seconds."""
    started = time.perf_counter()
    spec = load_spec("llama-3-3b")
    prepared = prepare(
        ServingSetup(
            platform=load_platform("gh200"),
            mig="7x12gb",
            superchips=1,
            link_variant="measured",
            deployments=(Deployment(name="m", spec=spec, ttft_slo_s=1.0, tpot_slo_s=0.2),),
            system=SystemSpec(name="warm", profile=Profile(chunks=(128,))),
            constants=load_constants(),
        )
    )
    one = np.ones(1, np.int32)
    block = RequestBlock(arrival_s=np.zeros(1), model=one - 1, prompt_tokens=one, output_tokens=one)
    run_blocks(Simulation.start(prepared, build_machine(prepared)), [block], lambda _: None)
    return time.perf_counter() - started


if __name__ == "__main__":
    print(f"event loop ready in {warm():.1f} s ({cache_dir()})")
    gc.freeze()  # Python looks through a million objects before it ends
