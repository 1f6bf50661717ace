"""LLVM's passes over the event loop: few over each function, the rest over all of it, once.

Numba's own pipelines look for loops to turn into vectors and to repeat, of which the event loop has
none that are worth it, and for the store that each load may see in up to 200 blocks.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any, Final

from llvmlite.binding import (
    create_new_function_pass_manager,
    create_pass_builder,
    create_pipeline_tuning_options,
    set_option,
)

__all__ = ["install", "make_small", "optimise"]

_LEVEL: Final = 3
# Farther back hardly a load finds anything; the search took a third of the optimiser's time.
_BLOCKS: Final = 10


def make_small(module: Any, codegen: Any) -> None:
    """Bring a function's values into registers and drop what is plainly of no use."""
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
    """Optimise a function together with all that it calls."""
    tuning = create_pipeline_tuning_options(speed_level=_LEVEL)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    tuning.loop_unrolling = tuning.loop_interleaving = False
    builder = create_pass_builder(codegen._tm, tuning)
    builder.getModulePassManager().run(module, builder)


def install() -> None:
    """Set what only LLVM's command line has a name for."""
    set_option("c2c", f"-memdep-block-number-limit={_BLOCKS}")
