"""Choice of the block of a prefix cache that gives way, and of what gives way to it."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.returns import A_NUMBER
from c2c.policies.traits import ForgetTraits

__all__ = ["LongestIdle", "SessionsOver", "block_worth"]


@decision(returns=A_NUMBER)
def block_worth(policy: Any, unused_s: float, uses: int, depth: int, is_over: bool) -> float:
    """Return what a block is worth that no request uses; the one with the least gives way first.

    Args:
      policy: decides.
      unused_s: since it was last used.
      uses: requests that have used it.
      depth: blocks of its prefix that come before it.
      is_over: the session that used it last has ended.
    """


class LongestIdle(NamedTuple):
    """The one unused for longest goes first.

    Attributes:
      weights_first: kept weights have HBM before blocks that nobody uses; else such blocks stay
        where the next step would keep another layer.
    """

    weights_first: bool = True

    @property
    def traits(self) -> ForgetTraits:
        """Facts of this policy that hold at any time."""
        return ForgetTraits(weights_first=self.weights_first)


@block_worth.by(LongestIdle)
def _longest_idle(
    policy: LongestIdle, unused_s: float, uses: int, depth: int, is_over: bool
) -> float:  # fmt: skip
    return -unused_s


class SessionsOver(NamedTuple):
    """Blocks of sessions that have ended go first, the others as with `LongestIdle`.

    Attributes:
      weights_first: see `LongestIdle`.
      looks_at: blocks among which one whose session is over is looked for, the longest unused.
    """

    weights_first: bool = True
    looks_at: int = 64

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if self.looks_at < 1:
            raise SettingError(f"{where}.looks_at", self.looks_at, "a whole number above 0")

    @property
    def traits(self) -> ForgetTraits:
        """Facts of this policy that hold at any time."""
        return ForgetTraits(weights_first=self.weights_first, looks_at=self.looks_at)


@block_worth.by(SessionsOver)
def _sessions_over(
    policy: SessionsOver, unused_s: float, uses: int, depth: int, is_over: bool
) -> float:  # fmt: skip
    return -unused_s - (1e12 if is_over else 0.0)
