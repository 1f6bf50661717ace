"""Kernel repository: executables by op, shape, device and version."""

from pallas_kernels.repository.identity import (
    Identity,
    identity,
    present_versions,
    source_hash,
)
from pallas_kernels.repository.store import (
    FOLDER_VARIABLE,
    Entry,
    Repository,
    RepositoryError,
    RepositoryWarning,
    compiled_for,
    default_folder,
)

__all__ = [
    "FOLDER_VARIABLE",
    "Entry",
    "Identity",
    "Repository",
    "RepositoryError",
    "RepositoryWarning",
    "compiled_for",
    "default_folder",
    "identity",
    "present_versions",
    "source_hash",
]
