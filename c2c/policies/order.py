"""The order in which requests of equal priority wait for an engine."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import A_NUMBER

__all__ = ["FirstCome", "LeastSlack", "ShortestFirst", "rank"]


@decision(returns=A_NUMBER)
def rank(
    policy: Any, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:
    """Return a request's rank at its arrival; the lowest waits first, of equal ones the earliest.

    Args:
      policy: decides.
      arrival_s: of the request.
      prefill_s: of its prompt, alone.
      decode_s: of all its tokens after the first, as many as it may have, alone.
      ttft_slo_s: its model's target.
    """


class FirstCome(NamedTuple):
    """As they come."""


@rank.by(FirstCome)
def _first_come(
    policy: FirstCome, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:  # fmt: skip
    return 0.0


class ShortestFirst(NamedTuple):
    """The one with the least to compute first.

    Attributes:
      counts_answer: whether the answer's tokens count as the request's `max_output_tokens` says;
        else the prompt alone, which is known.
    """

    counts_answer: bool = False


@rank.by(ShortestFirst)
def _shortest_first(
    policy: ShortestFirst, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:  # fmt: skip
    return prefill_s + (decode_s if policy.counts_answer else 0.0)


class LeastSlack(NamedTuple):
    """The one first that must begin first for its first token to be in time."""


@rank.by(LeastSlack)
def _least_slack(
    policy: LeastSlack, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:  # fmt: skip
    return arrival_s + ttft_slo_s - prefill_s
