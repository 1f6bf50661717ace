"""Errors of host memory."""

from __future__ import annotations


class HostMemoryError(ValueError):
    """An operation or placement that arrays in host memory do not support."""


class HostAttributeError(HostMemoryError, AttributeError):
    """A method of device arrays that a host array lacks; `hasattr` returns False for it."""


class PoolError(HostMemoryError):
    """An invalid request to a shared pool."""


class PoolSpaceError(PoolError):
    """Not enough space for a pool."""


class PoolCorruptError(PoolError):
    """A file that is no pool, truncated, or unlike its header's hashes."""


class PoolStaleError(PoolError):
    """A sound pool that is not the expected one: other content, written to, or removed."""


class PoolInUseError(PoolError):
    """A pool that is in use by arrays of this process or by other processes."""
