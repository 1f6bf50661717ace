"""Construction of a workload from its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from c2c.errors import DataError, SettingError
from c2c.workloads.agents import Agents, agents
from c2c.workloads.assignment import OWN, assign_models, describe_assignment
from c2c.workloads.blocks import ClosedLoop, RequestBlock, Workload
from c2c.workloads.conversations import Conversations, conversations
from c2c.workloads.formats import open_trace
from c2c.workloads.interpretation import (
    block_tokens_of,
    clock_of,
    doubt_of_unit,
    refuse_without_lengths,
    unused_columns,
)
from c2c.workloads.lengths import (
    LengthFilter,
    LengthPool,
    fixed_lengths,
    read_lengths,
    synthetic_lengths,
)
from c2c.workloads.prefixes import root_of
from c2c.workloads.servegen import read_clients
from c2c.workloads.settings import WorkloadConfig, shared_dir, workload_config
from c2c.workloads.simple import (
    SteadyTrace,
    deterministic_blocks,
    poisson_blocks,
    queued_blocks,
)
from c2c.workloads.streams import stream_of
from c2c.workloads.synthetic import SyntheticTrace, count_requests, synthetic_blocks
from c2c.workloads.traces import RowRules, refuse_bad_rows, scan, stream
from c2c.workloads.transformations import (
    Source,
    compressed,
    copied,
    held,
    limited,
    merged,
    rotated,
    windowed,
    with_lengths,
)
from c2c.workloads.turns import after_answers, at_times

__all__ = ["build_workload", "length_pool"]

LONGEST_S = 1e10  # a workload's length, three centuries: a double of more has no microseconds
_HELD_REQUESTS = 1 << 20  # 20 MB: a replicated trace of at most this many is kept in memory
_SHARED_LENGTHS = {
    "sharegpt": "sharegpt_lengths.parquet",
    "azure2023": "azure2023_conv.parquet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Requests before any transformation; `model` indexes `ids`.

    `counted`: requests per id, by first appearance, and the last arrival, or None. `unnamed`: id of
    requests without one.
    """

    source: Source
    ids: tuple[str, ...]
    own_lengths: bool
    description: dict[str, Any]
    lengths: Mapping[str, Any] = field(default_factory=lambda: {"name": "the trace's own"})
    counted: tuple[dict[str, int], float] | None = None
    unnamed: str = ""


