"""Compiling programs for a GPU on a machine without one, and reading what came out.

Needs jax's CUDA compiler (see `missing`), no driver. The compiler takes its settings from the
environment when it is first used, so that `prepare` comes before anything that compiles, in a
process of its own: `python -m pallas_kernels.ahead_of_time`.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pallas_kernels.ahead_of_time.report import CodeReport
from pallas_kernels.ahead_of_time.targets import Target
from pallas_kernels.program import Argument, Program

_MODULES = {"jax_cuda13_plugin": "jax-cuda13-plugin", "jax_plugins.xla_cuda13": "jax-cuda13-pjrt"}
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?(?P<name>%\S+) = (?P<type>.*?) (?P<op>[a-z][a-z0-9-]*)"
    r"\((?P<operands>.*?)\)(?=,|$)"
)
_PLUMBING = frozenset(
    {"parameter", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional"}
)
_KERNEL = 'custom_call_target="mosaic_gpu'
_HOST = "S(5)"  # how XLA writes host memory


def missing() -> str:
    """Say which packages of the compiler are not installed; the empty string if none.

    The assembler's wheels (nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-nvdisasm) are not looked
    for, since a CUDA toolkit may stand in for them.
    """
    lacking = [wheel for module, wheel in _MODULES.items() if not _there(module)]
    return f"{' and '.join(lacking)} not installed (make aot)" if lacking else ""


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def prepare(dump: Path) -> None:
    """Set the compiler up to write what `Compiler` reads; before the first compilation.

    Args:
      dump: an empty folder of this process's own.
    """
    os.environ |= {
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "MOSAIC_GPU_DUMP_TO": str(dump),
        "MOSAIC_GPU_DUMP_PTX": "1",
        "MOSAIC_GPU_DUMP_PTXAS": "1",
    }
    jax: Any = import_module("jax")
    jax.config.update("jax_platforms", "cpu")


class Compiler:
    """Compiles programs for one target."""

    def __init__(self, target: Target, dump: Path) -> None:
        """Describe `target` to XLA; `dump` is the folder given to `prepare`."""
        topologies: Any = import_module("jax.experimental.topologies")
        sharding: Any = import_module("jax.sharding")
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=target.description(), topology="1x1x1"
        )
        mesh = topologies.make_mesh(topo=topology, mesh_shape=(1,), axis_names=("d",))
        self.target = target
        self._dump = dump
        self._sharding = sharding.NamedSharding(mesh, sharding.PartitionSpec())

    def compile(self, program: Program) -> tuple[Any, CodeReport]:
        """Return the executable and what is in it.

        Raises:
          Exception: whatever the compiler raises on code that it refuses.
        """
        jax: Any = import_module("jax")  # several of its functions are untyped
        for path in self._dump.iterdir():
            path.unlink()

        def function(*arrays: Any) -> Any:
            return program.function(*arrays)

        # A new function each time: jax would return what it compiled before memory was marked.
        lowered = (
            jax.jit(function)
            .trace(*map(self._abstract, program.arguments))
            .lower(lowering_platforms=("cuda",))
        )
        _mark_host(lowered, [a.host for a in program.arguments])
        compiled = lowered.compile()
        return compiled, self._report(compiled)

    def _abstract(self, argument: Argument) -> Any:
        jax: Any = import_module("jax")
        dtype = jax.numpy.dtype(argument.dtype)
        return jax.ShapeDtypeStruct(argument.shape, dtype, sharding=self._sharding)

    def _report(self, compiled: Any) -> CodeReport:
        memory = compiled.memory_analysis()
        ptxas, resources = self._texts("*.ptxas"), self._texts("*resources.txt")
        everything = "\n".join(ptxas)
        shared = [int(n) for r in resources for n in re.findall(r"smem_scratch_bytes=(\d+)", r)]
        if not ptxas or len(shared) != len(resources):
            raise RuntimeError("the compiler wrote no report: prepare() must come first")
        return CodeReport(
            kernels=len(ptxas),
            spilled_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", everything))),
            wgmma_serialised="C7512" in everything or "serializ" in everything.lower(),
            opcodes=dict(
                collections.Counter(
                    code for text in self._texts("*.sass_ctrl") for code in _OPCODE.findall(text)
                )
            ),
            multicasts=sum(text.count("multicast::cluster") for text in self._texts("*.ptx")),
            shared_bytes=max(shared, default=0),
            registers=max(map(int, re.findall(r"Used (\d+) registers", everything)), default=0),
            host_argument_bytes=memory.host_argument_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            device_argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            host_copies=tuple(host_copies(compiled.as_text())),
        )

    def _texts(self, pattern: str) -> list[str]:
        return [path.read_text("utf-8", "replace") for path in sorted(self._dump.glob(pattern))]


def host_copies(hlo: str) -> Iterator[str]:
    """Yield the instructions of an optimised module that take or give an array in host memory.

    Kernels may, and what only hands a buffer on (tuples, loops, calls). Anything else reads host
    memory by XLA: a copy to the device, or a computation.
    """
    host: set[str] = set()
    for line in hlo.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        name, op = found["name"], found["op"]
        gives = _HOST in found["type"]
        if gives:
            host.add(name)
        takes = gives or not host.isdisjoint(re.findall(r"%[^\s,()]+", found["operands"]))
        kernel = op == "custom-call" and _KERNEL in line
        if takes and op not in _PLUMBING and not kernel:
            yield f"{op} {name}"


def _mark_host(lowered: Any, host: list[bool]) -> None:
    """State which arguments live in host memory; the deviceless target drops that on the way."""
    from jaxlib.mlir import ir

    module = lowered._lowering._hlo  # noqa: SLF001 - jax has no public way
    with module.context:
        main = next(
            op for op in module.body.operations if op.attributes["sym_name"].value == "main"
        )
        marked = []
        for attributes, in_host in zip(main.attributes["arg_attrs"], host, strict=True):
            named = {a.name: a.attr for a in attributes}
            kind = "pinned_host" if in_host else "device"
            named["mhlo.memory_kind"] = ir.StringAttr.get(kind)
            marked.append(ir.DictAttr.get(named))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(marked)
