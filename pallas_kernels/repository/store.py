"""A folder of compiled executables."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import pickle
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pallas_kernels.program import Program
from pallas_kernels.repository.identity import Identity, identity
from pallas_kernels.repository.past_cache import past_jax_cache

FOLDER_VARIABLE = "PALLAS_KERNELS_REPOSITORY"
FORMAT = 1


class RepositoryError(ValueError):
    """An unusable repository or entry, with name and reason."""


class RepositoryWarning(UserWarning):
    """An unusable stored executable was compiled anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored executable."""

    identity: Identity
    sha256: str  # of the file that holds it
    nbytes: int
    made: str  # UTC, ISO 8601
    compile_s: float


def default_folder() -> Path:
    """Return the folder in `PALLAS_KERNELS_REPOSITORY`, or one in the user's cache."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        return Path(folder)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "pallas_kernels" / "repository"


class Repository:
    """Compiled programs in a folder that processes share.

    An entry is `<op>-<key>.json`, and an executable `<sha256>.bin` of its content. Readers see
    whole files; concurrent writers leave sound entries. Executables are pickles: only this user's
    files, in a folder without other writers, are opened.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        """Set the folder, read or created on first use."""
        self.folder = default_folder() if folder is None else Path(folder)

    def get(self, program: Program, device: Any = None) -> Callable[..., Any]:
        """Return the executable of `program`: loaded if stored, else compiled and stored.

        An unusable entry is replaced, with a `RepositoryWarning`.

        Args:
          program: with host arguments in `pinned_host` memory at run time.

        Raises:
          RepositoryError: no permission, or others' permission to write.
        """
        import jax

        device = jax.devices()[0] if device is None else device
        if (loaded := self.load(program, device)) is not None:
            return loaded
        compiled, seconds = compiled_for(program, device)
        self.put(identity(program, device), compiled, compile_s=seconds)
        return compiled

    def load(self, program: Program, device: Any) -> Callable[..., Any] | None:
        """Return the stored executable of `program`; None if absent, or unusable (with a warning).

        Raises:
          RepositoryError: others' permission to write.
        """
        key = identity(program, device)
        path = self._entry_path(key)
        if not path.exists():
            return None
        _require_own(self.folder)
        try:
            return self._load(path, key, device)
        except RepositoryError as error:
            warnings.warn(f"{error}; compiling it anew", RepositoryWarning, stacklevel=3)
            return None

    def put(self, key: Identity, executable: Any, *, compile_s: float) -> Entry:
        """Store an executable that `compiled_for` compiled.

        Raises:
          RepositoryError: no safe folder, or an executable that calls Python.
        """
        from jax.experimental import serialize_executable

        try:
            payload = pickle.dumps(serialize_executable.serialize(executable))
        except Exception as error:
            raise RepositoryError(
                f"{key.op} {key.name}: cannot be serialized ({type(error).__name__}: {error})"
            ) from error
        digest = hashlib.sha256(payload).hexdigest()
        entry = Entry(
            identity=key,
            sha256=digest,
            nbytes=len(payload),
            made=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            compile_s=round(compile_s, 3),
        )
        self.make_folder()
        _write(self.folder / f"{digest}.bin", payload)
        text = json.dumps({"format": FORMAT, **asdict(entry)}, indent=1)
        _write(self._entry_path(key), (text + "\n").encode())
        return entry

    def remove(self, entry: Entry) -> None:
        """Remove an entry, and its executable unless shared."""
        self._entry_path(entry.identity).unlink(missing_ok=True)
        if all(other.sha256 != entry.sha256 for other in self.entries()):
            (self.folder / f"{entry.sha256}.bin").unlink(missing_ok=True)

    def entries(self) -> tuple[Entry, ...]:
        """Return all readable entries, of any identity.

        Raises:
          RepositoryError: others' permission to write.
        """
        readable = []
        if self.folder.is_dir():
            _require_own(self.folder)
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(RepositoryError):
                readable.append(_read(path))
        return tuple(readable)

    def _entry_path(self, key: Identity) -> Path:
        return self.folder / f"{key.op}-{key.key}.json"

    def make_folder(self) -> None:
        """Create the folder, if absent.

        Raises:
          RepositoryError: no permission, or others' permission to write.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RepositoryError(f"{self.folder}: cannot be created ({error.strerror})") from error
        _require_own(self.folder)

    def _load(self, path: Path, identity: Identity, device: Any) -> Callable[..., Any]:
        from pallas_kernels.repository import onto

        entry = _read(path)
        if different := identity.differences(entry.identity):
            raise RepositoryError(f"{path.name}: is for {'; '.join(different)}")
        payload = _payload(self.folder, entry)
        try:
            # This user's own file: see `Repository`.
            serialized, in_tree, out_tree = pickle.loads(payload)  # noqa: S301
            executable: Callable[..., Any] = onto.load(serialized, in_tree, out_tree, device)
        except Exception as error:
            raise RepositoryError(
                f"{path.name}: jax cannot load it ({type(error).__name__}: {error})"
            ) from error
        return executable


def compiled_for(
    program: Program, device: Any, *, to_store: bool = True
) -> tuple[Callable[..., Any], float]:
    """Compile a program for a jax device; return executable and seconds.

    Args:
      to_store: whether for `put`; False allows jax's compilation cache.
    """
    import jax

    lib: Any = jax  # several of its functions are untyped
    abstract = [
        lib.ShapeDtypeStruct(
            a.shape,
            lib.numpy.dtype(a.dtype),
            sharding=jax.sharding.SingleDeviceSharding(
                device, memory_kind="pinned_host" if a.host else device.default_memory().kind
            ),
        )
        for a in program.arguments
    ]
    start = time.perf_counter()
    jitted = jax.jit(program.function, donate_argnums=program.donated)
    lowered = jitted.lower(*abstract)
    with past_jax_cache() if to_store else contextlib.nullcontext():
        executable: Callable[..., Any] = lowered.compile()
    return executable, time.perf_counter() - start


def _read(path: Path) -> Entry:
    try:
        _require_own(path)
        fields = json.loads(path.read_text("utf-8"))
        if (file_format := fields.pop("format")) != FORMAT:
            raise RepositoryError(f"{path.name}: of another format, {file_format}, than {FORMAT}")
        key = Identity.from_json(fields.pop("identity"))
        entry = Entry(identity=key, **fields)
        whole = len(bytes.fromhex(entry.sha256)) == 32 and int(entry.nbytes) == entry.nbytes
    except RepositoryError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RepositoryError(f"{path.name}: cannot be read ({error})") from error
    if not whole:
        raise RepositoryError(f"{path.name}: sha256 or nbytes is invalid")
    return entry


def _payload(folder: Path, entry: Entry) -> bytes:
    path = folder / f"{entry.sha256}.bin"
    if not path.exists():
        raise RepositoryError(f"{path.name}: missing")
    _require_own(path)
    payload = path.read_bytes()
    if len(payload) != entry.nbytes or hashlib.sha256(payload).hexdigest() != entry.sha256:
        raise RepositoryError(f"{path.name}: {len(payload)} bytes, expected those that were stored")
    return payload


def _require_own(path: Path) -> None:
    """Raise unless the file or folder is this user's alone."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RepositoryError(
            f"{path}: expected to belong to this user and to be writable by nobody else, since "
            f"loading what is in it runs it"
        )


def _write(path: Path, content: bytes) -> None:
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(path)
    except OSError as error:
        raise RepositoryError(f"{path}: cannot be written ({error.strerror})") from error
