"""Pools and a place for them that is gone after each test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from pallas_kernels.host_memory import PoolError, SharedPool, TensorSpec, shared_memory_path


def created(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> SharedPool:
    """Return a pool of these tensors."""
    specs = {n: TensorSpec(shape=a.shape, dtype=a.dtype.name) for n, a in tensors.items()}

    def fill(name: str, into: np.ndarray) -> None:
        into[...] = tensors[name]

    return SharedPool.open_or_create(path, specs, fill, metadata=metadata)


def shared_memory() -> Path:
    try:
        return shared_memory_path(f"pallas-kernels-test-{os.getpid()}")
    except PoolError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["file", "shared memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A pool's path: on disk and in POSIX shared memory."""
    place = tmp_path / "pool" if request.param == "file" else shared_memory()
    yield place
    place.unlink(missing_ok=True)
    assert not place.with_name(place.name + ".partial").exists()


@pytest.fixture
def shm_path() -> Iterator[Path]:
    """A pool's path in POSIX shared memory, for tests that take long."""
    place = shared_memory()
    yield place
    place.unlink(missing_ok=True)
    assert not place.with_name(place.name + ".partial").exists()
