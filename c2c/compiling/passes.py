"""Numba's and LLVM's useful passes."""

# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any, Final

from llvmlite.binding import (
    create_new_function_pass_manager,
    create_pass_builder,
    create_pipeline_tuning_options,
)
from numba.core.compiler import Flags
from numba.core.errors import NumbaError
from numba.core.typed_passes import (
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    TranslateByteCode,
)

__all__ = ["PASSES", "FewPasses", "OwnFlags", "make_small", "optimise"]

# They have no closures, no objects, no array expressions, no branches on types, and nothing that
# counts references: where variables end, which Numba would write code for, is no matter.
PASSES: Final[tuple[Any, ...]] = (
    TranslateByteCode,
    FixupArgs,
    IRProcessing,
    GenericRewrites,
    ReconstructSSA,
    NopythonTypeInference,
    PreLowerStripPhis,
    NativeLowering,
    NoPythonBackend,
)
_NumbaFlags: Final[Any] = Flags  # Numba brings no types for it
_HASH: Final = hash(_NumbaFlags())  # the same for all flags: it is made of the options' names
_LEVEL: Final = 3


class OwnFlags(_NumbaFlags):  # type: ignore[misc]
    """Numba's flags, compared by the set ones."""

    __slots__ = ()

    def __hash__(self) -> int:
        return _HASH

    def __eq__(self, other: Any) -> Any:
        return self._values == other._values if type(other) is OwnFlags else super().__eq__(other)


class FewPasses:
    """Numba's pass manager without analysis after each pass."""

    pipeline_name: Final = "c2c"

    def __init__(self) -> None:
        self.exec_times: dict[str, Any] = {}  # read by Numba
        self._passes = [kind() for kind in PASSES]

    def run(self, state: Any) -> None:
        """Run all passes; errors name the pass."""
        for stage in self._passes:
            try:
                stage.run_initialization(state)
                stage.run_pass(state)
                stage.run_finalizer(state)
            except NumbaError as error:
                error.args = (f"Failed in {self.pipeline_name} at {stage.name()}\n{error}",)
                raise


def make_small(module: Any, codegen: Any) -> None:
    """Move values into registers and drop dead code."""
    module.data_layout = codegen._data_layout
    builder = codegen._pass_builder()
    passes = create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def optimise(module: Any, codegen: Any) -> None:
    """Optimise a function and callees, without vectorisation and unrolling: no loop gains."""
    tuning = create_pipeline_tuning_options(speed_level=_LEVEL)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    tuning.loop_unrolling = tuning.loop_interleaving = False
    builder = create_pass_builder(codegen._tm, tuning)
    builder.getModulePassManager().run(module, builder)
