"""What the serving loop knows: the fleet (fixed), the rules (fixed) and the state (changing).

Everything is a record array or a NamedTuple of arrays, so that one code runs interpreted and
compiled. Positions in `Fleet.deployment`, `instance` and so on are the ids used everywhere.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import CANDIDATE_DTYPE, ROUTE_DTYPE, AlphaParams
from c2c.serving.costs import CostTables

__all__ = [
    "COLD",
    "FAIL_CONTEXT",
    "FAIL_KV",
    "FAIL_NONE",
    "FREE",
    "IDLE",
    "LOADING",
    "RECORD_DTYPE",
    "RUNNING",
    "SWITCH",
    "WARM",
    "Fleet",
    "Rules",
    "Serving",
    "grow_requests",
    "new_serving",
]

# Life of an instance.
FREE: Final = 0
LOADING: Final = 1
IDLE: Final = 2  # holds a model, has no work: inactive, may be evicted
RUNNING: Final = 3

# How a request found its model.
WARM: Final = 0  # active on an instance
SWITCH: Final = 1  # in host memory, had to be activated
COLD: Final = 2  # on disk

FAIL_NONE: Final = 0
FAIL_CONTEXT: Final = 1  # prompt + output exceed the model's context
FAIL_KV: Final = 2  # no slice of the model's chips can hold its KV cache

DEPLOYMENT_DTYPE = np.dtype(
    [
        ("arch", "i8"),
        ("demand_gbps", "f8"),  # S_m / TPOT_m
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("max_context", "i8"),
    ],
    align=True,
)

INSTANCE_DTYPE = np.dtype(
    [
        ("chip", "i8"),
        ("kind", "i8"),  # which slice type, for the cost tables
        ("state", "i8"),
        ("model", "i8"),
        ("draining", "i8"),
        ("last_used_s", "f8"),
        ("next_same", "i8"),  # next active instance of the same model
        ("wait_head", "i8"),
        ("wait_tail", "i8"),
        ("n_wait", "i8"),
        ("n_prefill", "i8"),
        ("n_decode", "i8"),
        ("kv_used", "i8"),
        ("kv_capacity", "i8"),
        ("decode_clock", "i8"),  # decode steps this instance has taken
        ("alpha", "f8"),
        ("seen_latency_s", "f8"),
        ("seen_hbm", "f8"),
        ("seen_c2c", "f8"),
        ("available_gbps", "f8"),
        # the plan of the step under way, read by the backend
        ("cold", "i8"),
        ("plan_prefill", "i8"),  # prompt tokens
        ("plan_prefills", "i8"),  # prompts they belong to
        ("plan_pairs", "f8"),  # (query, key) pairs of prefill attention
        ("plan_prefill_kv", "i8"),  # cached tokens the prefill attention reads
        ("plan_decodes", "i8"),
        ("plan_decode_kv", "i8"),  # cached tokens the first decode step reads
        ("plan_growth", "i8"),  # cached tokens more in each following step
        ("plan_rows", "i8"),  # rows that need logits
        ("plan_steps", "i8"),  # at most this many identical steps
        ("plan_alpha", "i8"),  # variant on the alpha grid
        ("plan_part", "i8"),  # which part of a step that is run in parts (layers)
        ("plan_parts", "i8"),
        ("plan_slo_s", "f8"),
        # what the backend reports of it
        ("ran_steps", "i8"),
        ("ran_latency_s", "f8"),  # seconds a step
        ("ran_hbm", "f8"),  # utilisations
        ("ran_c2c", "f8"),
        ("ran_link_bytes", "f8"),
        ("ran_hbm_bytes", "f8"),
        # running totals a request takes differences of
        ("sum_steps", "f8"),
        ("sum_alpha", "f8"),
        ("sum_link", "f8"),  # bytes per participant
        ("sum_hbm", "f8"),
    ],
    align=True,
)

CHIP_DTYPE = np.dtype(
    [
        ("first", "i8"),  # instances [first, last) are on this chip
        ("last", "i8"),
        ("budget_gbps", "f8"),  # link rate that placement may promise
        ("claim", "i8"),  # model that waits for a slice here before all others, or -1
        ("next_look_s", "f8"),
    ],
    align=True,
)

MODEL_DTYPE = np.dtype(
    [
        ("active", "i8"),  # first active instance, or -1
        ("wait_head", "i8"),  # requests waiting for a slice
        ("wait_tail", "i8"),
        ("n_wait", "i8"),
        ("oldest_s", "f8"),
        ("claim_chip", "i8"),
        ("tried", "i8"),
        ("in_host", "i8"),  # 0: still on disk
    ],
    align=True,
)

REQUEST_DTYPE = np.dtype(
    [
        ("id", "i8"),
        ("model", "i8"),
        ("prompt", "i8"),
        ("output", "i8"),
        ("next", "i8"),
        ("instance", "i8"),
        ("start_kind", "i8"),
        ("prefilled", "i8"),
        ("step_tokens", "i8"),  # prompt tokens in the step under way
        ("target", "i8"),  # decode clock at which the last token is out
        ("chunks", "i8"),
        ("arrival_s", "f8"),
        ("admitted_s", "f8"),
        ("started_s", "f8"),
        ("first_token_s", "f8"),
        ("from_steps", "f8"),
        ("from_alpha", "f8"),
        ("from_link", "f8"),
        ("from_hbm", "f8"),
    ],
    align=True,
)

RECORD_DTYPE = np.dtype(
    [
        ("id", "i8"),
        ("model", "i4"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("instance", "i4"),
        ("chip", "i4"),
        ("start_kind", "i4"),
        ("chunks", "i4"),
        ("failure", "i4"),
        ("arrival_s", "f8"),
        ("admitted_s", "f8"),
        ("started_s", "f8"),
        ("first_token_s", "f8"),
        ("finished_s", "f8"),
        ("alpha_mean", "f8"),
        ("link_bytes", "f8"),
        ("hbm_bytes", "f8"),
    ],
    align=True,
)


COUNT_DTYPE = np.dtype(
    [
        ("arrived", "i8"),
        ("finished", "i8"),
        ("failed", "i8"),
        ("pending", "i8"),  # requests that wait for a slice
        ("switches", "i8"),
        ("cold_starts", "i8"),
        ("evictions", "i8"),
        ("drains", "i8"),
        ("draws", "i8"),  # placement decisions taken, the key of random ones
        ("out", "i8"),  # records in the buffer
        ("free_slots", "i8"),
        ("actions", "i8"),  # actions in the buffer
    ],
    align=True,
)


class Fleet(NamedTuple):
    """The fixed part: deployments, where their weights are, what a slice can hold."""

    deployment: Any  # DEPLOYMENT_DTYPE [D]
    home_first: Any  # i8[D+1]; chips home_chip[home_first[d]:home_first[d+1]] hold d's weights
    home_chip: Any  # i8[...]
    kv_capacity: Any  # i8[arch, kind] tokens
    chunk: Any  # i8[arch, kind] prefill tokens a step
    parts: Any  # i8[arch] parts a prefill step is run in, alpha may change between them
    max_batch: int
    costs: CostTables


class Rules(NamedTuple):
    """Which policies decide, and their settings."""

    placement: int  # c2c.policies.PLACEMENTS
    check_link: int  # 1: evict inactive models until the link budget holds
    scale_out_at: int  # outstanding requests that ask for another instance; 0: never
    drain_after_s: float
    alpha: AlphaParams
    seed: int


class Serving(NamedTuple):
    """The changing part. A step owns the arrays it is given (as with donated JAX buffers)."""

    instance: Any
    chip: Any
    model: Any
    request: Any
    free_slots: Any
    prefilling: Any  # i8[I, B] request slots, first come first
    decoding: Any  # i8[I, B]
    count: Any  # i8[0].size
    actions: Any  # i8[n, 2] (code, instance)
    records: Any  # RECORD_DTYPE buffer
    routes: Any  # scratch
    candidates: Any  # scratch
    alone_s: Any  # scratch f8[A]
    link_bytes: Any  # scratch f8[A]


def _records(dtype: np.dtype[Any], size: int) -> Any:
    return np.zeros(size, dtype).view(np.recarray)


def new_serving(
    fleet: Fleet,
    chip_of: np.ndarray,
    kind_of: np.ndarray,
    budget_gbps: np.ndarray,
    *,
    in_host: bool,
    slots: int = 1024,
    buffer: int = 65536,
) -> Serving:
    """Return the state before the first event.

    Args:
      chip_of: [I] ascending chip of each instance; kind_of: [I] its slice type.
      budget_gbps: [C] link rate that placement may promise on each chip.
      in_host: whether all weights are in host memory at the start (else on disk).
      slots: request slots to start with; `grow_requests` adds more.
      buffer: records held before they must be taken out.
    """
    n_instances, n_chips = len(chip_of), len(budget_gbps)
    instance = _records(INSTANCE_DTYPE, n_instances)
    instance.chip, instance.kind = chip_of, kind_of
    for field in ("model", "next_same", "wait_head", "wait_tail"):
        instance[field] = -1
    chip = _records(CHIP_DTYPE, n_chips)
    chip.first = np.searchsorted(chip_of, np.arange(n_chips), side="left")
    chip.last = np.searchsorted(chip_of, np.arange(n_chips), side="right")
    chip.budget_gbps, chip.claim = budget_gbps, -1
    model = _records(MODEL_DTYPE, len(fleet.deployment))
    for field in ("active", "wait_head", "wait_tail", "claim_chip"):
        model[field] = -1
    model.in_host = int(in_host)
    count = _records(COUNT_DTYPE, 1)
    count[0].free_slots = slots
    variants = fleet.costs.body_s.shape[2]
    return Serving(
        instance=instance,
        chip=chip,
        model=model,
        request=_records(REQUEST_DTYPE, slots),
        free_slots=np.arange(slots - 1, -1, -1, dtype=np.int64),
        prefilling=np.zeros((n_instances, fleet.max_batch), np.int64),
        decoding=np.zeros((n_instances, fleet.max_batch), np.int64),
        count=count,
        actions=np.zeros((4 * n_instances + 16, 2), np.int64),
        records=_records(RECORD_DTYPE, max(buffer, 2 * fleet.max_batch + 4)),
        routes=_records(ROUTE_DTYPE, n_instances),
        candidates=_records(CANDIDATE_DTYPE, n_instances),
        alone_s=np.zeros(variants),
        link_bytes=np.zeros(variants),
    )


def grow_requests(state: Serving, extra: int) -> Serving:
    """Return the state with `extra` more free request slots."""
    old = len(state.request)
    request = _records(REQUEST_DTYPE, old + extra)
    request[:old] = state.request
    free = np.zeros(old + extra, np.int64)
    n_free = int(state.count[0].free_slots)
    # New slots go below the old free ones: the order in which slots are used stays the same.
    free[:extra] = np.arange(old + extra - 1, old - 1, -1)
    free[extra : extra + n_free] = state.free_slots[:n_free]
    state.count[0].free_slots = n_free + extra
    return state._replace(request=request, free_slots=free)
