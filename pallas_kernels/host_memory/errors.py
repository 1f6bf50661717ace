"""Errors of host memory: each is a ValueError that says what to do."""

from __future__ import annotations


class HostMemoryError(ValueError):
    """An array in host memory was used, or asked for, in a way that cannot work."""


class HostAttributeError(HostMemoryError, AttributeError):
    """A method of device arrays was asked of a host array; `hasattr` sees it as absent."""


class PoolError(HostMemoryError):
    """A shared pool cannot do what was asked: a wrong name, shape or type, a missing file."""


class PoolSpaceError(PoolError):
    """There is not enough space for a pool: how much is needed and how much there is."""


class PoolCorruptError(PoolError):
    """A file is no pool, is cut off, or does not hold the bytes that its header promises."""


class PoolStaleError(PoolError):
    """A pool is sound but not the one expected: other content, written to, or already removed."""


class PoolInUseError(PoolError):
    """A pool has users that stand in the way: arrays of this process, or other processes."""
