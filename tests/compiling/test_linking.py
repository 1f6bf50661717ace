"""Inner functions are linked, not turned into machine code of their own."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.itanium_mangler import mangle

from c2c.compiling import passes
from c2c.compiling.builder import OPTIONS
from c2c.compiling.compilers import INNER, OUTER, compilers
from c2c.compiling.guard import Returns
from c2c.compiling.linker import _InnerLibrary, _OuterLibrary
from c2c.compiling.packing import pack
from c2c.errors import PolicyError
from c2c.policies import decision, jitable
from c2c.simulator.works.phases import span_s


@jitable
def leaf(x: int) -> int:
    if x < 0:
        raise ValueError("below 0")
    return x + 1


@jitable
def left(x: int) -> int:
    return leaf(x) * 2


@jitable
def right(x: int) -> int:
    return leaf(x) * left(x)


def root(x: int) -> int:
    return left(x) + right(x)


def test_a_call_graph_is_linked_once_and_only_its_root_is_machine_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    real = numba.core.codegen.CPUCodeLibrary._finalize_final_module
    monkeypatch.setattr(
        numba.core.codegen.CPUCodeLibrary,
        "_finalize_final_module",
        lambda library: (made.append(library), real(library))[1],
    )
    compiled = numba.njit(**OPTIONS)(root)
    assert [compiled(x) for x in range(5)] == [root(x) for x in range(5)]
    with pytest.raises(ValueError, match="below 0"):
        compiled(-1)
    assert not any(isinstance(library, _InnerLibrary) for library in made)
    assert sum("root" in library.name for library in made) == 1
    assert not any("leaf" in library.name for library in made)


def test_an_inner_function_is_whole_where_others_link_it() -> None:
    """A function that Numba compiles in its own way may call ours."""

    def caller(x: int) -> int:
        return right(x) - 1

    assert numba.njit(caller)(3) == caller(3)


def test_the_package_s_own_functions_take_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them uses what Numba offers beyond them (closures, objects, array expressions)."""
    taken: list[str] = []
    real = passes.FewPasses.run
    monkeypatch.setattr(
        passes.FewPasses,
        "run",
        lambda self, state: (taken.append(state.func_id.modname), real(self, state))[1],
    )
    assert numba.njit(**OPTIONS)(span_s)(1.0, 0.5, 2.0, 0, 4) == span_s(1.0, 0.5, 2.0, 0, 4)
    assert numba.njit(**OPTIONS)(root)(3) == root(3)
    assert set(taken) == {span_s.__module__}


def test_a_numba_that_is_not_known_is_tried() -> None:
    assert compilers("99.0") == (INNER, OUTER)
    assert INNER.keys() == OUTER.keys() == {"pipeline_class"}


@pytest.mark.parametrize("change", ["gone", "fails", "forgets"])
def test_a_numba_that_cannot_link_compiles_as_it_does(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "gone":
        monkeypatch.setitem(sys.modules, "c2c.compiling.linker", None)
    elif change == "fails":
        monkeypatch.delattr(_OuterLibrary, "finalize")
        monkeypatch.setattr(numba.core.codegen.CPUCodeLibrary, "finalize", None)
    else:
        monkeypatch.setattr(_OuterLibrary, "_get_module_for_linking", None)
        monkeypatch.setattr(_InnerLibrary, "alone", None)
    with pytest.warns(RuntimeWarning, match="with 99.0 it cannot .*three times as long"):
        assert compilers("99.0") == ({}, {})


def test_symbols_do_not_spell_out_the_state() -> None:
    class Few(NamedTuple):
        x: Any

    class Many(NamedTuple):
        x: Any

    wide = np.zeros(1, [(f"a_column_of_many_{k}", "i8") for k in range(50)]).view(np.recarray)
    kinds = [
        numba.typeof(pack(v)) for v in (Few(wide), Many(wide), Few(wide["a_column_of_many_1"]))
    ]
    assert len({kind.name for kind in kinds}) == len(kinds)
    assert all(len(mangle("f", (kind,))) < 60 for kind in kinds)


def test_what_a_policy_from_outside_answers_is_checked_in_machine_code() -> None:
    @decision(returns=Returns(int, "a whole number"))
    def pick(policy: Any, count: int) -> int: ...

    class Mine(NamedTuple):
        at: int = 1

    class Late(NamedTuple):
        at: float = 1.5

    @pick.by(Mine)
    def mine(policy: Mine, count: int) -> int:
        return policy.at + count

    @pick.by(Late)
    def late(policy: Late, count: int) -> float:
        return policy.at + count

    def ask(policy: Any, count: int) -> int:
        return pick(policy, count)

    compiled = numba.njit(**OPTIONS)(ask)
    assert compiled(Mine(), 3) == ask(Mine(), 3) == 4
    with pytest.raises(PolicyError, match=r"policy Late: .*pick returned 4\.5, not a whole number"):
        ask(Late(), 3)
    with pytest.raises(numba.TypingError, match="pick returned float64, not a whole number"):
        compiled(Late(), 3)
