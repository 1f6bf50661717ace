"""The errors users see: a setting, data, a policy, a backend that cannot be right."""

from __future__ import annotations

__all__ = ["BackendError", "DataError", "PolicyError", "SettingError"]


class SettingError(ValueError):
    """A setting that cannot work: where it stands, its value, what is allowed, what to do.

    >>> print(SettingError("mig.sm_count", 0, "a number above 0"))
    mig.sm_count=0: expected a number above 0.
    """

    def __init__(self, field: str, value: object, allowed: str, hint: str = "") -> None:
        super().__init__(f"{field}={value!r}: expected {allowed}. {hint}".rstrip())
        self.field = field
        self.value = value
        self.allowed = allowed


class DataError(ValueError):
    """A file or table that cannot be used: which one, what is wrong with it, what to do.

    >>> print(DataError("trace.csv", "no column 'arrival_s'"))
    trace.csv: no column 'arrival_s'.
    """

    def __init__(self, source: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{source}: {problem}. {hint}".rstrip())
        self.source = source
        self.problem = problem


class PolicyError(DataError):
    """A policy that cannot decide: which one, and what is wrong with it.

    >>> print(PolicyError("Mine", "place returned 7, of 3 rows"))
    policy Mine: place returned 7, of 3 rows.
    """

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(f"policy {policy}", problem)
        self.policy = policy


class BackendError(ValueError):
    """An event that the serving loop cannot have caused: which one, and what is wrong with it.

    >>> print(BackendError("StepEnd", "device", 3, "a device that was told to run"))
    StepEnd.device=3: expected a device that was told to run.
    """

    def __init__(self, event: str, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{event}.{field}={value!r}: expected {allowed}.")
        self.event = event
        self.field = field
        self.value = value
