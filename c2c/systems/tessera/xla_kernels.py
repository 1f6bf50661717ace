"""Operations and bytes of an XLA program's launches."""

from __future__ import annotations

from collections.abc import Sequence

from c2c.cost.kernel_graph import Efficiency, StepKernel, TimedGpu, Transfer, Weights, step_s
from c2c.systems.program import Slice
from c2c.systems.program.xla import XlaStep
from c2c.systems.tessera.ddg import graph_of
from c2c.systems.tessera.touches import Touch
from c2c.systems.tessera.work import Work

__all__ = ["program_work", "xla_kernels"]

_ELEMENT_BYTES = 2


# Bytes are those of the slices that a launch reads and writes; flops of products follow from their
# weights. Only a launch's name tells that it uses a part of a slice: gathers read as much as they
# write, and an update in place writes as much as its other inputs hold.
def xla_kernels(step: XlaStep, touches: Sequence[Touch], tokens: int) -> tuple[StepKernel, ...]:
    """Return a kernel for each launch, in order.

    Args:
      tokens: of the step, rows of products.
    """
    standing = {part.buffer for part in step.program.inputs}
    standing -= {part.buffer for touch in touches for part in touch.writes}
    return tuple(
        _kernel(name, touch, standing, tokens)
        for name, touch in zip(step.names, touches, strict=True)
    )


def program_work(
    step: XlaStep,
    touches: Sequence[Touch],
    gpus: Sequence[TimedGpu],
    tokens: int,
    *,
    efficiency: Efficiency | None = None,
    home: int = 0,
) -> Work:
    """Return a program as the planner's input.

    Launches with unknown accesses are pinned to `home`.

    Args:
      home: their GPU.
    """
    graph = graph_of(touches, step.carried)
    kernels = xla_kernels(step, touches, tokens)
    columns = [step_s(kernels, gpu, efficiency) for gpu in gpus]
    return Work(
        names=step.names,
        times_s=tuple(tuple(map(float, row)) for row in zip(*columns, strict=True)),
        transfers=tuple(Transfer(e.source, e.target, float(e.nbytes)) for e in graph.edges),
        weights=tuple(
            Weights(float(step.program.buffers[buffer].nbytes), readers)
            for buffer, readers in sorted(graph.given.items())
        ),
        pinned=dict.fromkeys(graph.opaque, home),
    )


def _kernel(path: str, touch: Touch, standing: set[int], tokens: int) -> StepKernel:
    name = path.rpartition("/")[2]
    in_place = set(touch.reads) & set(touch.writes)
    reads = [part for part in touch.reads if part not in in_place]
    writes = [part for part in touch.writes if part not in in_place]
    written = _nbytes(writes) + (_nbytes(reads) if in_place else 0)
    weights = [part for part in reads if part.buffer in standing]
    near = [part for part in reads if part.buffer not in standing]
    is_product = "gemm" in name or "dot" in name
    if "gather" in name:
        far, read = written, 0.0
    else:
        far, read = _nbytes(weights), _nbytes(near)
    flops = 2 * tokens * far / _ELEMENT_BYTES if is_product else 0.0
    columns = written / (_ELEMENT_BYTES * tokens)
    return StepKernel(
        kind=name, layer=-1, tensor_flops=flops, weight_bytes=far, read_bytes=read,
        write_bytes=written,
        product=(tokens, far / (_ELEMENT_BYTES * columns), columns) if flops else None,
    )  # fmt: skip


def _nbytes(parts: Sequence[Slice]) -> float:
    return float(sum(part.nbytes for part in parts))
