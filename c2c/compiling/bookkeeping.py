"""Numba's and llvmlite's work beside compiling, made light.

Around each statement Numba enters two generators that would add a line to an error, around each
constraint on a type a filter of warnings, around each pass what tells of it; types ask the
machinery of abstract classes whether they are one; implementations that there are none of are
refused with the text of a whole row's type; llvmlite finds that no text is kept by way of an
exception for each value. Errors, names and texts are as before.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any, Final

from llvmlite.ir import instructions, values
from llvmlite.ir._utils import DuplicatedNameError, NameScope
from numba.core import errors, interpreter, lowering, typeinfer
from numba.core.compiler_machinery import PassManager, _pass_registry
from numba.core.event import trigger_event
from numba.core.postproc import PostProcessor
from numba.core.types import Record, Type

from c2c.compiling.ours import MODULES

__all__ = ["LightPasses", "install"]

_Manager: Final[Any] = PassManager  # Numba brings no types for it
_Processor: Final[Any] = PostProcessor
_Network: Final[Any] = typeinfer.ConstraintNetwork
_Interpreter: Final[Any] = interpreter.Interpreter
_registry: Final[Any] = _pass_registry
_trigger: Final[Any] = trigger_event
_errors: Final[Any] = errors
_PROPAGATE: Final[Any] = _Network.propagate
_POST_PROCESS: Final[Any] = _Interpreter.post_process
_TEXTS: Final[dict[int, tuple[Any, str]]] = {}  # of types of rows, by what they are kept by
_ROW_TEXT: Final[Any] = Record.__repr__
# What stood in the places of those below; tests hold ours against them.
_REGISTER: Final[Any] = NameScope.register
_WRITTEN: Final[Any] = instructions.Instruction.__str__
_REFERENCED: Final[Any] = values.NamedValue._get_reference
_VOID: Final[Any] = instructions.types.VoidType
_REFERENCE: Final = "_StringReferenceCaching__cached_refstr"


class LightPasses(_Manager):  # type: ignore[misc]
    """Numba's manager of passes without times, prints and checks of each pass."""

    def _runPass(self, index: int, each: Any, state: Any) -> None:  # noqa: ARG002, N802
        known = state.func_id
        told = {"name": f"{each.name()} [{known.func_qualname}]", "module": known.modname}
        each.analysis = self._analysis
        with _trigger("numba:run_pass", data=told), _ErrorContext("Pass {name}", name=each.name()):
            mutated = each.run_initialization(state)
            mutated |= each.run_pass(state)
            mutated |= each.run_finalizer(state)
        if mutated and _registry.get(type(each)).mutates_CFG:
            _Processor(state.func_ir).run()


class _ErrorContext:
    """Numba's `new_error_context`, as a class: adds a line to errors that pass."""

    __slots__ = ("_given", "_line", "_named")

    def __init__(self, line: str, *given: Any, **named: Any) -> None:
        self._line, self._given, self._named = line, given, named

    def __enter__(self) -> None:
        loc = self._named.get("loc")
        if loc is not None and not loc.filename.startswith(_errors._numba_path):
            _errors.loc_info.update(self._named)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, _errors.NumbaError):
            error.add_context(_errors._format_msg(self._line, self._given, self._named))


def _propagate(self: Any, inference: Any) -> list[Any]:
    known = inference.func_id
    if not known.modname.startswith(MODULES):
        found: list[Any] = _PROPAGATE(self, inference)
        return found
    failed: list[Any] = []
    for constraint in self.constraints:
        try:
            constraint(inference)
        except _errors.ForceLiteralArg as error:
            failed.append(error)
        except _errors.TypingError as error:
            located = _errors.TypingError(str(error), loc=constraint.loc, highlighting=False)
            located.__cause__ = error
            failed.append(located)
    return failed


def _post_process(self: Any, peepholes: Any, function: Any) -> Any:
    if self.func_id.modname.startswith(MODULES):
        # The others are for `with`, calls of many names, dictionaries and lists put together.
        peepholes = [each for each in peepholes if each.__name__ == "peep_hole_list_to_tuple"]
    return _POST_PROCESS(self, peepholes, function)


def _row_text(self: Any) -> str:
    found = _TEXTS.get(id(self))
    if found is None:
        found = _TEXTS[id(self)] = self, _ROW_TEXT(self)
    return found[1]


def _register(self: Any, name: str, deduplicate: bool = False) -> str:
    used = self._useset
    if name in used:
        if not deduplicate:
            raise DuplicatedNameError(name)
        first, counts = name, self._basenamemap
        n = counts[first]
        while name in used:
            n += 1
            name = f"{first}.{n}"
        counts[first] = n
    used.add(name)
    return name


def _reference(self: Any) -> str:
    kept = self.__dict__
    found = kept.get(_REFERENCE)
    if found is None:
        found = kept[_REFERENCE] = self._get_reference()
    return str(found)


def _named_reference(self: Any) -> str:
    name = self._name
    if "\\" in name or '"' in name:
        name = name.replace("\\", "\\5c").replace('"', "\\22")
    return f'{self.name_prefix}"{name}"'


def _written(self: Any) -> str:
    buffer: list[str] = []
    if not isinstance(self.type, _VOID):
        buffer.append(f"{self.get_reference()} = ")
    self.descr(buffer)
    return "".join(buffer).rstrip()


def install() -> None:
    """Put them in place of Numba's and llvmlite's own.

    Functions of the package are compiled without Numba's warnings, of which it has none.
    """
    _Network.propagate = _propagate
    _Interpreter.post_process = _post_process
    for module in (errors, typeinfer, lowering):
        patched: Any = module
        patched.new_error_context = _ErrorContext
    row: Any = Record
    row.__repr__ = _row_text
    # No class of types is registered as another's: that of Python's own classes will do.
    kind: Any = type(Type)
    kind.__instancecheck__, kind.__subclasscheck__ = type.__instancecheck__, type.__subclasscheck__
    NameScope.register = _register
    values.NamedValue.get_reference = _reference
    values.NamedValue._get_reference = _named_reference
    instructions.Instruction.__str__ = _written
