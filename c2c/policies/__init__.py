"""Pure decisions: plain observations in, a decision out; one module a decision.

The functions on the serving path are written in the subset of Python that Numba compiles, so the
same code runs interpreted, compiled in the simulator, and in a live engine.
"""

from c2c.policies.admission import may_join, prefill_share
from c2c.policies.alpha import (
    ALPHA_POLICIES,
    AlphaObservation,
    AlphaParams,
    AlphaState,
    adjust_alpha,
    alpha_index,
    best_alpha_index,
    initial_alpha,
)
from c2c.policies.chunking import ChunkChoice, choose_chunk
from c2c.policies.placement import (
    CANDIDATE_DTYPE,
    PLACEMENTS,
    choose_victim,
    link_demand_gbps,
    place,
    should_drain,
)
from c2c.policies.routing import ROUTE_DTYPE, route_least_outstanding, wants_another_instance

__all__ = [
    "ALPHA_POLICIES",
    "CANDIDATE_DTYPE",
    "PLACEMENTS",
    "ROUTE_DTYPE",
    "AlphaObservation",
    "AlphaParams",
    "AlphaState",
    "ChunkChoice",
    "adjust_alpha",
    "alpha_index",
    "best_alpha_index",
    "choose_chunk",
    "choose_victim",
    "initial_alpha",
    "link_demand_gbps",
    "may_join",
    "place",
    "prefill_share",
    "route_least_outstanding",
    "should_drain",
    "wants_another_instance",
]
