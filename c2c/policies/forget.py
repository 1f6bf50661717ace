"""Eviction of blocks from a prefix cache, and their precedence over kept weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.returns import A_NUMBER
from c2c.policies.traits import ForgetTraits

__all__ = ["LongestIdle", "SessionsOver", "block_worth"]


@decision(returns=A_NUMBER)
def block_worth(policy: Any, unused_s: float, uses: int, depth: int, is_over: bool) -> float:
    """Return the worth of an unused block; the block of least worth is evicted first.

    Args:
      policy: policy that decides.
      unused_s: seconds since its last use.
      uses: number of requests that have used it.
      depth: blocks of its prefix before it.
      is_over: whether the session that last used it has ended.
    """


class LongestIdle(NamedTuple):
    """Eviction of the block unused for longest.

    Attributes:
      weights_first: whether kept weights take HBM from unused blocks; else unused blocks keep room
        that the next step would use for another layer.
    """

    weights_first: bool = True

    @property
    def traits(self) -> ForgetTraits:
        """Constant traits of this policy."""
        return ForgetTraits(weights_first=self.weights_first)


@block_worth.by(LongestIdle)
def _longest_idle(
    policy: LongestIdle, unused_s: float, uses: int, depth: int, is_over: bool
) -> float:  # fmt: skip
    return -unused_s


class SessionsOver(NamedTuple):
    """Eviction of ended sessions' blocks first, of others as with `LongestIdle`.

    Attributes:
      weights_first: see `LongestIdle`.
      looks_at: number of longest-unused blocks searched for one of an ended session.
    """

    weights_first: bool = True
    looks_at: int = 64

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if self.looks_at < 1:
            raise SettingError(f"{where}.looks_at", self.looks_at, "a whole number above 0")

    @property
    def traits(self) -> ForgetTraits:
        """Constant traits of this policy."""
        return ForgetTraits(weights_first=self.weights_first, looks_at=self.looks_at)


@block_worth.by(SessionsOver)
def _sessions_over(
    policy: SessionsOver, unused_s: float, uses: int, depth: int, is_over: bool
) -> float:  # fmt: skip
    return -unused_s - (1e12 if is_over else 0.0)
