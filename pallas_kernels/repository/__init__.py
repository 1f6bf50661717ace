"""Kernel repository: compiled executables by op, shape, device and version, checked on load."""

from pallas_kernels.repository.identity import (
    Identity,
    describe,
    identity,
    source_hash,
)
from pallas_kernels.repository.store import (
    FOLDER_VARIABLE,
    Entry,
    Finding,
    Repository,
    RepositoryError,
    RepositoryWarning,
    compiled_for,
    default_folder,
)

__all__ = [
    "FOLDER_VARIABLE",
    "Entry",
    "Finding",
    "Identity",
    "Repository",
    "RepositoryError",
    "RepositoryWarning",
    "compiled_for",
    "default_folder",
    "describe",
    "identity",
    "source_hash",
]
