"""`SharedPool`: named tensors in pages that many processes map."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_kernels.host_memory import cuda, files, layout
from pallas_kernels.host_memory.errors import (
    PoolCorruptError,
    PoolError,
    PoolInUseError,
    PoolStaleError,
)
from pallas_kernels.host_memory.layout import Header, TensorSpec
from pallas_kernels.host_memory.pages import Pages, map_pages, release_or_leave, root_of, shaped

if TYPE_CHECKING:
    from pallas_kernels.host_memory.arrays import HostArray
else:
    HostArray = Any  # its module imports jax

_CREATE_WAIT_S = 600.0


class SharedPool:
    """Named tensors in shared pages, from `open` or `open_or_create`, fixed at creation.

    A context manager; `close` it after use.

    The pages belong to a file, on disk or in POSIX shared memory (`shared_memory_path`). With CUDA
    they are registered for a GPU's reads.
    """

    def __init__(self, path: Path, pages: Pages, header: Header) -> None:
        self.path = path
        self._pages = pages
        self._header = header
        self._views: list[tuple[str, weakref.ref[np.ndarray]]] = []

    @classmethod
    def open_or_create(
        cls,
        path: Path | str,
        specs: Mapping[str, TensorSpec],
        fill: Callable[[str, np.ndarray], None],
        *,
        metadata: Mapping[str, str] | None = None,
        wait_s: float = _CREATE_WAIT_S,
    ) -> SharedPool:
        """Open the pool, or create it; of concurrent processes, one does.

        Args:
          specs: shape and type of each tensor.
          fill: gets a tensor's name and the shared array to write to.
          metadata: text, such as checkpoint and revision; an existing pool must have it, too.
          wait_s: longest wait for another creator.

        Raises:
          PoolStaleError: other tensors or metadata.
          PoolCorruptError: no sound pool.
          PoolSpaceError: too little space.
          PoolInUseError: in creation after `wait_s`.
        """
        path, header = Path(path), layout.plan(specs, metadata or {})
        with files.new_file(path, wait_s=wait_s) as fd:
            if fd is not None:
                files.reserve(fd, header.nbytes, path)
                # The lock travels with this second descriptor, which the pages will own.
                pages = map_pages(os.dup(fd), header.nbytes, writable=True)
                try:
                    for name, entry in header.entries.items():
                        fill(name, shaped(root_of(pages, entry), entry))
                    start = layout.encode(header)
                    pages[: len(start)] = start
                finally:
                    release_or_leave(pages)
        if fd is not None:  # read through a mapping that cannot write
            return cls(path, map_pages(fd, header.nbytes, writable=False), header)
        pool = cls.open(path)
        if dict(pool.specs) != dict(specs) or dict(pool.metadata) != dict(header.metadata):
            pool.close()
            raise PoolStaleError(
                f"{path}: holds other tensors or metadata than expected; remove_pool it to make "
                f"it anew"
            )
        return pool

    @classmethod
    def open(cls, path: Path | str) -> SharedPool:
        """Map an existing pool and read its header.

        Raises:
          PoolError: no file, or no permission.
          PoolCorruptError: no sound pool.
        """
        path = Path(path)
        fd = files.open_file(path)
        size = os.fstat(fd).st_size
        if size < layout.PROLOGUE.size:
            os.close(fd)
            raise PoolCorruptError(f"{path}: {size} bytes, expected a pool")
        pages = map_pages(fd, size, writable=False)
        try:
            with memoryview(pages) as start:
                header = layout.decode(start, size, path)
        except BaseException:
            pages.release()
            raise
        return cls(path, pages, header)

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Shape and type of each tensor, in file order."""
        return {name: entry.spec for name, entry in self._header.entries.items()}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The text given when the pool was made."""
        return dict(self._header.metadata)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._header.nbytes

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._pages.closed

    @property
    def pinned(self) -> bool:
        """True if the pages are registered with CUDA."""
        return self._pages.registrar is not None

    def numpy(self, name: str) -> np.ndarray:
        """Return a tensor as a read-only NumPy array over the shared pages.

        Raises:
          PoolError: no such tensor, or a closed pool.
        """
        self._require_open()
        entry = self._header.entries.get(name)
        if entry is None:
            raise PoolError(f"{self.path}: no tensor {name!r} among {', '.join(self)}"[:1000])
        root = root_of(self._pages, entry)
        self._views = [(n, ref) for n, ref in self._views if ref() is not None]
        self._views.append((name, weakref.ref(root)))
        view = shaped(root, entry)
        view.flags.writeable = False
        return view

    def array(self, name: str, *, device: Any = None) -> HostArray:
        """Return a tensor as a `HostArray` over the shared pages, registered with CUDA.

        Args:
          device: of the host memory; None: the first.

        Raises:
          PoolError: as for `numpy`, or CUDA or jax refuses the pages.
        """
        import jax as jax_module

        from pallas_kernels.host_memory import dlpack
        from pallas_kernels.host_memory.arrays import HostArray
        from pallas_kernels.host_memory.placement import HOST

        device = jax_module.devices()[0] if device is None else device
        view = self.numpy(name)
        if device.platform == "gpu":
            self.pin()
            exported = dlpack.Exported(view, dlpack.CUDA_HOST, device.local_hardware_id or 0)
            array = jax_module.dlpack.from_dlpack(exported, copy=False)
        elif device.platform == "cpu":
            sharding = jax_module.sharding.SingleDeviceSharding(device, memory_kind=HOST)
            array = jax_module.device_put(view, sharding, may_alias=True)
        else:
            raise PoolError(f"device={device}: expected a GPU or CPU")
        if view.nbytes and array.unsafe_buffer_pointer() != view.ctypes.data:
            raise PoolError(f"{self.path}: jax copied {name} instead of sharing its pages")
        return HostArray(array)

    def arrays(self, *, device: Any = None) -> dict[str, HostArray]:
        """Return every tensor as a `HostArray`; see `array`."""
        return {name: self.array(name, device=device) for name in self._header.entries}

    def pin(self, registrar: cuda.Registrar | None = None) -> None:
        """Register the pages with CUDA, once.

        Args:
          registrar: None: this machine's CUDA runtime.

        Raises:
          PoolError: no CUDA runtime with a GPU, or its refusal.
        """
        self._require_open()
        if self.pinned:
            return
        if registrar is None:
            registrar, reason = cuda.find_runtime()
            if registrar is None:
                raise PoolError(f"{self.path}: cannot be registered with CUDA: {reason}")
        self._pages.pin(registrar)

    def close(self) -> None:
        """Unregister and unmap the pages.

        Raises:
          PoolInUseError: arrays of this pool live in this process, with names.
        """
        if self.closed:
            return
        if names := self._alive():
            raise PoolInUseError(f"{self.path}: arrays of {', '.join(names)} are alive; drop them")
        try:
            self._pages.release()
        except BufferError as error:
            raise PoolInUseError(f"{self.path}: memory views of it are still alive") from error

    def __enter__(self) -> SharedPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # The traceback may hold arrays; the pages go when they do.
            with suppress(PoolInUseError):
                self.close()

    def __contains__(self, name: object) -> bool:
        return name in self._header.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.entries)

    def __len__(self) -> int:
        return len(self._header.entries)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "pinned" if self.pinned else "shared pages"
        return f"SharedPool({str(self.path)!r}, {len(self)} tensors, {self.nbytes} bytes, {state})"

    def _alive(self) -> list[str]:
        def alive() -> list[str]:
            return sorted({name for name, ref in self._views if ref() is not None})

        if alive():
            gc.collect()  # arrays in reference cycles
        if alive() and (jax_module := sys.modules.get("jax")):
            # jax lets go of buffers of others when it next runs, not at once
            jax_module.device_put(np.zeros(1, np.int8)).block_until_ready()
        return alive()

    def _require_open(self) -> None:
        if self.closed:
            raise PoolError(f"{self.path}: closed, expected an open pool")