def build_workload(
    settings: WorkloadConfig | Mapping[str, Any],
    deployments: Sequence[str],
    seed: int,
    specs: Sequence[str] = (),
    *,
    may_add: bool = False,
) -> Workload:
    """Build and validate the workload; a trace is read once here.

    Args:
      settings: a `WorkloadConfig`, or a mapping with its keys.
      deployments: the catalog's names, `Workload.models` but for a trace's own deployments.
      seed: split into a stream for each cause.
      specs: architectures, which a trace may name, too.
      may_add: whether ids may name other shipped models.

    Raises:
      SettingError: an invalid setting.
      DataError: an unusable file, or bad rows under `on_bad_row=reject`.
    """
    config = workload_config(settings)
    catalog = tuple(deployments)
    if not catalog or len(set(catalog)) != len(catalog):
        raise SettingError("catalog", list(catalog)[:8], "one or more models with different names")
    if seed < 0:
        raise SettingError("seed", seed, "a whole number, 0 or more")
    clients = config.concurrency if config.kind == "closed_loop" else config.agents
    loop = None
    if clients or config.kind == "closed_loop":
        loop = ClosedLoop(concurrency=clients, think_s=config.think_s, ramp_s=config.ramp_s)
    origin = (
        _trace_origin(config)
        if config.kind == "trace"
        else _servegen_origin(config, seed)
        if config.kind == "servegen"
        else _generated_origin(config, len(catalog), seed)
    )
    source, counted = origin.source, origin.counted
    if config.start_s or config.duration_s:
        end_s = config.start_s + config.duration_s if config.duration_s else np.inf
        source, counted = windowed(source, config.start_s, end_s), None
    requests_of, last_s = counted or _count(source, origin.ids)
    if not requests_of:
        raise SettingError(
            "workload.start_s",
            config.start_s,
            f"a window with requests in it (duration_s={config.duration_s:g})",
        )
    ids = origin.ids
    if config.replicas > 1:
        source, requests_of = _replicated(config, source, requests_of, last_s, seed)
    rule = config.assignment
    if rule == "auto":
        has_ids = config.kind == "trace" and any(name != origin.unnamed for name in requests_of)
        rule = OWN if has_ids else "popularity_rank"
    explicit = config.assignment_map
    assigned = assign_models(
        requests_of, catalog, rule, explicit, specs, origin.unnamed, may_add=may_add
    )
    models, target = tuple(assigned.made_of), assigned.target
    index_of = {name: i for i, name in enumerate(models)}
    lookup = np.array([index_of[target[n]] if n in target else -1 for n in ids], np.int32)
    source = _renamed(source, lookup, len(models))
    if config.compression != 1:
        source = compressed(source, config.compression)
    requests = sum(requests_of.values())
    span_s = last_s / config.compression
    rate_rps = requests / span_s if span_s else None
    if span_s > LONGEST_S:
        slowed = config.kind == "synthetic" or config.compression < 1
        name = "compression" if slowed else "time_unit" if config.kind == "trace" else "rate_rps"
        raise SettingError(
            f"workload.{name}", getattr(config, name),
            f"one with which the last request arrives within {LONGEST_S:g} s",
            f"It would arrive after {span_s:.3g} s.",
        )  # fmt: skip
    if config.max_requests:
        requests = min(requests, config.max_requests)
    source = limited(source, requests)
    pool = None if origin.own_lengths else length_pool(config)
    if pool is not None:
        source = with_lengths(source, pool, seed)
    description: dict[str, Any] = {
        "name": config.name,
        "kind": config.kind,
        "seed": seed,
        "requests": requests,
        "span_s": span_s,  # of all requests, before max_requests
        "mean_rate_rps": rate_rps,
        "closed_loop": None if loop is None else asdict(loop),
        **origin.description,
        "window": {"start_s": config.start_s, "duration_s": config.duration_s or None},
        "replicas": config.replicas,
        "compression": config.compression,
        "max_requests": config.max_requests or None,
        "lengths": origin.lengths if pool is None else pool.describe(),
        "assignment": describe_assignment(requests_of, assigned, catalog, rule, explicit),
    }
    return Workload(
        models, source, description, loop, tuple(assigned.made_of.values()), assigned.added
    )


def length_pool(config: WorkloadConfig) -> LengthPool:
    """Return the length pairs of the setting `lengths`."""
    keep = LengthFilter(
        min_tokens=config.length_min_tokens,
        max_prompt_tokens=config.length_max_prompt_tokens,
        max_total_tokens=config.length_max_total_tokens,
    )
    if config.lengths in {"auto", "synthetic"}:
        return synthetic_lengths(keep)
    if config.lengths == "fixed":
        return fixed_lengths(config.prompt_tokens, config.output_tokens)
    if (file := _SHARED_LENGTHS.get(config.lengths)) is not None:
        path = shared_dir() / "traces" / file
        if not path.is_file():
            raise SettingError(
                "workload.lengths",
                config.lengths,
                f"a source on this machine; {file} is not in the shared traces",
                "Set C2C_SHARED to the folder that holds traces/, or lengths=synthetic.",
            )
        return read_lengths(path, keep, name=config.lengths)
    return read_lengths(config.lengths, keep, config.chars_per_token)


