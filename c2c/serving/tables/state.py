"""State of the serving loop."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import Apart, Own, System, Traits
from c2c.policies.returns import ENDS_AT, SLOT
from c2c.serving.tables.block_table import Blocks
from c2c.serving.tables.costs import CostTables
from c2c.serving.tables.optional_tables import Adapters, AdapterSlots, KvHomes

__all__ = [
    "ABSENT",
    "ASSIGNED",
    "COLD",
    "COMING",
    "ENDS_AT",
    "FAIL_CANCELLED",
    "FAIL_CONTEXT",
    "FAIL_DEADLINE",
    "FAIL_DEVICE",
    "FAIL_KV",
    "FAIL_MEMORY",
    "FAIL_NONE",
    "FREE",
    "GONE",
    "HELD",
    "IDLE",
    "IN_SERVICE",
    "LENGTH",
    "LOADING",
    "NOBODY",
    "NOWHERE",
    "PLAN_DTYPE",
    "READY",
    "RECORD_DTYPE",
    "REPORT_DTYPE",
    "RUNNING",
    "SENDS",
    "SENT",
    "SETTLED",
    "SLOT",
    "SWITCH",
    "WAITS",
    "WARM",
    "Fleet",
    "KvHomes",
    "Loop",
    "Rules",
    "Serving",
]

# State of an instance.
FREE: Final = 0
ASSIGNED: Final = 1  # has a model, waits for its device to load it
LOADING: Final = 2
IDLE: Final = 3  # has a model and no work: inactive, may be evicted
READY: Final = 4  # has work, waits for its turn or for the link
RUNNING: Final = 5
NOWHERE: Final = 6  # its device is lost: holds and accepts nothing

# State of a device.
IN_SERVICE: Final = 0
GONE: Final = 1  # lost, perhaps for good

# State of a model at its request's arrival.
WARM: Final = 0  # active on an instance
SWITCH: Final = 1  # in host memory, had to be activated
COLD: Final = 2  # on disk

# Weights in host memory.
ABSENT: Final = 0
COMING: Final = 1  # being read from disk
HELD: Final = 2

# State of a lane's relayout.
SETTLED: Final = 0  # no relayout
WAITS: Final = 1  # waits for room
SENDS: Final = 2
SENT: Final = 3  # in force from the next step boundary on

LENGTH: Final = 2  # column of a decoding sequence after SLOT and ENDS_AT: prompt and output tokens

NOBODY: Final = -1  # id of the request of a free slot

FAIL_NONE: Final = 0
FAIL_CONTEXT: Final = 1  # prompt + output exceed the model's context
FAIL_KV: Final = 2  # no slice of the model's chips can hold its KV cache
FAIL_CANCELLED: Final = 3  # cancelled by the client
FAIL_DEADLINE: Final = 4  # not finished by its deadline
FAIL_DEVICE: Final = 5  # the devices that could hold it are lost
FAIL_MEMORY: Final = 6  # the model's weights fit no slice of its chips

# A slice: one compute lane and one memory, on which engines take turns.
DEVICE_DTYPE = np.dtype(
    [
        ("chip", "i8"),
        ("kind", "i8"),  # slice type, for the cost tables
        ("first", "i8"),  # its instances are [first, first + Fleet.residents)
        ("running", "i8"),  # the instance whose load or steps are under way, or -1
        ("last", "i8"),  # the instance that ran last, or -1
        ("residents", "i8"),
        ("is_held", "i8"),  # 1: it has work that waits for the link
        ("service", "i8"),  # IN_SERVICE or GONE
        ("is_asked", "i8"),  # 1: looks for work at the end of the event
        ("kv_bytes", "f8"),  # reserved in its HBM by all its instances
        ("weight_bytes", "f8"),  # kept in its HBM
        ("capacity_bytes", "f8"),  # for both
        ("holder", "i8"),  # the last instance that took the room of others' layers, or -1
        ("held_since_s", "f8"),  # when
        ("since_s", "f8"),  # begin of its service, later by the time for which it was lost
        ("until_s", "f8"),  # when it was lost; inf: it is in service
    ],
    align=True,
)

# A model made runnable on a device.
INSTANCE_DTYPE = np.dtype(
    [
        ("on_device", "i8"),
        ("chip", "i8"),
        ("kind", "i8"),
        ("state", "i8"),
        ("model", "i8"),
        ("draining", "i8"),
        ("aside", "i8"),  # 1: sets its requests aside at the next step boundary
        ("deals", "i8"),  # 1: routes them anew there (`rebalance`)
        ("ahead", "i8"),  # 1: loads its model before it has requests
        ("last_used_s", "f8"),
        ("next_same", "i8"),  # next active instance of the same model
        ("wait_head", "i8"),
        ("wait_tail", "i8"),
        ("n_wait", "i8"),
        ("n_prefill", "i8"),
        ("n_decode", "i8"),
        ("backlog", "i8"),  # prompt tokens that are not prefilled yet, of waiting requests too
        ("kv_used", "i8"),  # places, see `c2c.models.CacheShape`
        ("kv_capacity", "i8"),  # tokens of a request, with nothing else on the device
        ("parked_bytes", "f8"),  # of its KV caches, in host memory
        ("coming_bytes", "f8"),  # KV caches there of waiting requests that other devices prefilled
        ("kept", "i8"),  # layers whose weights are in HBM
        ("decode_clock", "i8"),  # decode steps this instance has taken
        ("last_step_s", "f8"),  # when its last step ended
        ("last_token_s", "f8"),  # and the last whose tokens its decodes had
        # what `turns` found of its decodes, as long as they are the same
        ("looked_at", "i8"),  # how many there were; -1: they are others, or have other tokens
        ("kept_up", "i8"),  # that are not given up
        ("line_due_s", "f8"),  # the earliest token that is due of these
        ("line_until_s", "f8"),  # when the first of these is given up
        ("cold", "i8"),
        ("alpha", "f8"),
        ("seen_latency_s", "f8"),
        ("seen_hbm", "f8"),
        ("seen_c2c", "f8"),
        # running totals a request takes differences of
        ("sum_steps", "f8"),
        ("sum_alpha", "f8"),
        ("sum_link", "f8"),  # bytes per participant
        ("sum_hbm", "f8"),
        ("sum_alone_s", "f8"),  # its decodes' part of steps, with nothing beside them; where asked
    ],
    align=True,
)

# KV caches from other devices for an instance's waiting requests, beside it as few fleets have any.
INBOUND_DTYPE = np.dtype(
    [
        ("sent", "i8"),  # on their way or come; there is room for them
        ("come", "i8"),
    ],
    align=True,
)

# Plan of a device's next work; a row for each device, read by the backend.
PLAN_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("prefill", "i8"),  # prompt tokens
        ("prefills", "i8"),  # prompts they belong to
        ("pairs", "f8"),  # pairs of a query and a place, of prefill attention
        ("prefill_kv", "i8"),  # places in caches that the prefill attention reads
        ("decodes", "i8"),
        ("decode_kv", "i8"),  # places in caches that the first decode step reads
        ("growth", "i8"),  # places more in each following step
        ("rows", "i8"),  # rows that need logits
        ("steps", "i8"),  # at most this many identical steps
        ("alpha", "i8"),  # variant on the alpha grid
        ("kept", "i8"),  # layers read from HBM
        ("copied", "i8"),  # layers copied into HBM ahead of their products
        ("is_turn", "i8"),  # 1: change of engine
        ("kv_in_bytes", "f8"),  # KV caches of its own that come from host memory before it
        ("kv_out_bytes", "f8"),  # of other engines, that go there
        ("slo_s", "f8"),
        ("link_gbps", "f8"),  # what the first step draws alone
        ("adapter_s", "f8"),  # what its adapters add to a step (`c2c.serving.memory.adapters`)
        ("adapter_link_bytes", "f8"),
        ("adapter_hbm_bytes", "f8"),
    ],
    align=True,
)

# Report of the backend at the end of a plan.
REPORT_DTYPE = np.dtype(
    [
        ("steps", "i8"),
        ("latency_s", "f8"),  # seconds a step
        ("hbm", "f8"),  # utilisations
        ("c2c", "f8"),
        ("available_gbps", "f8"),
        ("link_bytes", "f8"),
        ("hbm_bytes", "f8"),
        ("alone_s", "f8"),  # a step, with nothing beside it
    ],
    align=True,
)

# A change of the variant of a lane's steps, where lanes share memories.
RELAYOUT_DTYPE = np.dtype(
    [
        ("version", "i8"),  # the variant in force
        ("wanted", "i8"),
        ("state", "i8"),  # SETTLED and so on
    ],
    align=True,
)

CHIP_DTYPE = np.dtype(
    [
        ("first", "i8"),  # devices [first, last) are on this chip
        ("last", "i8"),
        ("started", "i8"),  # the last event after which it looked for work
        ("n_held", "i8"),  # devices whose work waits for the link
        ("link_gbps", "f8"),  # rate of its link
        ("budget_gbps", "f8"),  # link rate that placement may promise
        ("host_bytes", "f8"),  # host memory for weights
        ("free_bytes", "f8"),  # of it
        ("pinned_bytes", "f8"),  # of models that have an instance on the chip
        ("kv_room_bytes", "f8"),  # host memory that is free for KV caches
        ("claim", "i8"),  # model that waits for a slice here before all others, or -1
        ("next_look_s", "f8"),
        ("n_waiting", "i8"),  # models with a home on it for which requests wait
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
        ("draws", "i8"),  # placement decisions taken for it, in the key of random ones
        ("starts", "i8"),  # 1: it may be active before the first event
    ],
    align=True,
)

# A model's weights in the memory of one of its home chips.
HOLD_DTYPE = np.dtype(
    [
        ("state", "i8"),
        ("pins", "i8"),  # instances of the model on the chip
        ("last_used_s", "f8"),
    ],
    align=True,
)

REQUEST_DTYPE = np.dtype(
    [
        ("id", "i8"),
        ("model", "i8"),  # that serves it
        ("entry", "i8"),  # of the catalog that it asks for: this model, or an adapter of it
        ("prompt", "i8"),
        ("output", "i8"),
        ("next", "i8"),
        ("instance", "i8"),
        ("start_kind", "i8"),
        ("prefilled", "i8"),
        ("unreserved", "i8"),  # tokens of its answer that have no room yet
        ("step_tokens", "i8"),  # prompt tokens in the step under way
        ("chunks", "i8"),
        ("arrival_s", "f8"),
        ("admitted_s", "f8"),
        ("started_s", "f8"),
        ("first_token_s", "f8"),
        ("from_steps", "f8"),
        ("from_alpha", "f8"),
        ("from_link", "f8"),
        ("from_hbm", "f8"),
        ("from_alone_s", "f8"),  # while its prompt is computed, less what that took alone
        ("priority", "i8"),  # the higher, the more urgent
        ("rank", "f8"),  # of equal priority the lowest first, see `c2c.policies.order`
        ("carried", "i8"),  # tokens of `prompt` that it had generated before it began again
        ("again", "i8"),  # times that it began again
        ("was_admitted_s", "f8"),  # of a request that carries tokens
        ("was_started_s", "f8"),
        ("was_first_token_s", "f8"),
        ("was_steps", "f8"),  # charged before it began again
        ("was_alpha", "f8"),
        ("was_link", "f8"),
        ("was_hbm", "f8"),
        ("was_alone_s", "f8"),
        # of one that is handed over (`c2c.serving.batches.handover`)
        ("made", "i8"),  # tokens that it comes with; 0: it is none
        ("held_by", "i8"),  # the instance where its KV cache stays meanwhile; -1: none
        ("source", "i8"),  # the device that computed its prompt
        ("handed_s", "f8"),  # when
        ("handed_bytes", "f8"),  # its KV cache in host memory, on its way or come; 0: at its source
        # where lanes share memories (`c2c.serving.memory.kv_homes`)
        ("kv_home", "i8"),
        ("kv_next", "i8"),  # where a relayout moves it; else the same
        # with a prefix cache (`c2c.serving.memory.prefixes`)
        ("blocks", "i8"),  # of its prompt, and of its answer where it is known; 0: it carries none
        ("prompt_blocks", "i8"),  # of these, those of its prompt
        ("held", "i8"),  # of these, the leading ones in HBM that it uses
        ("reused", "i8"),  # tokens that it found when it joined its batch
        ("found_hbm", "i8"),  # when it first did
        ("found_host", "i8"),
        ("calls_tool", "i8"),  # 1: its answer ends in a call of a tool
        ("ends_by_s", "f8"),  # its deadline, or when its client leaves; inf: neither
        ("late_as", "i8"),  # the failure that it then is
        ("ending", "i8"),  # why it ends at the end of the step under way; FAIL_NONE: it does not
        ("length", "i8"),  # tokens of its answer, which only the simulated machine may know
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
        ("slice", "i4"),
        ("chip", "i4"),
        ("start_kind", "i4"),
        ("chunks", "i4"),
        ("failure", "i4"),
        ("cached_hbm_tokens", "i4"),
        ("cached_host_tokens", "i4"),
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
        ("dropped", "i8"),  # models evicted from host memory
        ("drains", "i8"),
        ("preempted", "i8"),  # requests set aside
        ("handed", "i8"),  # handovers of requests to decode
        ("variant_changes", "i8"),  # variants of steps that came into force
        ("relayouts", "i8"),  # relayouts that began
        ("out", "i8"),  # records in the buffer
        ("free_slots", "i8"),
        ("actions", "i8"),  # actions in the buffer
        ("events", "i8"),  # taken in
        ("asked", "i8"),  # devices in the buffer
        ("to_start", "i8"),  # 1: models that may be active before the first event are not yet
        ("now_s", "f8"),  # of the last event that came through the port
        ("first_timer", "i8"),  # which of the timers is due first
        ("deadlines", "i8"),  # requests so far that have one
    ],
    align=True,
)


# Record arrays and NamedTuples of arrays, so that one code runs interpreted and compiled. Ids are
# indices. A device is a slice or a lane; an instance is a model loaded there.
class Fleet(NamedTuple):
    """Fixed part: deployments, homes of their weights, capacities of slices."""

    deployment: Any  # `prepare.tables.DEPLOYMENT_DTYPE` [D]
    home_first: Any  # i8[D+1]; chips home_chip[home_first[d]:home_first[d+1]] hold d's weights
    home_chip: Any  # i8[homes]
    home_model: Any  # i8[homes]
    chip_first: Any  # i8[C+1]; homes chip_home[chip_first[c]:chip_first[c+1]] are chip c's
    chip_home: Any  # i8[homes]
    weight_bytes: Any  # f8[D]
    kv_capacity: Any  # i8[arch, kind] tokens of the longest request
    kv_capacity_bytes: Any  # f8[arch, kind] KV-cache bytes of all requests together
    chunk: Any  # i8[arch, kind] prefill tokens a step, of the profiling table
    layers: Any  # i8[arch]
    layer_bytes: Any  # f8[arch] weights of one layer
    head_bytes: Any  # f8[arch] weights of the output projection
    gives_up: bool  # whether requests may end early: by a deadline, or an option
    max_batch: int
    residents: int  # maximum instances of a device
    most_engines: Any  # i8[kind] maximum instances with a model
    instances: int  # number on all devices
    engine_bytes: float  # HBM of each engine beyond the first
    shared_weight_bytes: Any  # f8[arch, kind] weights of an engine beside others' in HBM; else 0
    kv_host_bytes: float  # host memory of a chip for KV caches of engines that do not run
    folds_turns: bool  # a turn and the steps after it are one run: nobody shares the link
    hands_to: Any  # i8[kind] kind that decodes this kind's prompts; -1: itself
    takes_new: Any  # i8[kind] 0: accepts only handed-over requests
    opens_all: bool  # a model that is active at the start is so on every device of its chips
    by_turns: bool  # each step of a batch is a new one, that goes behind those which wait
    folds_experts: bool  # steps that lack experts are not walked one by one
    role: Any  # i8[devices] EVERYTHING, PROMPTS or DECODES
    hands_directly: bool  # KV caches go from device to device, not through host memory
    sure_bytes: Any  # f8[kind] KV-cache bytes whichever engines share a slice
    switch_s: Any  # f8[arch, kind] change to an engine, alone on the link
    caches_prefixes: bool
    costs: CostTables
    kv: KvHomes
    adapters: Adapters


class Rules(NamedTuple):
    """Policies, their arrays, a seed and constant traits; `apart`: see `on_demand`."""

    system: System
    own: Own
    seed: int
    traits: Traits
    apart: Apart = Apart()


class Serving(NamedTuple):
    """Changing part; a step owns its arrays, like donated JAX buffers."""

    device: Any
    instance: Any
    inbound: Any  # INBOUND_DTYPE [instances]
    plan: Any  # PLAN_DTYPE [devices]
    report: Any  # REPORT_DTYPE [devices]
    chip: Any
    hold: Any  # HOLD_DTYPE [homes]
    model: Any
    waiting: Any  # i8[homes]: from Fleet.chip_first[c] on, chip c's n_waiting models, unordered
    request: Any
    free_slots: Any
    prefilling: Any  # i8[I, B] request slots, first come first; B >= max_batch, `spread_rows`
    decoding: Any  # i8[I, B, 3]: SLOT, ENDS_AT, LENGTH of each; a step reads these of all
    count: Any  # i8[0].size
    actions: Any  # i8[n, 2]; an event may hand over every request, see `c2c.serving.tables.actions`
    # f8[1 + C] when each timer is due, inf: it is not set: deadlines, then each chip's
    timer_s: Any
    taken: Any  # f8[devices, memories] KV caches of each lane
    split: Any  # i8[devices, homes, 4] the step's size by home, see `c2c.serving.tables.plans`
    relayout: Any  # RELAYOUT_DTYPE [devices]
    sent_bytes: Any  # f8[devices, ways] by the relayout under way
    blocks: Blocks  # of the prefix cache
    adapters: AdapterSlots
    asked: Any  # i8[devices] that look for work when the event is taken in
    records: Any  # RECORD_DTYPE buffer
    routes: Any  # scratch
    candidates: Any  # scratch
    homes: Any  # scratch, a row a home
    engines: Any  # scratch, a row an instance of a chip
    watched: Any  # scratch, likewise
    ranked: Any  # scratch
    alone_s: Any  # scratch f8[A]
    link_bytes: Any  # scratch f8[A]


class Loop(NamedTuple):
    """All that a rule of the loop uses, one address in compiled code."""

    fleet: Fleet
    rules: Rules
    s: Serving
