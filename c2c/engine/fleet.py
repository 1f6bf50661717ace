"""Fleet of the serving loop: a device per worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated

import numpy as np

from c2c.cost import Constants
from c2c.engine.catalog import Entry
from c2c.engine.devices import Device, free_bytes
from c2c.engine.variants import in_pools
from c2c.errors import SettingError
from c2c.hardware import (
    MigConfig,
    MigProfile,
    Platform,
    cpu_platform,
    memory_bytes,
)
from c2c.models import Deployment, param_count, weight_bytes
from c2c.ranges import Count, In, OneOf, SomeShare, check_fields
from c2c.serving import Prepared, ServingSetup, SystemSpec, prepare
from c2c.transformer import Shapes, block_elements, cached_heads, superblock_elements

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
    "with_pool",
]

# The loop reserves KV caches by tokens, a worker allocates blocks and superblocks. The loop sees
# less than the pool has, so that a worker never runs short: a fifth less for remainders, and for
# each model on the device one superblock, and one block a row, less.
_USABLE = 0.8  # least usable share of a superblock: see `superblock_elements`
_POOLS_SHARE = 0.25  # default share of memory for all pools


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of the workers.

    Attributes:
      rows: batch sizes of compiled steps; the last is the most concurrent requests.
      budgets: chunk sizes of compiled calls, in prompt tokens.
      context: most tokens of a sequence, prompt and answer.
      pool_bytes: KV pool on each device; None: enough for all rows, at most a quarter of the memory
        for all workers.
      memory_fraction: share of a device's memory for weights and KV pool, in place of `pool_bytes`.
      weights_bytes: host memory for weights, loaded on demand; None: all are in memory.
      linear: method of linear layers; "staged" lets workers share the weights.
      ahead: 1: a run's next step starts before the last tokens are read; 0: after.
    """

    workers: Count = 1
    rows: tuple[int, ...] = (1, 8)
    budgets: tuple[int, ...] = (64, 256)
    context: Annotated[int, In("[2, inf)")] = 2048
    pool_bytes: int | None = None
    memory_fraction: SomeShare | None = None
    weights_bytes: Count | None = None
    dtype: str = "float32"
    linear: str = "staged"
    ahead: Annotated[int, OneOf(0, 1)] = 1
    devices: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.memory_fraction is not None and self.pool_bytes is not None:
            raise SettingError(
                "memory_fraction", self.memory_fraction,
                f"null with pool_bytes={self.pool_bytes}, which sets the size",
            )  # fmt: skip
        if self.weights_bytes is not None and self.linear == "reference":
            raise SettingError(
                "weights_bytes", self.weights_bytes, "null with linear=reference, where each "
                "worker has its own weights",
            )  # fmt: skip
        shapes_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Sizes of a worker's KV pool."""

    superblocks: int
    superblock: int  # elements of keys, and as many of values
    usable_bytes: int  # that the loop may reserve
    engine_bytes: int  # of each model on the device beyond the first