def _trace_origin(config: WorkloadConfig) -> _Origin:
    has_lengths = config.lengths in {"auto", "trace"}
    trace = open_trace(
        _find(config.path),
        config.format,
        config.columns,
        config.chars_per_token,
        with_lengths=has_lengths,
    )
    if has_lengths:
        refuse_without_lengths(trace)
    clock = clock_of(trace, config.time_unit, config.origin)
    rules = RowRules(
        sort=config.sort,
        duplicates_are_bad=config.on_duplicate == "refuse",
        with_lengths=has_lengths,
        max_total_tokens=config.max_total_tokens,
        keeps_origin=clock.keeps_origin,
        per_second=clock.per_second,
        block_tokens=block_tokens_of(trace, config.block_tokens) if has_lengths else 0,
        keys_answers=trace.keys_answers and has_lengths,
        may_be_prefill=has_lengths and config.on_zero_output == "prefill",
    )
    tally = scan(trace, rules)
    if config.on_bad_row == "reject":
        refuse_bad_rows(trace, tally)
    doubt = doubt_of_unit(trace, clock, tally.good, tally.last_s - tally.first_s)
    if not config.block_tokens and (other := tally.fit.other_size()):
        rules = replace(rules, block_tokens=other)
        tally = scan(trace, rules)
    ids = tuple(tally.requests_of)
    index_of = {name: i for i, name in enumerate(ids)}

    def source() -> Iterator[RequestBlock]:
        return stream(trace, rules, index_of)

    if config.turns_wait and tally.orphan is not None and config.on_bad_row == "reject":
        raise DataError(
            str(trace.path),
            f"{trace.columns['parent']}={tally.orphan} is the id of no earlier request",
            "workload.on_bad_row=skip begins a session at each such turn.",
        )
    has_parents = "parent" in trace.columns
    may_lack = config.on_bad_row == "skip"
    if config.turns_wait:
        waiting = after_answers(source, str(trace.path), has_parents=has_parents, may_lack=may_lack)
    else:
        waiting = at_times(source)
    doubts = [doubt] if doubt else []
    if tally.prefills:
        doubts.append(
            f"{tally.prefills:,} requests without output tokens end with their prefill, whose one "
            "token counts as output"
        )
    if "waits_for" in trace.columns and not config.turns_wait:
        doubts.append(
            "requests that wait for others arrive at their times in the file; "
            "workload.turns_wait=true lets them wait for the simulated answers"
        )
    if trace.format.name == "weka" and tally.sessions > 1 and not config.agents:
        doubts.append(
            f"each of {tally.sessions:,} sessions begins at 0 in Weka's format; workload.agents=8 "
            "lets 8 agents run them, each one after another"
        )
    return _Origin(
        source=waiting,
        ids=ids,
        own_lengths=has_lengths,
        description={
            # Only the name: a file's folder is no property of the run.
            "source": trace.path.name,
            "format": trace.format.name,
            "times": clock.says,
            "doubts": doubts,
            "columns": dict(trace.columns),
            "columns_guessed": dict(trace.guessed),
            "columns_not_used": unused_columns(trace, has_lengths),
            "rows": tally.rows,
            "used_rows": tally.good,
            "on_bad_row": config.on_bad_row,
            "bad_rows": tally.bad,
            "duplicates": tally.duplicates,
            "on_duplicate": config.on_duplicate,
            "sorted": config.sort,
            "reordered_rows": tally.reordered,
            "blocks": tally.fit.as_dict() if rules.block_tokens else None,
            "hashes_dropped": "hash_ids" in trace.columns and not has_lengths,
            "sessions": tally.sessions,
            "turns_wait": config.turns_wait,
            "measured": tally.measured,
        },
        counted=(tally.requests_of, tally.last_s),
        # A log's lines without a model have the log's name.
        unnamed=trace.format.name if trace.container == "log" else trace.format.label,
    )


def _find(path: str) -> Path:
    file = Path(path).expanduser()
    if file.is_file() or file.parent != Path():
        return file
    shared = shared_dir() / "traces" / path
    if not shared.is_file():
        raise SettingError(
            "workload.path",
            path,
            "an existing file or the name of a shared trace",
            "Set C2C_SHARED to the folder that holds traces/, or use workload=synthetic, which "
            "needs no file.",
        )
    return shared


_SESSIONS: Mapping[str, tuple[type, Callable[[Any, LengthPool, int], RequestBlock]]] = {
    "conversations": (Conversations, conversations),
    "agents": (Agents, agents),
}


def _sessions_origin(config: WorkloadConfig, models: int, seed: int) -> _Origin:
    kind, generate = _SESSIONS[config.kind]
    names = [parameter.name for parameter in fields(kind)]
    settings = kind(**{name: getattr(config, name) for name in names} | {"models": models})
    pool = length_pool(config)
    block = generate(settings, pool, seed)
    ids = tuple(f"model-{rank:02d}" for rank in range(1, models + 1))
    return _Origin(
        source=lambda: iter([block]),
        ids=ids,
        own_lengths=True,
        lengths=pool.describe(),
        description={
            "source": f"{config.kind} generator",
            "parameters": {name: getattr(settings, name) for name in names},
            "sessions": int(block.session.max()) + 1 if block.session is not None else 0,
        },
    )


