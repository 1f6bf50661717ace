"""Small setups and workloads that the simulator tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from c2c.cost import Constants, calibration_for, load_constants
from c2c.hardware import Platform, load_platform, slices
from c2c.models import Deployment, load_spec
from c2c.serving import (
    RECORD_DTYPE,
    FleetPart,
    Prepared,
    ServingSetup,
    SystemSpec,
    prepare,
)
from c2c.serving.prepare.tables import activation_bytes, dense_bytes
from c2c.simulator import Machine, RunStats, Simulation, build_machine, run_blocks
from c2c.simulator.run import Incident
from c2c.workloads import ClosedLoop, RequestBlock


def deployments(*specs: str, ttft: float = 1.0, tpot: float = 0.25) -> tuple[Deployment, ...]:
    return tuple(
        Deployment(name=f"{spec}-{k}", spec=load_spec(spec), ttft_slo_s=ttft, tpot_slo_s=tpot)
        for k, spec in enumerate(specs)
    )


def setup(
    *specs: str, mig: str = "7x12gb", superchips: int = 1, platform: Platform | None = None,
    weights_start: str = "host", seed: int = 0, tpot: float = 0.25,
    constants: Constants | None = None, beside: Sequence[tuple[str, str, int]] = (), **system: Any,
) -> ServingSetup:  # fmt: skip
    """Return a setup of these models; `system` is what `with_settings` takes.

    `beside` has a chip, a layout and a count for each further part of the fleet.
    """
    defaults: dict[str, Any] = {
        "profile__chunks": (128, 256, 512),
        "max_batch": 32,
    }
    return ServingSetup(
        platform=platform or load_platform("gh200"),
        mig=mig,
        superchips=superchips,
        link_variant="measured",
        deployments=deployments(*(specs or ("llama-3-3b",)), tpot=tpot),
        system=with_settings(SystemSpec(name="test"), **(defaults | system)),
        constants=constants or load_constants(),
        beside=tuple(part_of(*each) for each in beside),
        weights_start=weights_start,  # type: ignore[arg-type]
        seed=seed,
    )


def part_of(chip: str, mig: str, count: int) -> FleetPart:
    """Return chips of a fleet with their own calibration."""
    constants = load_constants(calibration_for(chip))
    return FleetPart(platform=load_platform(chip), mig=mig, count=count, constants=constants)


def with_settings(system: SystemSpec, **settings: Any) -> SystemSpec:
    """Return a system with other settings; `engines__bytes` is `bytes` of its group `engines`."""
    groups: dict[str, Any] = {}
    for name in [name for name in settings if "__" in name]:
        group, _, field = name.partition("__")
        groups.setdefault(group, {})[field] = settings.pop(name)
    changed = {group: replace(getattr(system, group), **own) for group, own in groups.items()}
    return replace(system, **settings, **changed)


def few_experts(made: ServingSetup, layers: int = 3) -> ServingSetup:
    """Return a setup whose models are tiny mixtures of eight experts of 3 MB, two a token."""
    spec = replace(
        load_spec("mixtral-8x7b"), layers=layers, hidden=512, moe_intermediate=1024, vocab=4096
    )
    other = replace(spec, name="other", layers=layers + 1)
    specs = [spec, other]
    return replace(
        made,
        deployments=tuple(replace(d, spec=specs[k % 2]) for k, d in enumerate(made.deployments)),
    )


def with_room(made: ServingSetup, mig: str, room_bytes: float) -> dict[str, Any]:
    """Return changes of a system that leave so much HBM for experts and KV caches, half each."""
    (kind,) = set(slices(made.platform, mig))
    tokens = 2048 + made.system.max_batch
    spec = made.deployments[-1].spec
    fixed = dense_bytes(spec) + activation_bytes(spec, tokens)
    return {"hbm_reserve_bytes": kind.hbm_bytes - fixed - room_bytes, "expert_cache__share": 0.5}


def requests(
    arrival_s: Sequence[float] | np.ndarray,
    model: Sequence[int] | np.ndarray | int = 0,
    prompt: Sequence[int] | np.ndarray | int = 100,
    output: Sequence[int] | np.ndarray | int = 20,
) -> RequestBlock:
    n = len(arrival_s)
    return RequestBlock(
        arrival_s=np.asarray(arrival_s, np.float64),
        model=np.broadcast_to(np.asarray(model, np.int32), n).copy(),
        prompt_tokens=np.broadcast_to(np.asarray(prompt, np.int32), n).copy(),
        output_tokens=np.broadcast_to(np.asarray(output, np.int32), n).copy(),
    )


def random_requests(n: int, models: int, rate: float, seed: int) -> RequestBlock:
    g = np.random.default_rng(seed)
    return requests(
        np.cumsum(g.exponential(1.0 / rate, n)),
        g.integers(0, models, n),
        g.integers(1, 900, n),
        g.integers(1, 200, n),
    )


def simulate(
    what: ServingSetup | Prepared, *blocks: RequestBlock, compiled: bool = False,
    timeline_rows: int = 0, buffer: int = 256, incidents: Sequence[Incident] = (),
    machine: Machine | None = None, loop: ClosedLoop | None = None,
) -> tuple[Any, RunStats, Simulation]:  # fmt: skip
    """Return the records sorted by id, the totals and the finished simulation."""
    prepared = prepare(what) if isinstance(what, ServingSetup) else what
    simulation = Simulation.start(
        prepared, machine or build_machine(prepared), loop=loop, compiled=compiled,
        timeline_rows=timeline_rows, buffer=buffer, incidents=incidents,
    )  # fmt: skip
    parts: list[Any] = []
    stats = run_blocks(simulation, blocks, parts.append)
    table = np.concatenate(parts) if parts else np.zeros(0, RECORD_DTYPE)
    return np.sort(table, order="id").view(np.recarray), stats, simulation


def in_both_forms(
    what: ServingSetup | Prepared, *blocks: RequestBlock, **more: Any
) -> tuple[Any, RunStats, Simulation]:
    """Simulate, and once more as machine code, which must agree in records and totals."""
    found = simulate(what, *blocks, **more)
    records, stats, _ = simulate(what, *blocks, compiled=True, **more)
    assert found[0].tobytes() == records.tobytes()
    check_equal(found[1], stats)
    return found


def check_equal(ours: RunStats, theirs: RunStats) -> None:
    for field in fields(RunStats):
        np.testing.assert_array_equal(
            getattr(ours, field.name), getattr(theirs, field.name), field.name
        )
