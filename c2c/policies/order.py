"""Order of waiting requests of equal priority."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import A_NUMBER

__all__ = ["FirstCome", "LeastSlack", "ShortestFirst", "rank"]


@decision(returns=A_NUMBER)
def rank(
    policy: Any, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:
    """Return a request's rank at its arrival; the lowest is first, of equals the earliest.

    Args:
      arrival_s: on the loop's clock.
      prefill_s: of its prefill, alone.
      decode_s: of its other tokens, up to its limit, alone.
    """


class FirstCome(NamedTuple):
    """First come, first served."""


@rank.by(FirstCome)
def _first_come(
    policy: FirstCome, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:  # fmt: skip
    return 0.0


class ShortestFirst(NamedTuple):
    """Shortest job first.

    Attributes:
      counts_answer: whether the answer counts, at `max_output_tokens`.
    """

    counts_answer: bool = False


@rank.by(ShortestFirst)
def _shortest_first(
    policy: ShortestFirst, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:  # fmt: skip
    return prefill_s + (decode_s if policy.counts_answer else 0.0)


class LeastSlack(NamedTuple):
    """Least slack first: the earliest latest start for the TTFT target."""


@rank.by(LeastSlack)
def _least_slack(
    policy: LeastSlack, arrival_s: float, prefill_s: float, decode_s: float, ttft_slo_s: float
) -> float:  # fmt: skip
    return arrival_s + ttft_slo_s - prefill_s
