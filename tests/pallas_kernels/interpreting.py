"""Run interpreted kernels with a time limit, and count what they load."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.gemm import Config
from tests.pallas_kernels import quick_interpreter

quick_interpreter.install()

SECONDS = 90.0  # a case takes about 1 on a quiet machine
LOOKS = 6  # as often again, while the process computes: one that waits for a barrier does not
BUSY_S = 1.0

SMALL = Config(tm=64, tn=64, x_stages=2, w_stages=2, warpgroups=1, sm_count=4)


def within[T](run: Callable[[], T], seconds: float = SECONDS) -> T:
    """Return `run()`, or fail the test if it takes longer without computing.

    A missing barrier arrival makes an interpreted kernel wait for ever, inside jax, where no signal
    reaches. So it runs in a thread that can be given up.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(run())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for _ in range(LOOKS):
        before_s = time.process_time()
        thread.join(seconds)
        if not thread.is_alive() or time.process_time() - before_s < BUSY_S:
            break
    if thread.is_alive():
        # When Python ends it waits for the stuck kernel's pool of threads; this comes before that,
        # where `atexit` comes after it and the process would never end.
        threading._register_atexit(_end)  # type: ignore[attr-defined]
        pytest.fail(f"no result after {seconds} s: a barrier is waited for and never arrives")
    if failed:
        reset()
        raise failed[0]
    return done[0]


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def reset() -> None:
    """Clear what a kernel that raised has left in jax's interpreter."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    gpu_callbacks.reset_gpu_interpret_mode_state()


def races_found() -> bool:
    """Return True if the last kernel that ran with race detection had a race."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    return bool(gpu_callbacks.get_races().races_found)


@dataclass(frozen=True, slots=True)
class Copy:
    """One TMA copy as interpret mode carries it out."""

    tile: tuple[int, ...]  # shape asked for, of a multicast one the whole
    nbytes: int  # what lies inside the array in global memory, as TMA clips it
    of: str  # type of its elements
    first: int  # where along the array's first axis
    cluster: int  # that asked for it
    rows: int = 0  # extent of the array's first axis


@dataclass
class Counted:
    """Every copy of a launch."""

    loads: list[Copy] = field(default_factory=list)
    stores: list[Copy] = field(default_factory=list)


def count_copies(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Record every copy between global and shared memory from here on, a multicast tile once."""
    from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks

    counted, lock = Counted(), threading.Lock()

    def record(task: Any, where: str, side: str, copies: list[Copy]) -> None:
        original = task.pre_read

        def pre_read(self: Any, tma_thread_id: int, shared_memory: Any) -> None:
            buffer = shared_memory.buffer_shape_and_dtype(getattr(self, f"{side}_allocation_key"))
            access = getattr(self, f"{side}_access")
            inside = [
                max(0, min(taken.stop, extent) - taken.start)
                for extent, taken in zip(buffer.shape, access.range, strict=True)
                if isinstance(taken, slice)
            ]
            nbytes = math.prod(inside) * np.dtype(buffer.dtype).itemsize
            leading = access.range[0]
            first = int(leading.start if isinstance(leading, slice) else leading)
            (cluster,) = self.mesh_location.cluster_coords or self.mesh_location.block_coords
            with lock:
                of = str(buffer.dtype)
                copies.append(
                    Copy(
                        getattr(self, "tile", tuple(access.shape)), nbytes, of, first, cluster,
                        buffer.shape[0],
                    )
                )  # fmt: skip
            original(self, tma_thread_id, shared_memory)

        monkeypatch.setattr(task, where, pre_read)

    record(gpu_callbacks.AsyncCopyGmemToSmemTask, "pre_read", "src", counted.loads)
    record(gpu_callbacks.AsyncCopySmemToGmemTask, "pre_read", "dst", counted.stores)
    return counted


def operands(
    m: int, k: int, n: int, *, dtype: str = "bfloat16", seed: int = 0, w_layout: str = "kn"
) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    """Return (x, w as stored in `w_layout`, w as [K, N]), unit normal."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = rng.standard_normal((m, k)).astype(kind)
    w = rng.standard_normal((k, n)).astype(kind)
    stored = np.ascontiguousarray(w.T) if w_layout == "nk" else w
    return jax.numpy.asarray(x), stored, w
