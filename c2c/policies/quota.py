"""Turns by quota: prompts in groups, then decode rounds."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from c2c.compiling.decision import jitable
from c2c.policies.traits import TurnTraits
from c2c.policies.turn import turn_taken, urgency
from c2c.ranges import AboveZero, Count, In

__all__ = ["Quota", "quota_s", "round_alpha"]

# Amounts that no time of a run reaches keep the classes apart.
_GROUP: Final = -2e12
_PROMPT: Final = -1e12
_GOES_ON: Final = -1e9
_WITHOUT_END: Final = 1e15  # decode steps


@jitable
def round_alpha(switch_s: float, shares: float, least_slack: float, most_s: float) -> float:
    """Return a round's overload alpha: batches get 1 / alpha of their tokens."""
    return max(switch_s / (least_slack * most_s) + shares, 0.5)


@jitable
def quota_s(slack: float, switch_s: float, shares: float, alpha: float) -> float:
    """Return the seconds that a batch runs in a round.

    >>> round(quota_s(4.0, 1.0, 0.25, 0.5), 3)
    1.0

    Source: Aegaeon, as its text implies: a round lasts `alpha` times what makes n q equal.
    """
    return switch_s / (slack * (alpha - shares))


class Turns(NamedTuple):
    """Memory of the policy for each instance.

    Attributes:
      until: decode clock at which its turn ends.
      prompts: steps with prompt tokens in its open group.
    """

    until: Any
    prompts: Any


class Quota(NamedTuple):
    """Prompts first, in groups of a model, in order; then decodes by quotas.

    Source: Aegaeon. Ours: prompts and decodes share the devices; a group is closed after `group`
    steps with prompts.

    Attributes:
      most_s: longest quota.
      group: a model's prompts served before another's older ones.
      switch_gbps: rate of weights in a switch; inf: what it takes.
    """

    most_s: AboveZero = 4.0
    group: Count = 8
    switch_gbps: Annotated[float, In("(0, inf]")] = np.inf

    def memory(self, fleet: Any) -> Turns:
        """Return the initial memory."""
        n = fleet.instances
        return Turns(np.zeros(n), np.zeros(n, np.int64))

    @property
    def traits(self) -> TurnTraits:
        """Constant traits of this policy."""
        return TurnTraits(reads_token_lines=False)


@urgency.by(Quota)
def _by_quota(policy: Quota, own: Any, row: Any, now_s: float) -> float:
    i = row.instance
    if row.has_prompt != 0:
        if row.is_last != 0 and 0 < own.prompts[i] < policy.group:
            return _GROUP
        return float(_PROMPT + row.prompt_since_s)
    if row.is_last != 0 and own.until[i] - row.decode_clock >= 1.0:
        return _GOES_ON
    return float(row.order)


@turn_taken.by(Quota)
def _begin_turn(
    policy: Quota, own: Any, table: Any, first: int, count: int, row: Any, now_s: float
) -> float:
    i = row.instance
    if row.is_last == 0:
        own.prompts[i] = 0
    own.prompts[i] = own.prompts[i] + 1 if row.has_prompt != 0 else 0
    if row.decodes == 0:
        return 1.0
    if _decodes_alone(table, first, count, i):
        own.until[i] = row.decode_clock
        return _WITHOUT_END
    if row.is_last == 0 or own.until[i] - row.decode_clock < 1.0:
        rest_steps = max(0.0, own.until[i] - row.decode_clock)
        own.until[i] = row.decode_clock + rest_steps + _turn_steps(policy, table, first, count, row)
    return float(own.until[i] - row.decode_clock)


@jitable
def _decodes_alone(table: Any, first: int, count: int, i: int) -> bool:
    for k in range(first, first + count):
        if table[k].instance >= 0 and table[k].instance != i and table[k].decodes > 0:
            return False
    return True


@jitable
def _turn_steps(policy: Quota, table: Any, first: int, count: int, row: Any) -> float:
    # The decode steps of one turn: its quota over the time of a step.
    switch_s, shares, least = 0.0, 0.0, np.inf
    for k in range(first, first + count):
        other = table[k]
        if other.instance < 0 or other.decodes == 0:
            continue
        slack = other.tpot_slo_s / other.step_s
        if policy.switch_gbps < np.inf:
            switch_s += other.weight_bytes / (policy.switch_gbps * 1e9)
        else:
            switch_s += other.switch_s
        shares += 1.0 / slack
        least = min(least, slack)
    if switch_s <= 0.0:
        return 1.0
    alpha = round_alpha(switch_s, shares, least, policy.most_s)
    turn_s = quota_s(row.tpot_slo_s / row.step_s, switch_s, shares, alpha)
    return float(turn_s / row.step_s)
