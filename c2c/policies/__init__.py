"""Pure decisions: plain observations in, a decision out; one module a decision.

The functions on the serving path are written in the subset of Python that Numba compiles, so the
same code runs interpreted, compiled in the simulator, and in a live engine.
"""

from c2c.policies.admit import ReserveAll, may_join, prefill_share
from c2c.policies.alpha import (
    AlphaObservation,
    AlphaState,
    Feedback,
    Roofline,
    Static,
    adjust_alpha,
    alpha_index,
    best_alpha_index,
    initial_alpha,
    knows_costs,
)
from c2c.policies.chunk import (
    ChunkChoice,
    Fixed,
    Profiled,
    choose_chunk,
    chunk_tokens,
    largest_chunk,
)
from c2c.policies.decision import decision, jitable, policy_name
from c2c.policies.evict import (
    AfterWaiting,
    LeastRecentlyUsed,
    goes_before,
    look_every_s,
    should_drain,
)
from c2c.policies.keep import NothingKept, WhileRoom, keeps_weights, layers_to_keep
from c2c.policies.load import Resident, Staged, Stream, weights_in
from c2c.policies.place import (
    CANDIDATE_DTYPE,
    BandwidthAware,
    FirstIdle,
    LeastLoaded,
    RandomIdle,
    link_demand_gbps,
    link_headroom,
    link_is_promised,
    place,
)
from c2c.policies.route import ROUTE_DTYPE, LeastOutstanding, WhereWorkIs, route
from c2c.policies.scale import AtBacklog, AtOutstanding, OneInstance, wants_another
from c2c.policies.step import ByLayer, Whole, step_parts
from c2c.policies.system import (
    DECISIONS,
    PREPARATION,
    Nothing,
    Own,
    System,
    make_policy,
    policy_settings,
)
from c2c.policies.turn import (
    ENGINE_DTYPE,
    GateAndTriage,
    One,
    RoundRobin,
    link_gate,
    protected_share,
    token_due_s,
    urgency,
)

__all__ = [
    "CANDIDATE_DTYPE",
    "DECISIONS",
    "ENGINE_DTYPE",
    "PREPARATION",
    "ROUTE_DTYPE",
    "AfterWaiting",
    "AlphaObservation",
    "AlphaState",
    "AtBacklog",
    "AtOutstanding",
    "BandwidthAware",
    "ByLayer",
    "ChunkChoice",
    "Feedback",
    "FirstIdle",
    "Fixed",
    "GateAndTriage",
    "LeastLoaded",
    "LeastOutstanding",
    "LeastRecentlyUsed",
    "Nothing",
    "NothingKept",
    "One",
    "OneInstance",
    "Own",
    "Profiled",
    "RandomIdle",
    "ReserveAll",
    "Resident",
    "Roofline",
    "RoundRobin",
    "Staged",
    "Static",
    "Stream",
    "System",
    "WhereWorkIs",
    "WhileRoom",
    "Whole",
    "adjust_alpha",
    "alpha_index",
    "best_alpha_index",
    "choose_chunk",
    "chunk_tokens",
    "decision",
    "goes_before",
    "initial_alpha",
    "jitable",
    "keeps_weights",
    "knows_costs",
    "largest_chunk",
    "layers_to_keep",
    "link_demand_gbps",
    "link_gate",
    "link_headroom",
    "link_is_promised",
    "look_every_s",
    "make_policy",
    "may_join",
    "place",
    "policy_name",
    "policy_settings",
    "prefill_share",
    "protected_share",
    "route",
    "should_drain",
    "step_parts",
    "token_due_s",
    "urgency",
    "wants_another",
    "weights_in",
]
