"""Measurement of a worker's memory without its KV pool: `python -m c2c.engine.profile`.

It reads and writes one line of JSON. Every model computes the largest step of a worker, in the
smallest sufficient pool.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import msgspec

from c2c.engine.devices import check_seen
from c2c.engine.messages import Setup
from c2c.errors import DataError, SettingError
from c2c.transformer import (
    Executables,
    KvPool,
    Model,
    Runner,
    Sampling,
    Shapes,
    Step,
    load,
    superblocks_for,
)
from c2c.transformer.pages import PAGE_TOKENS
from c2c.transformer.weights.checkpoint import DTYPES
from pallas_kernels.host_memory import HostMemoryError

__all__ = ["Profiled", "main", "measured"]

_STATUS = Path("/proc/self/status")


class Profiled(msgspec.Struct, kw_only=True):
    """Measured memory of a worker, for the sizing of its pool.

    Attributes:
      on_gpu: whether a GPU computed.
      limit_bytes: GPU memory that a process of jax may take; 0 on a CPU.
      held_bytes: most memory that the largest steps held beside the pool; on a CPU without the
        weights that workers share.
      argument_bytes: arguments of the largest executable, from the compiler.
      temporary_bytes: temporaries of the largest executable, from the compiler.
      failed: reason why nothing could be measured.
    """

    on_gpu: bool = False
    limit_bytes: int = 0
    held_bytes: int = 0
    argument_bytes: int = 0
    temporary_bytes: int = 0
    failed: str = ""


def measured(setup: Setup) -> Profiled:
    """Compute the largest step of every model, and return the memory that it needed.

    Models that cannot be loaded are skipped, as they will not be served either.

    Raises:
      DataError: this process sees an unplanned device, or no model can be loaded.
    """
    if setup.bound:
        check_seen(setup.bound)
    shapes = Shapes(rows=setup.rows[-1:], budgets=setup.budgets[-1:], width=setup.width)
    blocks = shapes.rows[0] + -(-_prompt(shapes) // PAGE_TOKENS) + 1
    pool = KvPool(superblocks_for(blocks), setup.superblock, dtype=DTYPES[setup.dtype])
    held: list[Model] = []
    with _store() as executables:
        for item in sorted(setup.models, key=lambda i: i.is_kept):  # unkept first
            try:
                model = load(
                    Path(item.path), setup.dtype, linear=setup.linear, pool=item.pool,
                    progress=False, executables=executables,
                )  # fmt: skip
            except (DataError, SettingError, HostMemoryError):
                continue  # the worker reports the reason
            _largest(model, pool, shapes)
            if item.is_kept:
                held.append(model)
            elif setup.owns_files and item.pool is not None:
                Path(item.pool).unlink(missing_ok=True)
        if not executables.compiled:
            raise DataError("catalog", "none of its models can be loaded")
        arguments, temporaries = executables.most_bytes()
        limit, taken = _taken(temporaries)
    return Profiled(
        on_gpu=jax.default_backend() == "gpu",
        limit_bytes=limit,
        held_bytes=max(0, taken - pool.nbytes),
        argument_bytes=arguments,
        temporary_bytes=temporaries,
    )


@contextmanager
def _store() -> Iterator[Executables]:
    """Yield a temporary store of executables, as no worker has a pool of this size."""
    with tempfile.TemporaryDirectory() as folder:
        yield Executables(folder, strict=False)


def _prompt(shapes: Shapes) -> int:
    """Return the length of the longest chunk that fits the context, in tokens."""
    return min(shapes.budgets[0], shapes.context - 1)


def _largest(model: Model, pool: KvPool, shapes: Shapes) -> None:
    """Compute the longest chunk together with the most decodes."""
    runner = Runner(model.executor(pool), shapes)
    decodes = tuple(range(shapes.rows[0] - 1))
    for request in decodes:
        runner.submit(request, [0], new=3, sampling=Sampling())
        runner.finish(runner.start(Step(fill=(request, 1))))
    last, tokens = len(decodes), _prompt(shapes)
    runner.submit(last, [0] * tokens, new=1, sampling=Sampling())
    runner.finish(runner.start(Step(fill=(last, tokens), decode=decodes)))
    for request in runner.requests:
        runner.cancel(request)


def _taken(temporaries: int) -> tuple[int, int]:
    """Return this process's limit of GPU memory and its peak use, in bytes.

    On a CPU the limit is 0, and the peak is private memory plus temporaries of the largest step.
    """
    stats = jax.devices()[0].memory_stats()
    if stats is not None:
        return int(stats["bytes_limit"]), int(stats["peak_bytes_in_use"])
    for line in _STATUS.read_text("ascii").splitlines() if _STATUS.is_file() else ():
        if line.startswith("RssAnon:"):
            return 0, 1024 * int(line.split()[1]) + temporaries
    import resource

    return 0, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> int:
    """Measure one setup; return the exit status."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # prints of libraries go to standard error
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setup)
    try:
        said = measured(setup)
    except (DataError, SettingError, HostMemoryError) as error:
        said = Profiled(failed=str(error))
    answers.write(msgspec.json.encode(said) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
