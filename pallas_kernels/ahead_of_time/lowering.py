"""Lowering of programs to the compiler's input."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from pallas_kernels.program import Argument, Program

_KERNEL = "mosaic_gpu_v2"
_CONFIG = "mhlo.backend_config"


def lower(program: Program, sharding: Any) -> Any:
    """Return a program lowered for CUDA, host arguments marked."""
    jax: Any = import_module("jax")  # several of its functions are untyped

    def abstract(argument: Argument) -> Any:
        dtype = jax.numpy.dtype(argument.dtype)
        return jax.ShapeDtypeStruct(argument.shape, dtype, sharding=sharding)

    # A new function each time: jax would return what it lowered before memory was marked.
    def function(*arrays: Any) -> Any:
        return program.function(*arrays)

    lowered = (
        jax.jit(function, donate_argnums=program.donated, keep_unused=True)
        .trace(*map(abstract, program.arguments))
        .lower(lowering_platforms=("cuda",))
    )
    _mark_host(module_of(lowered), [a.host for a in program.arguments])
    return lowered


def kernels(module: Any) -> Iterator[Any]:
    """Yield a module's kernels, each as a separate module."""
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    library: Any = import_module("jax._src.lib")

    calls: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            calls.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for call in calls:
        if ir.StringAttr(call.attributes["call_target_name"]).value != _KERNEL:
            continue
        options = {option.name: option.attr for option in call.attributes[_CONFIG]}
        context = mlir.make_ir_context()
        library.mosaic_gpu_dialect.register_dialect(context)
        context.allow_unregistered_dialects = True
        with context:
            yield ir.Module.parse(ir.StringAttr(options["module"]).value_bytes)


def module_of(lowered: Any) -> Any:
    """Return a lowered program's MLIR module."""
    return lowered._lowering._hlo  # noqa: SLF001 - jax has no public way


def _mark_host(module: Any, host: list[bool]) -> None:
    from jaxlib.mlir import ir

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
