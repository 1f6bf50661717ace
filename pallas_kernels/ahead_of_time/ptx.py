"""PTX of one kernel as data."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Facts = frozenset[Any]
State = tuple[tuple[bool | None, bool], ...]
"""Of each predicate: its value if known, and whether its roots were written since."""
Sum = tuple[int, frozenset[tuple[str, int]]]
"""A constant, and names (registers, variables, parameters) with how often each is added."""

_LABEL = re.compile(r"([\w$]+):(?!:)\s*")
_STATEMENT = re.compile(r"(?:@(!?)([%\w]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_REGISTER = re.compile(r"%[A-Za-z_]+\d+")
_NOWHERE = (
    *("st.", "stmatrix", "red.", "bar", "fence", "cp.", "prefetch", "bra", "ret", "exit"),
    *("setmaxnreg", "mbarrier.init", "wgmma.fence", "wgmma.commit", "wgmma.wait"),
)
_PURE = (
    *("setp", "mov", "cvt", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not"),
    *("min", "max", "selp", "bfe", "neg", "div", "rem"),
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction; `line` is of its kernel's text, from 1."""

    line: int
    opcode: str
    operands: tuple[str, ...]
    predicate: str  # register it hangs on; empty: none
    negated: bool  # it is carried out where the predicate is false
    targets: tuple[str, ...]  # of a branch: the label in each enclosing block, inner ones first

    def writes(self) -> list[str]:
        """Return the registers that the instruction writes."""
        if self.opcode.startswith(_NOWHERE) or not self.operands:
            return []
        return _REGISTER.findall(self.operands[0])

    def reads(self) -> list[str]:
        """Return the registers in its operands but the first one."""
        return _REGISTER.findall(" ".join(self.operands[1:]))


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
      text: from its first line on.
      labels: index of the next instruction, by label.
    """

    text: str
    body: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def declared(self, directive: str, default: int) -> int:
        """Return the product of a directive's numbers, e.g. `.maxntid`."""
        match = re.search(rf"^\s*\.{directive}\s+([\d, ]+)$", self.text, re.MULTILINE)
        size = 1
        for number in match[1].split(",") if match else [str(default)]:
            size *= int(number)
        return size

    @cached_property
    def definitions(self) -> Mapping[str, list[Instruction]]:
        """Instructions that write a register, by register."""
        result = defaultdict[str, list[Instruction]](list)
        for one in self.body:
            for register in one.writes():
                result[register].append(one)
        return result

    @cached_property
    def blocks(self) -> Mapping[int, tuple[int, tuple[int, ...]]]:
        """End and possible successors of basic blocks, by first instruction."""
        leaders = {0, *self.labels.values()}
        leaders |= {i + 1 for i, one in enumerate(self.body) if _leaves(one)}
        inside = sorted(i for i in leaders if i < len(self.body))
        result = {}
        for begin, end in zip(inside, [*inside[1:], len(self.body)], strict=True):
            last = self.body[end - 1]
            after = (
                [end] if end < len(self.body) and not (_leaves(last) and not last.predicate) else []
            )
            if last.opcode.startswith("bra"):
                after.append(next(self.labels[t] for t in last.targets if t in self.labels))
            result[begin] = (end, tuple(after))
        return result

    @cached_property
    def correlated(self) -> tuple[str, ...]:
        """Predicates of branches, without those whose inputs change before the next."""
        branches = defaultdict[str, set[int]](set)
        for begin, (end, _) in self.blocks.items():
            if (last := self.body[end - 1]).opcode.startswith("bra") and last.predicate:
                branches[last.predicate].add(begin)
        return tuple(
            name
            for name, same in sorted(branches.items())
            if any(self._again(begin, self.written(self.roots(name)), same) for begin in same)
        )

    def _again(self, begin: int, writes: set[int], same: set[int]) -> bool:
        seen, todo = set[int](), [*self.blocks[begin][1]]
        while todo:
            block = todo.pop()
            end, after = self.blocks[block]
            if block in seen or any(id(one) in writes for one in self.body[block:end]):
                continue
            if block in same:
                return True
            seen.add(block)
            todo += after
        return False

    def written(self, names: Collection[str]) -> set[int]:
        """Return the identities of the instructions that write registers."""
        return {id(one) for name in names for one in self.definitions.get(name, ())}

    def roots(self, name: str) -> frozenset[str]:
        """Return the registers (and `%tid.x`) that determine a register's value."""
        roots, seen, todo = set[str](), set[str](), [name]
        while todo:
            register = todo.pop()
            definitions = self.definitions.get(register, ())
            if register in seen:
                continue
            seen.add(register)
            if (
                len(definitions) == 1
                and not definitions[0].predicate
                and definitions[0].opcode.startswith(_PURE)
            ):
                todo += definitions[0].reads()
                roots |= {"%tid.x"} & {*definitions[0].operands}
            else:
                roots.add(register)
        return frozenset(roots)

    def ways(self, block: int, names: tuple[str, ...], state: State) -> Iterator[tuple[int, State]]:
        """Yield possible next blocks, with predicates' values (None: unknown)."""
        end, after = self.blocks[block]
        last = self.body[end - 1]
        decides = last.opcode.startswith("bra") and last.predicate in names
        for number, to in enumerate(after):
            if not decides:
                yield to, state
                continue
            place = names.index(last.predicate)
            value, stale = state[place]
            holds = (number == len(after) - 1) != last.negated  # the branch's target is last
            if value in (None, holds):
                yield to, (*state[:place], (holds, stale), *state[place + 1 :])

    def value(self, text: str, by: Instruction | None = None) -> Sum:
        """Return an operand as a sum of numbers, registers and addresses."""
        total = (0, frozenset[tuple[str, int]]())
        for term in text.strip("[] ").split(",")[0].split("+"):
            total = _plus(total, self._term(term.strip(), by))
        return total

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {id(one): i for i, one in enumerate(self.body)}

    @cached_property
    def _known(self) -> dict[int, Sum]:
        return {}

    def _term(self, name: str, by: Instruction | None) -> Sum:
        if re.fullmatch(r"-?\d+", name):
            return int(name), frozenset()
        definitions = self.definitions.get(name, [])
        if len(definitions) > 1 and by is not None:  # the one before in the same block
            place = self._places[id(by)]
            begin = max(block for block in self.blocks if block <= place)
            definitions = [one for one in definitions if begin <= self._places[id(one)] < place][
                -1:
            ]
        itself = (0, frozenset({(name, 1)}))
        if len(definitions) != 1:
            return itself
        key = id(definitions[0])
        if key not in self._known:
            self._known[key] = itself  # also ends circles
            self._known[key] = self._computed(definitions[0]) or itself
        return self._known[key]

    def _computed(self, one: Instruction) -> Sum | None:
        kind = one.opcode.partition(".")[0]
        if one.predicate or kind not in (
            "mov",
            "cvt",
            "cvta",
            "mapa",
            "add",
            "sub",
            "shl",
            "mul",
            "mad",
        ):
            return None
        match kind, [self.value(operand, one) for operand in one.operands[1:]]:
            case (("mov" | "cvt" | "cvta" | "mapa"), [first, *_]) if ".rn" not in one.opcode:
                return first
            case "add", [first, second]:
                return _plus(first, second)
            case "sub", [first, second]:
                return _plus(first, second, -1)
            case "shl", [first, (by, names)] if not names:
                return _plus((0, frozenset()), first, 2**by)
            case (("mul" | "mad"), [first, second, *third]) if ".hi" not in one.opcode:
                if first[1]:
                    first, second = second, first
                if not first[1]:
                    return _plus(third[0] if third else (0, frozenset()), second, first[0])
        return None


