"""Lookups of Numba while it compiles are done once, and find what Numba finds."""

from __future__ import annotations

from typing import Any

import numba
import pytest
from llvmlite import ir
from numba.core.compiler import run_frontend
from numba.core.event import Listener, install_listener
from numba.core.ir import Inst
from numba.core.postproc import PostProcessor
from numba.core.registry import cpu_target
from numba.extending import overload

from c2c.compiling import lookups
from c2c.policies.decision import OPTIONS  # puts ours in place
from c2c.simulator.core import drive
from c2c.simulator.events import replay

_Listener: Any = Listener  # Numba brings no types for it
_Processor: Any = PostProcessor
WORD: Any = ir.IntType(64)
KINDS = [
    WORD,
    ir.IntType(1),
    ir.DoubleType(),
    WORD.as_pointer(),
    ir.ArrayType(ir.IntType(8), 88),
    ir.ArrayType(WORD, 2),
    ir.LiteralStructType([WORD, ir.IntType(8)]),
    ir.LiteralStructType([WORD, ir.IntType(8)], packed=True),
]


def _context() -> Any:
    context: Any = cpu_target.target_context
    context.refresh()
    return context


def test_types_have_the_size_that_llvm_says() -> None:
    context = _context()
    for _ in range(2):
        assert [context.get_abi_sizeof(k) for k in KINDS] == [
            lookups._SIZE_OF(context, k) for k in KINDS
        ]


@pytest.mark.parametrize("function", [drive, replay])
def test_instructions_name_the_variables_that_numba_lists(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend: Any = run_frontend
    blocks = frontend(function).blocks.values()

    def listed() -> list[list[str]]:
        return [[v.name for v in each.list_vars()] for block in blocks for each in block.body]

    ours = listed()
    instruction: Any = Inst
    assert instruction._rec_list_vars is lookups._list_variables
    monkeypatch.setattr(instruction, "_rec_list_vars", lookups._LIST)
    assert ours == listed()
    assert sum(map(len, ours)) > 100


def test_implementations_are_looked_for_where_there_are_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = _context()
    looked: list[Any] = []
    real = context.typing_context.install_registry

    def note(registry: Any) -> None:
        looked.append(registry)
        real(registry)

    monkeypatch.setattr(context.typing_context, "install_registry", note)
    context.refresh()
    assert not looked

    def twice(x: int) -> int:
        raise NotImplementedError

    @overload(twice, strict=False)
    def _twice(x: Any) -> Any:
        return lambda x: 2 * x

    def caller(x: int) -> int:
        return twice(x) + 1

    assert numba.njit(**OPTIONS)(caller)(4) == 9
    assert looked


def test_what_lives_where_blocks_begin_is_found_for_users_functions_only() -> None:
    def users(x: int) -> int:
        return x + 1

    frontend: Any = run_frontend
    for function in (frontend(drive), frontend(users)):
        function.block_entry_vars.clear()
        before, processor = dict(function.blocks), _Processor(function)
        processor.run()
        ours, found = dict(function.blocks), len(function.block_entry_vars)
        lifetimes = function.variable_lifetime.livemap
        function.blocks = before
        lookups._POST_PROCESS(processor)
        assert ours == function.blocks
        assert lifetimes == function.variable_lifetime.livemap
        assert found == (len(ours) if function.func_id.func is users else 0)


def test_calls_of_llvm_tell_no_clock() -> None:
    """Each would tell those of all functions that are being compiled."""
    heard = []

    class Note(_Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            heard.append(event)

        def on_end(self, event: Any) -> None:
            heard.append(event)

    with install_listener("numba:llvm_lock", Note()):
        assert numba.njit(**OPTIONS)(lambda x: x + 2)(4) == 6
    assert not heard
