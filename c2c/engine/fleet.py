"""The fleet that the serving loop sees: a device a worker, and what its pool holds, rounded down.

The loop reserves keys and values by tokens, a worker hands them out in blocks and superblocks. So
that a worker never runs short, the loop is told of less: of a fifth less for what does not divide,
and of a superblock and one block a row less for each model on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from c2c.cost import Constants
from c2c.engine.catalog import Entry
from c2c.engine.variants import in_pools
from c2c.errors import SettingError
from c2c.hardware import (
    MigConfig,
    MigProfile,
    Platform,
    check_memory_fraction,
    cpu_platform,
    memory_bytes,
)
from c2c.models import Deployment, param_count, weight_bytes
from c2c.policies import step_parts
from c2c.serving import Prepared, ServingSetup, SystemSpec, prepare
from c2c.transformer import Shapes, block_elements, superblock_elements

__all__ = [
    "Options",
    "Pool",
    "as_workers_have_it",
    "check_memory",
    "check_system",
    "context_of",
    "deployments_of",
    "fleet_of",
    "host_weight_bytes",
    "kept_at_start",
    "pool_of",
    "pool_with",
    "shapes_of",
    "too_large",
    "useful_pool_bytes",
]

_USABLE = 0.8  # of a superblock, at least: see `superblock_elements`
_POOLS_SHARE = 0.25  # of memory, where nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of the workers.

    Attributes:
      workers: processes, each a device.
      rows: row classes of a step; the last is the most requests of a model at the same time.
      budgets: prompt tokens of one call.
      context: tokens of a sequence at most, prompt and answer.
      pool_bytes: keys and values of each worker, on each of its devices; None: what all rows of
        all models take, at most a quarter of the memory for all workers.
      memory_fraction: instead of `pool_bytes`: of the memory that a worker may have, of which
        keys and values get what the rest leaves, as measured; see `c2c.engine.sizing`.
      weights_bytes: of host memory for weights; models beyond it come from disk when they are
        asked for, and others give way. None: all of them fit.
      dtype: of parameters and keys.
      linear: how projections are multiplied; "staged" lets workers share the weights.
      ahead: 1: a worker begins the next step of a run before it reads the tokens of the last.
      devices: that each worker computes with: as many as its system's layout lies over.
    """

    workers: int = 1
    rows: tuple[int, ...] = (1, 8)
    budgets: tuple[int, ...] = (64, 256)
    context: int = 2048
    pool_bytes: int | None = None
    memory_fraction: float | None = None
    weights_bytes: int | None = None
    dtype: str = "float32"
    linear: str = "staged"
    ahead: int = 1
    devices: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SettingError("workers", self.workers, "a whole number above 0")
        if self.ahead not in (0, 1):
            raise SettingError("ahead", self.ahead, "0 or 1")
        if self.context < 2:
            raise SettingError("context", self.context, "at least 2 tokens")
        if self.memory_fraction is not None:
            check_memory_fraction(self.memory_fraction)
            if self.pool_bytes is not None:
                raise SettingError(
                    "memory_fraction", self.memory_fraction,
                    f"null with pool_bytes={self.pool_bytes}, which says the size",
                )  # fmt: skip
        if self.weights_bytes is not None and self.weights_bytes < 1:
            raise SettingError("weights_bytes", self.weights_bytes, "a number of bytes above 0")
        if self.weights_bytes is not None and self.linear == "reference":
            raise SettingError(
                "weights_bytes", self.weights_bytes, "null with linear=reference, where each "
                "worker has weights of its own",
            )  # fmt: skip
        shapes_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A worker's pool, in numbers."""

    superblocks: int
    superblock: int  # elements
    usable_bytes: int  # what the loop may promise
    engine_bytes: int  # of each model on the device beyond the first