def shapes_of(options: Options) -> Shapes:
    """Return the workers' batch and chunk shapes."""
    return Shapes(rows=options.rows, budgets=options.budgets, width=-(-options.context // 64))


def with_pool(
    entries: Sequence[Entry], options: Options, gpus: Sequence[Device]
) -> tuple[Options, str]:
    """Return the options with `pool_bytes` by `memory_fraction`, and a line."""
    share, devices = options.memory_fraction, options.workers * options.devices
    if share is None:
        return options, ""
    whole = min(gpu.memory_bytes for gpu in gpus) if gpus else memory_bytes() // devices
    weights = host_weight_bytes(entries, options)
    if options.linear != "reference":  # one copy for all workers, in host memory
        weights = 0 if gpus else weights // devices
    pool = min(max(0, int(share * whole) - weights), useful_pool_bytes(entries, options))
    for gpu in gpus:
        if (free := free_bytes(gpu)) < pool:
            raise SettingError(
                "memory_fraction", share, f"a share that is free: the KV cache takes {pool} bytes, "
                f"and {gpu.uuid} has {free}",
            )  # fmt: skip
    line = f"the KV cache takes {pool / 1e9:.2f} GB of each device's {whole / 1e9:.2f} GB"
    return replace(options, pool_bytes=pool, memory_fraction=None), line


def pool_of(entries: Sequence[Entry], options: Options) -> Pool:
    """Return a worker's KV pool for these models."""
    superblock, superblock_bytes, block_bytes, slack = _sizes(entries, options)
    pool_bytes = options.pool_bytes
    if pool_bytes is None:
        most = int(_POOLS_SHARE * memory_bytes() / (options.workers * options.devices))
        pool_bytes = min(useful_pool_bytes(entries, options), most)
    superblocks = pool_bytes // superblock_bytes
    usable = int(_USABLE * superblocks * superblock_bytes) - slack
    if usable < block_bytes:
        least = int((slack + block_bytes) / _USABLE) + superblock_bytes
        raise SettingError(
            "pool_bytes", pool_bytes, f"at least {least}, for {options.rows[-1]} requests of the "
            "largest model",
        )  # fmt: skip
    return Pool(
        superblocks=superblocks, superblock=superblock, usable_bytes=usable, engine_bytes=slack
    )


def pool_with(pool: Pool, entry: Entry, options: Options) -> Pool:
    """Return a pool that also fits an added model."""
    assert entry.spec is not None
    spec, item = entry.spec, _item_bytes(options)
    block = block_elements(spec)
    lost = pool.superblock - pool.superblock // block * block
    if pool.superblock % (block // spec.layers) or lost > (1 - _USABLE) * pool.superblock:
        raise SettingError(
            "path", entry.name, "a model whose KV blocks divide the pool's superblocks of "
            f"{pool.superblock} elements; its blocks have {block}",
            "A model in the catalog at the start gets a pool that fits it.",
        )  # fmt: skip
    total = int(_USABLE * 2 * item * pool.superblocks * pool.superblock)
    slack = max(pool.engine_bytes, 2 * item * (pool.superblock + options.rows[-1] * block))
    if total - slack < 2 * item * block:
        raise SettingError(
            "path", entry.name, f"a model with room for {options.rows[-1]} requests in "
            f"pool_bytes={2 * item * pool.superblocks * pool.superblock}",
        )  # fmt: skip
    return replace(pool, usable_bytes=total - slack, engine_bytes=slack)


def useful_pool_bytes(entries: Sequence[Entry], options: Options) -> int:
    """Return the pool size for all rows of all models at full context."""
    _, superblock_bytes, _, slack = _sizes(entries, options)
    specs = [entry.spec for entry in entries if entry.spec is not None]
    width, item = shapes_of(options).width, _item_bytes(options)
    rows = sum(2 * item * block_elements(spec) * width * options.rows[-1] for spec in specs)
    return int((rows + len(specs) * slack) / _USABLE) + superblock_bytes


def _sizes(entries: Sequence[Entry], options: Options) -> tuple[int, int, int, int]:
    specs = [entry.spec for entry in entries if entry.spec is not None]
    item = _item_bytes(options)
    superblock = superblock_elements(specs)
    block_bytes = 2 * item * max(map(block_elements, specs))
    slack = 2 * item * superblock + options.rows[-1] * block_bytes
    return superblock, 2 * item * superblock, block_bytes, slack


def _item_bytes(options: Options) -> int:
    return 4 if options.dtype == "float32" else 2


def host_weight_bytes(entries: Sequence[Entry], options: Options) -> int:
    """Return the most host bytes of weights, a base once."""
    item, paths = _item_bytes(options), {entry.path.resolve() for entry in entries}
    is_shared = options.linear != "reference"
    weights = sum(
        item * (e.own_parameters + (0 if is_shared and e.base in paths else param_count(e.spec)))
        for e in entries
        if e.spec is not None
    )
    return weights if options.weights_bytes is None else min(weights, options.weights_bytes)


def check_memory(entries: Sequence[Entry], options: Options, pool: Pool) -> None:
    """Check that memory has room for weights and pools."""
    item, weights = _item_bytes(options), host_weight_bytes(entries, options)
    devices = options.workers * options.devices
    copies = devices if options.linear == "reference" else 1
    pools = devices * pool.superblocks * pool.superblock * 2 * item
    total, most = copies * weights + pools, memory_bytes()
    if total > most:
        raise SettingError(
            "catalog",
            f"{copies * weights / 1e9:.1f} GB of weights, {pools / 1e9:.1f} GB of keys and values",
            f"at most {most / 1e9:.1f} GB together, this machine's memory",
            "Use fewer models or workers, or a smaller pool_bytes or weights_bytes.",
        )


def too_large(entry: Entry, options: Options) -> str:
    """Return the reason if weights exceed `weights_bytes`, else ""."""
    if options.weights_bytes is None or entry.spec is None:
        return ""
    size = _weights(entry, options)
    if size <= options.weights_bytes:
        return ""
    return f"its weights take {size:.0f} bytes, more than weights_bytes={options.weights_bytes}"


def kept_at_start(entries: Sequence[Entry], options: Options) -> frozenset[str]:
    """Return the models in memory at the start."""
    rest_bytes = float("inf") if options.weights_bytes is None else float(options.weights_bytes)
    names = set()
    for entry in entries:
        size = _weights(entry, options)
        if rest_bytes >= size:
            names.add(entry.name)
        rest_bytes -= size
    return frozenset(names)


def _weights(entry: Entry, options: Options) -> float:
    assert entry.spec is not None
    item = _item_bytes(options)
    return float(weight_bytes(replace(entry.spec, dtype_bytes=item)))


def check_system(system: SystemSpec) -> None:
    """Check that workers support a system."""
    lacking = {
        "disaggregation.prompt_share": "a live worker computes prefill and decode, and sends no KV "
        "cache to others",
        "engines.kv_host_bytes": "a live worker keeps KV caches only in its pool",
        "speculation.tokens": "a live worker verifies no drafts",
        "prefix_cache.host_bytes": "a live worker keeps prompt blocks only in its pool",
    }
    values = {name: attrgetter(name)(system) for name in lacking}
    settings = {name: value for name, value in values.items() if value > 0.0}
    for name, value in settings.items():
        without = " ".join(f"system.{key}=0" for key in settings)
        raise SettingError(
            f"system.{name}", value, f"0: {lacking[name]}", f"Set {without} to serve it live."
        )
    if system.shares_hbm:
        raise SettingError(
            "system.engines.residents", system.engines.residents,
            "1 with resident weights: a live worker's pool has KV caches and no weights",
        )  # fmt: skip


def as_workers_have_it(system: SystemSpec, options: Options) -> SystemSpec:
    """Return a system with workers' batch size, memory and chunks."""
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
    """Return the serving loop's setup for models.

    Args:
      slo_s: targets of TTFT and TPOT.
      pool: KV pool of each worker; None: made for these models.

    Raises:
      SettingError: an unsupported system, or too small a pool.
    """
    pool = pool or pool_of(entries, options)
    most = max(options.budgets)
    check_system(system)
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
    """Return deployments with the workers' context and dtype."""
    item = _item_bytes(options)
    return tuple(
        Deployment(
            name=entry.name,
            spec=replace(
                entry.spec,
                dtype_bytes=item,
                max_position=min(entry.context, options.context),
                kv_dtype_bytes=2 * item if entry.spec.latent else 0,  # stored as key and as value
            ),
            ttft_slo_s=slo_s[0],
            tpot_slo_s=slo_s[1],
        )
        for entry in entries
        if entry.spec is not None
    )


def _activation_bytes(deployment: Deployment, system: SystemSpec, most: int) -> int:
    spec = deployment.spec
    middle = spec.experts_per_token * spec.moe_intermediate if spec.experts else spec.intermediate
    kv_heads, head_dim = cached_heads(spec)
    width = 2 * spec.hidden + 2 * (spec.heads + kv_heads) * head_dim + 3 * middle
    layer = int(weight_bytes(spec) / spec.layers)
    return max(most, *system.profile.chunks) * width * spec.dtype_bytes + 2 * layer


def _machine(
    options: Options, slice_bytes: int, deployments: Sequence[Deployment]
) -> tuple[Platform, MigConfig]:
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
        sm_count=gpu.sm_count // workers,
        hbm_bytes=slice_bytes,
        hbm_gbps=gpu.hbm_gbps / workers,
        chip=gpu,
    )
    return platform, MigConfig(name=name, profiles=(profile,) * workers)


def context_of(prepared: Prepared, model: int) -> int:
    """Return a request's most tokens, prompt and answer."""
    capacity = int(np.max(prepared.fleet.kv_capacity[prepared.fleet.deployment[model].arch]))
    return min(int(prepared.fleet.deployment[model].max_context), capacity)