# A statement is on one line and ends in a semicolon; blocks in braces, as in inline assembly, have
# their own labels and registers.
def kernels(text: str) -> tuple[Kernel, ...]:
    """Return a module's kernels.

    Raises:
      ValueError: an unknown statement; names the line.
    """
    begins = [match.start() for match in re.finditer(r"^.*\.entry\s", text, re.MULTILINE)]
    return tuple(
        _kernel(text[begin:end])
        for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)
    )


@dataclass(slots=True)
class _Scopes:
    """Blocks in braces: a number each, and the registers declared in them."""

    open: list[int] = field(default_factory=list)
    count: int = 0
    names: dict[int, list[str]] = field(default_factory=dict)

    def renamed(self, text: str) -> str:
        for scope in reversed(self.open[1:]):
            for name in self.names[scope]:
                text = re.sub(rf"(?<![%\w.]){name}(?![\w.:])", f"%local_{name}_{scope}", text)
        return text


def _kernel(text: str) -> Kernel:
    body: list[Instruction] = []
    labels: dict[str, int] = {}
    scopes = _Scopes()
    for line, statement in _statements(text):
        if statement == "{":
            scopes.count += 1
            scopes.open.append(scopes.count)
            scopes.names[scopes.count] = []
        elif statement == "}":
            scopes.open.pop()
            if not scopes.open:
                break
        elif statement.endswith(":"):
            labels[f"{statement[:-1]} {scopes.open[-1]}"] = len(body)
        elif statement.startswith(".reg"):
            scopes.names[scopes.open[-1]] += re.findall(r"[%\w]+$", statement)
        elif not statement.startswith("."):
            body.append(_instruction(line, statement, scopes))
    return Kernel(text, tuple(body), labels)


