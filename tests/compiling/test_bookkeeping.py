"""Numba's and llvmlite's work beside compiling says the same, for less."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import binding, ir
from llvmlite.ir import instructions
from llvmlite.ir._utils import DuplicatedNameError, NameScope
from llvmlite.ir.values import NamedValue
from numba.core import errors, types
from numba.core.codegen import CPUCodeLibrary

from c2c.compiling import bookkeeping, optimising
from c2c.policies.decision import _USERS, OPTIONS
from c2c.simulator.phases import span_s

NAMES = ["", "a", "a", "a", "b", "a.1", "b", "a", "", "a.5"]
TYPEOF: Any = numba.typeof  # Numba brings no types for it
NJIT: Any = numba.njit
PAIR: Any = types.Tuple
ARRAY: Any = TYPEOF(np.zeros(2, [("a", "f8"), ("b", "i8")]).view(np.recarray))


def _named(register: Any) -> list[str]:
    scope = NameScope()
    named = [register(scope, name, True) for name in NAMES]
    with pytest.raises(DuplicatedNameError):
        register(scope, "b", False)
    return [*named, register(scope, "c", False)]


def test_names_are_those_that_llvmlite_gives() -> None:
    assert NameScope.register is bookkeeping._register
    assert _named(bookkeeping._register) == _named(bookkeeping._REGISTER)


def _module() -> ir.Module:
    module, word = ir.Module("m"), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(word, [word.as_pointer()]), 'an "odd" name')
    block = function.append_basic_block("back\\slash")
    builder = ir.IRBuilder(block)
    loaded = builder.load(function.args[0], name='say "so"')
    loaded.set_metadata("invariant.load", module.add_metadata([]))
    builder.store(builder.add(loaded, word(3)), function.args[0])
    builder.ret(builder.select(builder.icmp_signed("<", loaded, word(0)), word(1), loaded))
    return module


def test_modules_are_written_as_llvmlite_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = str(_module())
    binding.parse_assembly(ours).verify()
    assert instructions.Instruction.__str__ is bookkeeping._written
    monkeypatch.setattr(instructions.Instruction, "__str__", bookkeeping._WRITTEN)
    monkeypatch.setattr(NamedValue, "_get_reference", bookkeeping._REFERENCED)
    assert str(_module()) == ours


def test_types_are_of_the_classes_that_abstract_classes_say() -> None:
    classes: list[Any] = [
        found
        for found in vars(types).values()
        if isinstance(found, type) and issubclass(found, types.Type)
    ]
    found = [ARRAY, ARRAY.dtype, types.int64, types.boolean, types.none, PAIR((types.int8,))]
    for kind in classes:
        for value in (*found, None, kind):
            assert isinstance(value, kind) == ABCMeta.__instancecheck__(kind, value)
        for other in classes:
            assert issubclass(other, kind) == ABCMeta.__subclasscheck__(kind, other)
    assert len(classes) > 50


def test_the_type_of_a_row_says_what_it_is() -> None:
    row = ARRAY.dtype
    assert repr(row) == bookkeeping._ROW_TEXT(row) == repr(row)
    other: Any = TYPEOF(np.zeros(2, [("c", "f8")])).dtype
    assert repr(other) == bookkeeping._ROW_TEXT(other) != repr(row)


def test_errors_say_where_they_were_found() -> None:
    def wrong(x: Any) -> Any:
        return x.nowhere

    with pytest.raises(errors.TypingError) as raised:
        NJIT(**OPTIONS)(wrong)(1)
    said = str(raised.value)
    assert "Unknown attribute 'nowhere'" in said
    assert "During: typing of get attribute at" in said
    assert "Pass nopython_type_inference" in said


def test_only_what_counts_references_goes_through_numbas_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole: list[str] = []
    theirs: list[str] = []
    library_type: Any = CPUCodeLibrary
    ours, numbas = optimising.optimise, library_type._optimize_final_module

    def note(module: Any, codegen: Any) -> None:
        whole.append(module.name)
        ours(module, codegen)

    def note_numbas(library: Any) -> None:
        theirs.append(library.name)
        numbas(library)

    monkeypatch.setattr(optimising, "optimise", note)
    monkeypatch.setattr(CPUCodeLibrary, "_optimize_final_module", note_numbas)

    def allocates(n: int) -> float:
        return float(np.arange(n).sum())

    assert NJIT(**OPTIONS)(span_s)(1.0, 0.5, 2.0, 0, 4) == span_s(1.0, 0.5, 2.0, 0, 4)
    assert "span_s" in whole[-1]
    assert not any("span_s" in name for name in theirs)
    users: Any = OPTIONS | {"_nrt": _USERS["_nrt"]}
    assert NJIT(**users)(allocates)(5) == 10.0
    assert any("allocates" in name for name in theirs)
    assert not any("allocates" in name for name in whole)