def shapes_of(options: Options) -> Shapes:
    """Return the shapes that workers compute in."""
    return Shapes(rows=options.rows, budgets=options.budgets, width=-(-options.context // 64))


def pool_of(entries: Sequence[Entry], options: Options) -> Pool:
    """Return the KV pool of a worker for these models.

    Raises:
      SettingError: too little for one sequence of each.
    """
    superblock, superblock_bytes, block_bytes, slack = _sizes(entries, options)
    given = options.pool_bytes
    if given is None:
        most = int(_POOLS_SHARE * memory_bytes() / (options.workers * options.devices))
        given = min(useful_pool_bytes(entries, options), most)
    superblocks = given // superblock_bytes
    usable = int(_USABLE * superblocks * superblock_bytes) - slack
    if usable < block_bytes:
        least = int((slack + block_bytes) / _USABLE) + superblock_bytes
        raise SettingError(
            "pool_bytes", given, f"at least {least}, for {options.rows[-1]} requests of the "
            "largest of these models",
        )  # fmt: skip
    return Pool(
        superblocks=superblocks, superblock=superblock, usable_bytes=usable, engine_bytes=slack
    )


def pool_with(pool: Pool, entry: Entry, options: Options) -> Pool:
    """Return the pool with usable bytes and slack that also fit an added model.

    Raises:
      SettingError: the model does not divide its superblocks, or it is too small.
    """
    assert entry.spec is not None
    spec, item = entry.spec, _item_bytes(options)
    block = block_elements(spec)
    lost = pool.superblock - pool.superblock // block * block
    if pool.superblock % (block // spec.layers) or lost > (1 - _USABLE) * pool.superblock:
        raise SettingError(
            "path", entry.name, "a model whose blocks of keys divide what the pool is handed out "
            f"in, {pool.superblock} elements; its blocks have {block}",
            "With it in the catalog from the start the pool is made for it, too.",
        )  # fmt: skip
    total = int(_USABLE * 2 * item * pool.superblocks * pool.superblock)
    slack = max(pool.engine_bytes, 2 * item * (pool.superblock + options.rows[-1] * block))
    if total - slack < 2 * item * block:
        raise SettingError(
            "path", entry.name, f"a model of which {options.rows[-1]} requests have room in "
            f"pool_bytes={2 * item * pool.superblocks * pool.superblock}",
        )  # fmt: skip
    return replace(pool, usable_bytes=total - slack, engine_bytes=slack)


def useful_pool_bytes(entries: Sequence[Entry], options: Options) -> int:
    """Return the bytes that all rows of all models take; a larger pool is of no use."""
    _, superblock_bytes, _, slack = _sizes(entries, options)
    specs = [entry.spec for entry in entries if entry.spec is not None]
    width, item = shapes_of(options).width, _item_bytes(options)
    rows = sum(2 * item * block_elements(spec) * width * options.rows[-1] for spec in specs)
    return int((rows + len(specs) * slack) / _USABLE) + superblock_bytes


def _sizes(entries: Sequence[Entry], options: Options) -> tuple[int, int, int, int]:
    """Return a superblock's elements and bytes, the largest block's, and an engine's slack."""
    specs = [entry.spec for entry in entries if entry.spec is not None]
    item = _item_bytes(options)
    superblock = superblock_elements(specs)
    block_bytes = 2 * item * max(map(block_elements, specs))
    slack = 2 * item * superblock + options.rows[-1] * block_bytes
    return superblock, 2 * item * superblock, block_bytes, slack


def _item_bytes(options: Options) -> int:
    return 4 if options.dtype == "float32" else 2


def host_weight_bytes(entries: Sequence[Entry], options: Options) -> int:
    """Return the most host memory that weights take, in bytes."""
    item = _item_bytes(options)
    weights = sum(item * param_count(e.spec) for e in entries if e.spec is not None)
    return weights if options.weights_bytes is None else min(weights, options.weights_bytes)


def check_memory(entries: Sequence[Entry], options: Options, pool: Pool) -> None:
    """Return if memory has room for all weights and pools.

    Raises:
      SettingError: it has not.
    """
    item, weights = _item_bytes(options), host_weight_bytes(entries, options)
    devices = options.workers * options.devices
    copies = devices if options.linear == "reference" else 1
    pools = devices * pool.superblocks * pool.superblock * 2 * item
    total, most = copies * weights + pools, memory_bytes()
    if total > most:
        raise SettingError(
            "catalog",
            f"{copies * weights / 1e9:.1f} GB of weights, {pools / 1e9:.1f} GB of keys and values",
            f"at most {most / 1e9:.1f} GB together, the memory there is",
            "Take fewer models or workers, or a smaller pool_bytes or weights_bytes.",
        )


def too_large(entry: Entry, options: Options) -> str:
    """Return why a model's weights can never be in memory; "" if they can."""
    if options.weights_bytes is None or entry.spec is None:
        return ""
    size = _weights(entry, options)
    if size <= options.weights_bytes:
        return ""
    return f"its weights take {size:.0f} bytes, more than weights_bytes={options.weights_bytes}"


def kept_at_start(entries: Sequence[Entry], options: Options) -> frozenset[str]:
    """Return the models whose weights are in memory at the start: the first that have room."""
    left = float("inf") if options.weights_bytes is None else float(options.weights_bytes)
    kept = set()
    for entry in entries:
        size = _weights(entry, options)
        if left >= size:
            kept.add(entry.name)
        left -= size
    return frozenset(kept)


def _weights(entry: Entry, options: Options) -> float:
    assert entry.spec is not None
    item = _item_bytes(options)
    return float(weight_bytes(replace(entry.spec, dtype_bytes=item)))


def check_system(system: SystemSpec, entries: Sequence[Entry]) -> None:
    """Return if workers can do what a system asks of them.

    Raises:
      SettingError: it would split steps, prompts or caches over what an engine does not have.
    """
    if any(step_parts(system.step, e.spec.layers) > 1 for e in entries if e.spec is not None):
        raise SettingError(
            "system.step", type(system.step).__name__, "whole: a worker runs a step in one part"
        )
    lacking = {
        "disaggregation.prompt_share": "a worker computes prompts and decodes, and hands no KV "
        "caches over (simulations do)",
        "engines.kv_host_bytes": "a worker's KV caches stay in its pool",
        "prefix_cache.host_bytes": "a worker keeps blocks of prompts in its pool alone",
    }
    found = {name: attrgetter(name)(system) for name in lacking}
    asked = {name: value for name, value in found.items() if value > 0.0}
    for name, value in asked.items():
        without = " ".join(f"system.{each}=0" for each in asked)
        raise SettingError(
            f"system.{name}", value, f"0: {lacking[name]}", f"It serves live with {without}."
        )


def as_workers_have_it(system: SystemSpec, options: Options) -> SystemSpec:
    """Return a system whose batch, memory and prompts' pieces are the workers'."""
    most = max(options.budgets)
    chunks = tuple(c for c in system.profile.chunks if c <= most) or (most,)
    return replace(
        system, max_batch=options.rows[-1], hbm_reserve_bytes=0.0, check_slo=False,
        profile=replace(system.profile, chunks=chunks),
    )  # fmt: skip


def fleet_of(
    entries: Sequence[Entry],
    options: Options,
    system: SystemSpec,
    constants: Constants,
    *,
    slo_s: tuple[float, float] = (1.0, 0.2),
    seed: int = 0,
    pool: Pool | None = None,
) -> Prepared:
    """Return the setup of the serving loop for models that can all be served.

    Args:
      entries: the models.
      options: of the workers.
      system: who decides; batch and memory are the workers'.
      constants: of the cost model.
      slo_s: targets of time to first token and time per token.
      seed: of random choices.
      pool: of the workers; None: as for these models.

    Raises:
      SettingError: the system asks for what a worker does not do, or nothing fits.
    """
    pool = pool or pool_of(entries, options)
    most = max(options.budgets)
    check_system(system, entries)
    system = replace(
        as_workers_have_it(system, options),
        # A page of a pool has all layers.
        engines=replace(system.engines, bytes=float(pool.engine_bytes), kv_windows=False),
    )
    if system.layout is not None:
        system = replace(system, layout=in_pools(system.layout, pool.usable_bytes))
    deployments = deployments_of(entries, options, slo_s)
    activations = max(_activation_bytes(d, system, most) for d in deployments)
    platform, mig = _machine(options, pool.usable_bytes + activations, deployments)
    return prepare(
        ServingSetup(
            platform=platform,
            mig=mig,
            superchips=1,
            link_variant="datasheet",
            deployments=deployments,
            system=system,
            constants=constants,
            seed=seed,
        )
    )


def deployments_of(
    entries: Sequence[Entry], options: Options, slo_s: tuple[float, float]
) -> tuple[Deployment, ...]:
    """Return models as they are served: by their names, in the context and dtype of workers."""
    item = _item_bytes(options)
    return tuple(
        Deployment(
            name=entry.name,
            spec=replace(
                entry.spec, dtype_bytes=item, max_position=min(entry.context, options.context)
            ),
            ttft_slo_s=slo_s[0],
            tpot_slo_s=slo_s[1],
        )
        for entry in entries
        if entry.spec is not None
    )


def _activation_bytes(deployment: Deployment, system: SystemSpec, most: int) -> int:
    """Return bytes that `c2c.serving` reserves for activations; a worker's are not in a pool."""
    spec = deployment.spec
    middle = spec.experts_per_token * spec.moe_intermediate if spec.experts else spec.intermediate
    width = 2 * spec.hidden + 2 * (spec.heads + spec.kv_heads) * spec.head_dim + 3 * middle
    layer = int(weight_bytes(spec) / spec.layers)
    return max(most, *system.profile.chunks) * width * spec.dtype_bytes + 2 * layer


def _machine(
    options: Options, slice_bytes: int, deployments: Sequence[Deployment]
) -> tuple[Platform, MigConfig]:
    """Return this machine as a chip of equal slices, one a worker."""
    platform, workers = cpu_platform(), options.workers
    gpu = replace(
        platform.gpu,
        sm_count=max(workers, platform.gpu.sm_count // workers * workers),
        hbm_bytes=max(platform.gpu.hbm_bytes, workers * slice_bytes),
    )
    weights = int(sum(weight_bytes(d.spec) for d in deployments))
    room = options.weights_bytes or max(platform.host.memory_bytes, weights)
    host = replace(platform.host, memory_bytes=room)
    name = f"{workers}xworker"
    platform = replace(platform, gpu=gpu, host=host, mig=(name,))
    profile = MigProfile(
        name="worker",
        platform=platform.name,
        sm_count=gpu.sm_count // workers,
        hbm_bytes=slice_bytes,
        hbm_gbps=gpu.hbm_gbps / workers,
        chip=gpu,
    )
    return platform, MigConfig(name=name, instances=workers, profiles=(profile,))


def context_of(prepared: Prepared, model: int) -> int:
    """Return the most tokens of a request of a model, prompt and answer."""
    capacity = int(np.max(prepared.fleet.kv_capacity[prepared.fleet.deployment[model].arch]))
    return min(int(prepared.fleet.deployment[model].max_context), capacity)