def _instruction(line: int, statement: str, scopes: _Scopes) -> Instruction:
    match = _STATEMENT.fullmatch(scopes.renamed(statement))
    if match is None:
        raise ValueError(f"PTX, line {line}: no instruction: {statement[:80]}")
    negated, predicate, opcode, rest = match.groups()
    operands = tuple(operand.strip() for operand in _OPERAND.findall(rest))
    targets = (
        tuple(f"{operands[0]} {scope}" for scope in reversed(scopes.open))
        if opcode.startswith("bra")
        else ()
    )
    return Instruction(line, opcode, operands, predicate or "", bool(negated), targets)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    inside = False
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.partition("//")[0].strip()
        if not inside and line != "{":
            continue  # parameters and limits of the launch
        inside = True
        while line:
            if line[0] in "{}":
                yield number, line[0]
                line = line[1:].lstrip()
            elif label := _LABEL.match(line):
                yield number, f"{label[1]}:"
                line = line[label.end() :]
            elif line.startswith((".loc", ".file", ".section")):
                break
            else:
                statement, ends, line = line.partition(";")
                if not ends:
                    raise ValueError(f"PTX, line {number}: no semicolon: {statement[:80]}")
                yield number, statement.strip()
                line = line.lstrip()


def _leaves(one: Instruction) -> bool:
    return one.opcode.startswith(("bra", "ret", "exit"))


def _plus(first: Sum, second: Sum, times: int = 1) -> Sum:
    names = defaultdict[str, int](int, first[1])
    for name, often in second[1]:
        names[name] += times * often
    terms = frozenset((name, often) for name, often in names.items() if often)
    return first[0] + times * second[0], terms


def minus(first: Sum, second: Sum) -> Sum:
    """Return the difference of two sums."""
    return _plus(first, second, -1)


def follow[E](
    kernel: Kernel,
    events: Mapping[int, E],
    step: Callable[[Facts, E], tuple[Facts, str]],
    start: Facts = frozenset(),
) -> Iterator[tuple[Instruction, str]]:
    """Yield findings on some path, with instructions.

    A fact holds if on one path; a path takes branches on a predicate alike.

    Args:
      events: input by index of instruction.
      step: from facts before an event to those after it, and faults.
    """
    faults = _follow(kernel, events, step, start, ())
    for number in (1, 2):
        for names in itertools.combinations(kernel.correlated, number):
            if faults:
                again = _follow(kernel, events, step, start, names)
                faults = {i: again[i] for i in faults.keys() & again.keys()}
    for i in sorted(faults):
        yield kernel.body[i], faults[i]


def _follow[E](
    kernel: Kernel,
    events: Mapping[int, E],
    step: Callable[[Facts, E], tuple[Facts, str]],
    start: Facts,
    names: tuple[str, ...],
) -> dict[int, str]:
    roots = [kernel.written(kernel.roots(name)) for name in names]
    makes = [kernel.written([name]) for name in names]
    writes = set[int]().union(*roots, *makes)
    notable = {
        begin: [i for i in range(begin, end) if i in events or id(kernel.body[i]) in writes]
        for begin, (end, _) in kernel.blocks.items()
    }
    # with each predicate's value, and whether its roots were written since it was
    unknown: State = tuple((None, False) for _ in names)
    before: dict[tuple[int, State], Facts] = {(0, unknown): start}
    todo = [*before]
    result: dict[int, str] = {}
    while todo:
        block, state = node = todo.pop()
        facts = before[node]
        for i in notable[block]:
            if i in events:
                facts, wrong = step(facts, events[i])
                if wrong:
                    result[i] = min(result.get(i, wrong), wrong)
            one = id(kernel.body[i])
            if one in writes:
                state = tuple(
                    _written(value, stale, one in root, one in make)
                    for (value, stale), root, make in zip(state, roots, makes, strict=True)
                )
        for to, new_state in kernel.ways(block, names, state):
            after = to, new_state
            joined = before.get(after, frozenset()) | facts
            if after not in before or joined != before[after]:
                before[after] = joined
                todo.append(after)
    return result


def _written(
    value: bool | None, stale: bool, is_root: bool, is_made: bool
) -> tuple[bool | None, bool]:
    if not (is_root or is_made):
        return value, stale
    return None if is_made and (is_root or stale) else value, is_root and not is_made
