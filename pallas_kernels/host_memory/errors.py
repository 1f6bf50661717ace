"""Errors of host memory."""

from __future__ import annotations


class HostMemoryError(ValueError):
    """An operation or placement unsupported in host memory."""


class HostAttributeError(HostMemoryError, AttributeError):
    """A method that a host array lacks; `hasattr` returns False."""


class PoolError(HostMemoryError):
    """An invalid request to a shared pool."""


class PoolSpaceError(PoolError):
    """Not enough space for a pool."""


class PoolCorruptError(PoolError):
    """A file that is no pool, truncated, or damaged."""


class PoolStaleError(PoolError):
    """An unexpected sound pool: other content, written to, or removed."""


class PoolInUseError(PoolError):
    """A pool in use by arrays of this or other processes."""
