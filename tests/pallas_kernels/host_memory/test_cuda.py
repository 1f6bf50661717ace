"""Registration with CUDA against a stand-in for its runtime; nothing here needs a GPU."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels.host_memory import (
    DTYPES,
    PoolError,
    PoolInUseError,
    SharedPool,
    cuda,
    dlpack,
    find_runtime,
)
from tests.pallas_kernels.host_memory.conftest import created
from tests.pallas_kernels.host_memory.processes import Other


class Call:
    """A C function: counts its calls, returns a status, has the attributes that ctypes sets."""

    def __init__(self, action: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._action = action

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args)
        return self._action(*args)


class Library:
    """libcudart as far as `CudaRuntime` uses it."""

    def __init__(
        self, *, gpus: int = 1, status: int = 0, unregister_status: int = 0, shift: int = 0
    ) -> None:
        def count(out: Any) -> int:
            out._obj.value = gpus
            return 0 if gpus else 100

        def device_pointer(out: Any, address: int, _flags: int) -> int:
            out._obj.value = address + shift
            return 0

        self.cudaGetDeviceCount = Call(count)
        self.cudaHostRegister = Call(lambda *_: status)
        self.cudaHostUnregister = Call(lambda *_: unregister_status)
        self.cudaHostGetDevicePointer = Call(device_pointer)
        self.cudaGetErrorString = Call(lambda code: b"operation not supported")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SharedPool]:
    made = created(tmp_path / "pool", {"w": np.ones((4, 8), np.float32)})
    yield made
    made.close()


def test_pages_are_registered_once_read_only_and_unregistered_before_unmapping(
    tmp_path: Path,
) -> None:
    library = Library()
    pool = created(tmp_path / "pool", {"w": np.ones(4, np.float32)})
    for _ in range(2):
        pool.pin(cuda.CudaRuntime(library))
    assert pool.pinned
    assert "pinned" in repr(pool)
    ((address, nbytes, flags),) = library.cudaHostRegister.calls
    assert address % 4096 == 0
    assert (nbytes, flags) == (pool.nbytes, cuda.PORTABLE | cuda.MAPPED | cuda.READ_ONLY)
    view = pool.numpy("w")
    assert address < view.ctypes.data < address + nbytes
    with pytest.raises(PoolInUseError):
        pool.close()
    assert library.cudaHostUnregister.calls == []
    del view
    pool.close()
    assert library.cudaHostUnregister.calls == [(address,)]
    assert not pool.pinned


def test_a_dropped_pool_stays_registered_while_arrays_live(tmp_path: Path) -> None:
    library = Library()
    pool = created(tmp_path / "pool", {"w": np.ones(4, np.float32)})
    pool.pin(cuda.CudaRuntime(library))
    view = pool.numpy("w")
    del pool
    gc.collect()
    assert library.cudaHostUnregister.calls == []
    assert view.sum() == 4
    del view
    gc.collect()
    assert len(library.cudaHostUnregister.calls) == 1


def test_where_read_only_pages_cannot_be_pinned_they_are_made_writable(tmp_path: Path) -> None:
    library = Library()
    library.cudaHostRegister = Call(lambda *given: 801 if given[2] & cuda.READ_ONLY else 0)
    with created(tmp_path / "pool", {"w": np.ones(4, np.float32)}) as pool:
        pool.pin(cuda.CudaRuntime(library))
        assert [call[2] for call in library.cudaHostRegister.calls] == [11, 3]
        address = library.cudaHostRegister.calls[0][0]
        maps = Path("/proc/self/maps").read_text("ascii").splitlines()
        assert [line.split()[1] for line in maps if line.startswith(f"{address:x}-")] == ["rw-s"]
        assert not pool.numpy("w").flags.writeable


def test_refusals_say_what_cuda_says(pool: SharedPool) -> None:
    with pytest.raises(PoolError, match=r"error 2\)$"):
        pool.pin(cuda.CudaRuntime(Library(status=2)))
    moved = Library(shift=64)
    with pytest.raises(PoolError, match="the same address"):
        pool.pin(cuda.CudaRuntime(moved))
    assert len(moved.cudaHostUnregister.calls) == 2
    assert not pool.pinned


def test_unregistering_may_fail_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="cudaHostUnregister"):
        cuda.CudaRuntime(Library(unregister_status=1)).unregister(4096)


def test_the_runtime_is_looked_for_and_its_absence_explained() -> None:
    def load(name: str) -> Any:
        if name == "good":
            return Library()
        if name == "no gpu":
            return Library(gpus=0)
        raise OSError("cannot open")

    runtime, reason = find_runtime(load=load, candidates=lambda: iter(["bad", "good"]))
    assert isinstance(runtime, cuda.CudaRuntime)
    assert isinstance(runtime, cuda.Registrar)
    assert reason == ""
    assert find_runtime(load=load, candidates=lambda: iter(["no gpu"])) == (
        None,
        "no gpu finds no GPU",
    )
    runtime, reason = find_runtime(load=load, candidates=lambda: iter(["bad"]))
    assert runtime is None
    assert "bad (cannot open)" in reason
    assert find_runtime(candidates=lambda: iter([]))[1] == "no CUDA runtime found"


def test_pinning_without_cuda_says_why(pool: SharedPool) -> None:
    if find_runtime()[0] is not None:
        pytest.skip("this machine has CUDA")
    with pytest.raises(PoolError, match=r"cannot be registered with CUDA: .+"):
        pool.pin()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(3, 5), (16,), ()])
def test_dlpack_gives_jax_the_very_memory(dtype: str, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    values = raw[start : start + size].view(DTYPES[dtype]).reshape(shape)
    values[...] = np.arange(values.size, dtype=np.float32).reshape(shape).astype(DTYPES[dtype])
    array = jax.dlpack.from_dlpack(dlpack.Exported(values, dlpack.CPU), copy=False)
    assert array.unsafe_buffer_pointer() == values.ctypes.data
    assert array.dtype == values.dtype
    assert np.asarray(array).tobytes() == values.tobytes()


def test_dlpack_holds_memory_until_jax_lets_go() -> None:
    raw = np.zeros(4096 + 64, np.uint8)
    values = raw[-raw.ctypes.data % 64 :][:4096]
    held = weakref.ref(values)
    array = jax.dlpack.from_dlpack(dlpack.Exported(values, dlpack.CPU), copy=False)
    del values
    gc.collect()
    assert held() is not None
    del array
    gc.collect()
    assert held() is None


def test_a_process_may_end_with_arrays_alive() -> None:
    with Other(
        "import jax, mmap, numpy as np",
        "from pallas_kernels.host_memory import dlpack",
        "values = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)",
        "a = jax.dlpack.from_dlpack(dlpack.Exported(values, dlpack.CPU), copy=False)",
    ) as other:
        assert other("dlpack.holds()") == "1"
        assert other.end() == 0


def test_dlpack_says_pinned_host_memory_in_its_capsule() -> None:
    exported = dlpack.Exported(np.zeros(4, np.float32), dlpack.CUDA_HOST, 2)
    assert exported.__dlpack_device__() == (3, 2)
    before = dlpack.holds()
    capsule = exported.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = dlpack._DLManagedTensor.from_address(get(capsule, b"dltensor"))
    tensor = managed.dl_tensor
    assert (tensor.device_type, tensor.device_id, tensor.ndim, tensor.shape[0]) == (3, 2, 1, 4)
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
    managed.deleter(ctypes.pointer(managed))
    assert dlpack.holds() == before


def test_dlpack_refuses_what_it_cannot_describe() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        dlpack.Exported(np.zeros((4, 4), np.float32)[:, ::2], dlpack.CPU)
    with pytest.raises(BufferError, match="no code"):
        dlpack.Exported(np.zeros(2, "U1"), dlpack.CPU).__dlpack__()