def _servegen_origin(config: WorkloadConfig, seed: int) -> _Origin:
    clients = read_clients(Path(config.path).expanduser())
    end_s = config.start_s + config.duration_s if config.duration_s else np.inf
    doubts = [
        f"{clients.silent:,} windows of clients have a rate but no lengths yet: no requests"
    ] * bool(clients.silent)
    return _Origin(
        source=lambda: clients.blocks(config.rate_factor, seed, config.start_s, end_s),
        ids=(clients.name,),
        own_lengths=config.lengths == "auto",
        lengths={"name": "the clients' own"},
        description={
            "source": f"ServeGen's clients of {clients.name}",
            "parameters": {"rate_factor": config.rate_factor, "clients": len(clients.clients)},
            "doubts": doubts,
        },
    )


def _generated_origin(config: WorkloadConfig, catalog_size: int, seed: int) -> _Origin:
    models = config.models or catalog_size
    if config.kind in _SESSIONS:
        return _sessions_origin(config, models, seed)
    ids = tuple(f"model-{rank:02d}" for rank in range(1, models + 1))
    parameters: dict[str, Any]
    counted: tuple[dict[str, int], float] | None = None
    if config.kind == "synthetic":
        synthetic = SyntheticTrace(
            requests=config.requests,
            models=models,
            days=config.days,
            gap_cv=config.gap_cv,
            day_night=config.day_night,
        )
        parameters = {name: getattr(synthetic, name) for name in SyntheticTrace.__slots__}

        def source() -> Iterator[RequestBlock]:
            return synthetic_blocks(synthetic, seed)

        counts, last_s = count_requests(synthetic, seed)
        counted = {ids[model]: count for model, count in counts.items()}, last_s
    else:
        steady = SteadyTrace(
            requests=config.requests,
            models=models,
            rate_rps=config.rate_rps,
            zipf_exponent=config.zipf_exponent,
        )
        parameters = {name: getattr(steady, name) for name in SteadyTrace.__slots__}
        if config.kind == "deterministic" and steady.zipf_exponent:
            raise SettingError(
                "workload.zipf_exponent", steady.zipf_exponent, "0 with kind=deterministic"
            )

        def source() -> Iterator[RequestBlock]:
            if config.kind == "poisson":
                return poisson_blocks(steady, seed)
            if config.kind == "closed_loop":
                return queued_blocks(steady, seed)
            return deterministic_blocks(steady)

    return _Origin(
        source=source,
        ids=ids,
        own_lengths=False,
        description={"source": f"{config.kind} generator", "parameters": parameters},
        counted=counted,
    )


def _count(source: Source, ids: tuple[str, ...]) -> tuple[dict[str, int], float]:
    requests_of: dict[str, int] = {}
    last_s = 0.0
    for block in source():
        codes, first_at, counts = np.unique(block.model, return_index=True, return_counts=True)
        for index in np.argsort(first_at).tolist():
            name = ids[int(codes[index])]
            requests_of[name] = requests_of.get(name, 0) + int(counts[index])
        last_s = float(block.arrival_s[-1])
    return requests_of, last_s


def _replicated(
    config: WorkloadConfig, source: Source, requests_of: dict[str, int], last_s: float, seed: int
) -> tuple[Source, dict[str, int]]:
    if sum(requests_of.values()) <= _HELD_REQUESTS:
        # Otherwise every replica would read the file again and hold a batch of it.
        source = held(source)
    # The trace repeats one mean gap after its last request.
    period_s = last_s + last_s / sum(requests_of.values()) or 1.0
    rng = stream_of(seed, "replica offsets")
    offsets_s = [0.0, *(rng.random(config.replicas - 1) * period_s).tolist()]
    sources = [
        rotated(copied(source, i, config.replicas), offset_s, period_s)
        for i, offset_s in enumerate(offsets_s)
    ]
    return merged(sources), {name: count * config.replicas for name, count in requests_of.items()}


def _renamed(source: Source, lookup: np.ndarray[Any, np.dtype[np.int32]], models: int) -> Source:
    roots = np.array([root_of(model) for model in range(models)], np.uint64)

    def start() -> Iterator[RequestBlock]:
        for block in source():
            named = replace(block, model=lookup[block.model])
            yield named.apart(roots[named.model]) if named.block_tokens else named

    return start
