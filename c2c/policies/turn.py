"""Turns: choice of a slice's next engine."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from c2c.compiling.decision import decision
from c2c.policies.returns import A_NUMBER, SECONDS
from c2c.policies.traits import TurnTraits
from c2c.ranges import FromZero, In

__all__ = [
    "ENGINE_DTYPE",
    "GateAndTriage",
    "One",
    "RoundRobin",
    "SlackFirst",
    "given_up_s",
    "stay_s",
    "token_due_s",
    "turn_taken",
    "urgency",
]

# A row for each engine of the slice that has work it could do now.
ENGINE_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("order", "i8"),  # distance behind the engine that ran last, in slice order
        ("has_prompt", "i8"),  # 1: its next step has prompt tokens
        ("prompt_due_s", "f8"),  # earliest TTFT target of its prompts, less their remaining time
        # earliest due token of its decodes, less a step; inf: all are given up, or it is not read
        ("token_due_s", "f8"),
        ("last_token_s", "f8"),  # time of its decodes' last token
        ("is_last", "i8"),  # 1: it ran last on its slice
        ("prompt_since_s", "f8"),  # arrival of the earliest of its prompts
        ("decodes", "i8"),  # sequences that decode
        ("decode_clock", "i8"),  # decode steps so far
        ("step_s", "f8"),  # a decode step alone
        ("tpot_slo_s", "f8"),  # TPOT target
        ("switch_s", "f8"),  # change to this engine
        ("weight_bytes", "f8"),  # of its model
        ("is_protected", "i8"),  # 1: its demand is within the protected share
        # link time of one decode step of each unprotected engine of the chip
        ("round_s", "f8"),
        ("kept_share", "f8"),  # share of its layers in HBM
        # remaining time for which the engine that last took the room of others' layers keeps it;
        # below 0: none. Equal in all rows of a slice.
        ("stays_s", "f8"),
    ],
    align=True,
)


@decision(returns=A_NUMBER, rows=ENGINE_DTYPE)
def urgency(policy: Any, own: Any, row: Any, now_s: float) -> float:
    """Return the urgency of an engine: the least runs next, of equals the first.

    Args:
      row: row of `ENGINE_DTYPE`.
    """


def _on_the_line(
    policy: Any, first_token_s: float, generated: int, last_token_s: float, tpot_slo_s: float
) -> float:
    return first_token_s + generated * tpot_slo_s


def _never(policy: Any, first_token_s: float, generated: int, tpot_slo_s: float) -> float:
    return np.inf


def _not_noted(
    policy: Any, own: Any, table: Any, first: int, count: int, row: Any, now_s: float
) -> float:
    return 1.0


@decision(default=_not_noted, rows=ENGINE_DTYPE)
def turn_taken(
    policy: Any, own: Any, table: Any, first: int, count: int, row: Any, now_s: float
) -> float:
    """Record a slice's next engine; return the decode steps left of its turn.

    Args:
      table: rows of `ENGINE_DTYPE`; instance -1: no requests.
      first: first row of the slice.
    """


def _does_not_stay(policy: Any, switch_s: float, kept_share: float) -> float:
    return 0.0


@decision(default=_does_not_stay, returns=SECONDS)
def stay_s(policy: Any, switch_s: float, kept_share: float) -> float:
    """Return the seconds for which an engine keeps others' room.

    Args:
      switch_s: of copying its weights.
      kept_share: share of its layers in HBM.
    """


@decision(default=_on_the_line, returns=A_NUMBER)
def token_due_s(
    policy: Any, first_token_s: float, generated: int, last_token_s: float, tpot_slo_s: float
) -> float:
    """Return when a sequence's next token is due; called after each token.

    Args:
      generated: so far.
      tpot_slo_s: a token.
    """


@decision(default=_never, returns=A_NUMBER)
def given_up_s(policy: Any, first_token_s: float, generated: int, tpot_slo_s: float) -> float:
    """Return when a sequence without its next token is given up; inf: never.

    Args:
      generated: so far.
    """


class One(NamedTuple):
    """One engine a slice: it runs whenever it has work. Source: C2CServe, all evaluated systems."""

    @property
    def traits(self) -> TurnTraits:
        """Constant traits of this policy."""
        return TurnTraits(takes_turns=False)


@urgency.by(One)
def _first(policy: One, own: Any, row: Any, now_s: float) -> float:
    return 0.0


class RoundRobin(NamedTuple):
    """Engines with work take one step each, in turn."""

    @property
    def traits(self) -> TurnTraits:
        """Constant traits of this policy."""
        return TurnTraits(goes_by_order=True)


@urgency.by(RoundRobin)
def _in_turn(policy: RoundRobin, own: Any, row: Any, now_s: float) -> float:
    return float(row.order)


class SlackFirst(NamedTuple):
    """Prompts first, by least slack to their TTFT target; then decodes, a step each, in turn.

    Source: Prism (arXiv 2505.04021, section 5); its decodes share the GPU as equals.
    """

    @property
    def traits(self) -> TurnTraits:
        """Constant traits of this policy."""
        return TurnTraits(reads_token_lines=False)


@urgency.by(SlackFirst)
def _by_slack(policy: SlackFirst, own: Any, row: Any, now_s: float) -> float:
    if row.has_prompt != 0:
        return float(-1e12 + row.prompt_due_s - now_s)
    return float(row.order)


# Constants of `GateAndTriage`, ours.
_PROTECT: Final = 0.88  # share of the link that protected engines may fill
_LATE_S: Final = 1.0  # delay behind its due time at which a sequence is given up
_AHEAD_S: Final = 0.25  # delay after its target at which a sequence ahead still gets a token
_STAY_SHARE: Final = 0.75  # share of an engine's layers that must be in HBM for `stay`


class GateAndTriage(NamedTuple):
    """Prompts first, then decodes by due time; sequences beyond rescue last (ours).

    An overloaded link protects engines by requests a byte, up to 0.88 of it. A request more than 1
    s behind its due time counts no more. An engine that waited `stall_s` goes first, within `rest`
    of the link.

    Attributes:
      gate: link use at which decode-only steps wait; inf: none waits.
      stall_s: wait for a token after which a sequence goes first.
      rest: share of the link for such steps; under overload 0 lets whole models wait, inf none.
      stay: priority of engines with weights in HBM after others' room was taken, in times of the
        copy; 0: none.
    """

    gate: Annotated[float, In("(0, 1]", or_inf=True)] = 0.98
    stall_s: Annotated[float, In("[0, inf]")] = 2.0
    rest: Annotated[float, In("[0, inf]", "a share of the link")] = 0.12
    stay: FromZero = 5.0

    @property
    def traits(self) -> TurnTraits:
        """Constant traits of this policy."""
        return TurnTraits(link_gate=self.gate, protected_share=_PROTECT)


@urgency.by(GateAndTriage)
def _triage(policy: GateAndTriage, own: Any, row: Any, now_s: float) -> float:
    # Six classes, kept apart by amounts that no slack reaches.
    if row.has_prompt != 0:
        return float(-1e12 + row.prompt_due_s - now_s)
    waited_s = now_s - row.last_token_s
    if row.stays_s > 0.0 and row.kept_share >= _STAY_SHARE:
        return float(-1e11 + (row.token_due_s - now_s if row.token_due_s < np.inf else -waited_s))
    if waited_s > policy.stall_s and waited_s * policy.rest >= row.round_s:
        return float(-1e9 - waited_s)
    if row.token_due_s == np.inf:
        return float(1e12 - waited_s)
    if row.is_protected != 0:
        return float(row.token_due_s - now_s)
    return float(1e9 + row.token_due_s - now_s)


@stay_s.by(GateAndTriage)
def _stay(policy: GateAndTriage, switch_s: float, kept_share: float) -> float:
    return policy.stay * switch_s if kept_share >= _STAY_SHARE else 0.0


@token_due_s.by(GateAndTriage)
def _due(
    policy: GateAndTriage, first_token_s: float, generated: int, last_token_s: float,
    tpot_slo_s: float,
) -> float:  # fmt: skip
    line_s = first_token_s + generated * tpot_slo_s
    return min(line_s, last_token_s + tpot_slo_s + _AHEAD_S)


@given_up_s.by(GateAndTriage)
def _given_up(
    policy: GateAndTriage, first_token_s: float, generated: int, tpot_slo_s: float
) -> float:
    return first_token_s + generated * tpot_slo_s + _LATE_S
