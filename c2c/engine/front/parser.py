"""Parser of answers into thoughts, text and tool calls."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from c2c.engine.front.dialects import Dialect, Pairs
from c2c.engine.front.values import json_of, types_of

__all__ = ["Delta", "Kind", "Parser", "Parts"]

_MOST_HEAD = 256  # characters before a call's arguments, its name among them
_SPACE, _BEFORE, _BETWEEN = " \t\r\n", " \t\r\n[", " \t\r\n,;]"
_NAMES, _ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_WORD = re.compile(r"[^\s,:\]}\[{\"]*")
_LITERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_NAME = re.compile(r"[^\s<>\"{}]+")
_REST = re.compile(r"^\s*\]?\s*")  # of a list of calls
_NO_JSON = object()

type Steps[T] = Generator[None, None, T]
type Kind = Literal["thought", "text", "call"]
type Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Delta:
    """New part of a call, first with `name` and `id`."""

    index: int
    arguments: str
    name: str = ""
    id: str = ""

    def shown(self) -> dict[str, Any]:
        """Return the part as in OpenAI's chunks."""
        if not self.name:
            return {"index": self.index, "function": {"arguments": self.arguments}}
        function = {"name": self.name, "arguments": self.arguments}
        return {"index": self.index, "id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class Parts:
    """Consecutive parts of an answer: texts, thoughts, calls."""

    found: list[tuple[Kind, str | Delta]] = field(default_factory=list)

    def add(self, kind: Kind, new: str | Delta) -> None:
        """Add a part, joined with the last if it continues it."""
        if self.found and self.found[-1][0] == kind and not (isinstance(new, Delta) and new.name):
            _, last = self.found.pop()
            if isinstance(last, Delta) and isinstance(new, Delta):
                new = replace(last, arguments=last.arguments + new.arguments)
            else:
                new = f"{last}{new}"
        self.found.append((kind, new))

    def joined(self, kind: Kind) -> str:
        """Return a kind's text."""
        return "".join(
            new for part_kind, new in self.found if part_kind == kind and isinstance(new, str)
        )

    @property
    def calls(self) -> list[Delta]:
        """Parts of calls."""
        return [new for _, new in self.found if isinstance(new, Delta)]


@lru_cache(maxsize=64)
def _any(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))


def _begun(text: str, position: int, marks: Sequence[str]) -> int:
    longest = max(map(len, marks))
    for start in range(max(position, len(text) - longest + 1), len(text)):
        end = text[start:]
        if any(len(mark) > len(end) and mark.startswith(end) for mark in marks):
            return start
    return len(text)


# It only appends, and the division of an answer into pieces has no effect. What is no call is text.
# Only text between marks, and white space around thoughts and calls, is lost.
class Parser:
    """Parser of an answer; `calls` are whole, in OpenAI's form."""

    def __init__(
        self,
        dialect: Dialect,
        tools: Mapping[str, Any],
        *,
        thinks: bool = False,
        several: bool = True,
    ) -> None:
        """Create a parser."""
        self._dialect, self._tools = dialect, tools
        self._thinks, self._several = thinks, several
        self._text, self._at, self._is_over = "", 0, False
        self._claimed: int | None = None  # where text begins that may become a call
        self._blank: str | None = ""  # white space before the first text; None: after text
        self._begins = True  # nothing but white space was told
        self._parts = Parts()
        self.calls: list[dict[str, Any]] = []
        self._number = 0  # calls, dropped ones too
        self._steps = self._answer()

    def push(self, text: str, *, is_over: bool = False) -> Parts:
        """Parse a piece; return the new parts."""
        cut = self._at if self._claimed is None else self._claimed
        self._text, self._at, self._is_over = self._text[cut:] + text, self._at - cut, is_over
        if self._claimed is not None:
            self._claimed = 0
        next(self._steps, None)
        parts, self._parts = self._parts, Parts()
        return parts

    # What is told.

    def _say(self, text: str) -> None:
        if self._blank is not None:
            shown = text.lstrip()
            self._blank += text[: len(text) - len(shown)]
            if not shown:
                return
            text, self._blank = (self._blank if self._begins else "") + shown, None
        self._begins = False
        self._parts.add("text", text)

    def _begin(self, name: str) -> None:
        self._number += 1
        self._claimed, self._begins = None, False
        if not self._is_dropped:
            index = len(self.calls)
            call_id = self._dialect.id.format(own=secrets.token_hex(12), name=name, index=index)
            self._parts.add("call", Delta(index, "", name, call_id))
            function = {"name": name, "arguments": ""}
            self.calls.append({"id": call_id, "type": "function", "function": function})

    def _tell(self, text: str) -> None:
        if not text or self._is_dropped:
            return
        self.calls[-1]["function"]["arguments"] += text
        self._parts.add("call", Delta(len(self.calls) - 1, text))

    @property
    def _is_dropped(self) -> bool:
        return self._number > 1 and not self._several

    # Parts of the grammar. Positions are not kept over a `yield`, which may shorten the text.

    def _peek(self, count: int = 1) -> Steps[str]:
        while len(self._text) - self._at < count and not self._is_over:
            yield
        return self._text[self._at : self._at + count]

    def _skip(self, characters: str = _SPACE, tell: Tell | None = None) -> Steps[str]:
        while (result := (yield from self._peek())) and result in characters:
            self._at += 1
            if tell is not None:
                tell(result)
        return result

    def _takes(self, *marks: str) -> Steps[str]:
        marks = tuple(filter(None, marks))
        while marks and not self._is_over and _begun(self._text, self._at, marks) == self._at:
            yield
        match = _any(marks).match(self._text, self._at) if marks else None
        self._at = self._at if match is None else match.end()
        return "" if match is None else match[0]

    def _until(self, marks: Sequence[str], tell: Tell) -> Steps[str]:
        marks = tuple(filter(None, marks))
        while True:
            text, match = self._text, _any(marks).search(self._text, self._at) if marks else None
            end = len(text)
            if not self._is_over and marks:
                end = _begun(text, self._at, marks)
            is_sure = match is not None and match.start() < end
            if match is not None and is_sure:
                end = match.start()
            if end > self._at:
                tell(text[self._at : end])
            self._at = end
            if match is not None and is_sure:
                self._at = match.end()
                return match[0]
            if self._is_over:
                return ""
            yield

    def _answer(self) -> Steps[None]:
        dialect = self._dialect
        opening, closing = dialect.thought
        calls = (dialect.opening, dialect.head) if self._tools else ()
        marks = (*calls, opening, *dialect.dropped)
        if self._thinks:
            yield from self._thought(closing)
        else:
            yield from self._bare_calls()
        while True:
            ends = (dialect.foot, dialect.closing) if self._number else ()
            mark = yield from self._until((*marks, *ends), self._say)
            if not mark:
                break
            if mark in calls:
                yield from self._calls(mark)
            elif mark == opening and (self._begins or dialect.thinks_anywhere):
                yield from self._thought(closing)
            elif mark not in (*ends, *dialect.dropped):
                self._say(mark)
        if self._begins and self._blank:
            self._parts.add("text", self._blank)

    def _thought(self, closing: str) -> Steps[None]:
        self._begins, self._blank = False, ""
        yield from self._until((closing,), lambda text: self._parts.add("thought", text))
        yield from self._bare_calls()

    def _bare_calls(self) -> Steps[None]:
        if self._dialect.is_bare and self._tools:
            yield from self._calls("")

    def _calls(self, mark: str) -> Steps[None]:
        dialect, number = self._dialect, self._number
        self._claimed = self._at - len(mark)
        char = yield from self._skip(_BEFORE)
        while not dialect.head or mark == dialect.head or (yield from self._takes(dialect.head)):
            before = self._number
            if dialect.pairs is not None:
                yield from self._marked(dialect.pairs)
            elif char == "{":
                yield from self._object()
            elif dialect.named is not None:
                yield from self._named(dialect.named)
            if self._number == before:
                break
            self._claimed, self._blank, mark = self._at, "", ""
            yield from self._skip(_SPACE + "`")
            if (yield from self._takes(dialect.foot)):
                self._claimed = self._at
            char = yield from self._skip(_SPACE if dialect.pairs else _BETWEEN)
            taken = yield from self._takes(dialect.closing, dialect.opening)
            if taken and taken == dialect.closing:
                self._claimed = None
                return
            if taken:
                char = yield from self._skip(_BEFORE)
        text, self._claimed = self._text[self._claimed or 0 : self._at], None
        self._say(text if self._number == number else _REST.sub("", text))

    def _object(self) -> Steps[None]:
        name, arguments, has_begun = "", "", False
        if (yield from self._peek()) != "{":
            return
        self._at += 1
        while (char := (yield from self._skip())) != "}":
            if char == ",":
                self._at += 1
                continue
            key = yield from self._value()
            if not isinstance(key, str) or (yield from self._skip()) != ":":
                return
            self._at += 1
            char = yield from self._skip()
            if key in _ARGUMENTS and char == "{" and name and not has_begun and self._may(name):
                self._begin(name)
                has_begun = True
                if not (yield from self._json(self._tell)):
                    yield from self._raw()
                    return
                continue
            value = yield from self._value()
            if value is _NO_JSON:
                return
            if key in _NAMES and isinstance(value, str):
                name = name or value
            elif key in _ARGUMENTS and value is not None:
                arguments = (
                    value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                )
        self._at += 1
        if name and not has_begun and self._may(name):
            self._begin(name)
            self._tell(arguments.strip() or "{}")

    def _may(self, name: str) -> bool:
        return not self._dialect.is_bare or name in self._tools

    def _named(self, pattern: re.Pattern[str]) -> Steps[None]:
        dialect = self._dialect
        marks = _any(tuple(filter(None, (dialect.opening, dialect.foot, dialect.closing))))
        while (end := self._text.find("{", self._at)) < 0:
            rest = self._text[self._at :]
            if self._is_over or len(rest) > _MOST_HEAD or marks.search(rest):
                return
            yield
        name = pattern.fullmatch(self._text, self._at, end)
        if name is None or end - self._at > _MOST_HEAD:
            return
        self._at = end
        self._begin(name[1])
        if not (yield from self._json(self._tell)):
            yield from self._raw()

    def _raw(self) -> Steps[None]:
        dialect, tail = self._dialect, ""

        def tell(text: str) -> None:
            nonlocal tail
            text = tail + text
            sure = len(text.rstrip("}" + _SPACE))
            self._tell(text[:sure])
            tail = text[sure:]

        marks = (dialect.foot, dialect.closing, dialect.opening, dialect.head)
        mark = yield from self._until(marks, tell)
        self._at -= len(mark)
        rest = tail.rstrip()
        self._tell(rest[:-1] if dialect.named is None and rest.endswith("}") else rest)

    def _value(self) -> Steps[Any]:
        parts: list[str] = []
        if not (yield from self._json(parts.append)):
            return _NO_JSON
        try:
            return json.loads("".join(parts))
        except (ValueError, RecursionError):
            return _NO_JSON

    def _json(self, tell: Tell) -> Steps[bool]:
        closers: list[str] = []
        wants = "value"  # or key, colon, comma; "end" if a closer may come, too
        quote = self._dialect.quote
        while char := (yield from self._skip(tell=tell)):
            is_string = char == '"'
            if quote and char == quote[0]:
                is_string = (yield from self._peek(len(quote))) == quote
            if wants.startswith(("value", "key")) and is_string:
                yield from self._string(quote if char != '"' else '"', tell)
                wants = "colon" if wants.startswith("key") else "comma"
            elif wants.startswith("key") and quote and char != "}":
                yield from self._bare_key(tell)
                wants = "colon"
            elif wants.startswith("value") and char in "{[":
                closers.append("}" if char == "{" else "]")
                wants = "key end" if char == "{" else "value end"
                self._take(char, tell)
            elif wants.endswith(("end", "comma")) and closers and char == closers[-1]:
                self._take(closers.pop(), tell)
                wants = "comma"
            elif (wants, char) == ("colon", ":") or (wants == "comma" and char == ","):
                self._take(char, tell)
                wants = "value" if char == ":" or closers[-1] == "]" else "key"
            elif not (wants.startswith("value") and (yield from self._literal(tell))):
                return False
            else:
                wants = "comma"
            if not closers and wants == "comma":
                return True
        return False

    def _take(self, text: str, tell: Tell) -> None:
        self._at += len(text)
        tell(text)

    def _bare_key(self, tell: Tell) -> Steps[None]:
        tell('"')
        mark = yield from self._until((":",), lambda text: tell(json.dumps(text)[1:-1]))
        self._at -= len(mark)
        tell('"')

    def _literal(self, tell: Tell) -> Steps[bool]:
        while not self._is_over and _WORD.fullmatch(self._text, self._at):
            yield
        match = _LITERAL.match(self._text, self._at)
        word = _WORD.match(self._text, self._at)
        if match is None or word is None or match[0] != word[0]:
            return False
        self._take(match[0], tell)
        return True

    def _string(self, quote: str, tell: Tell) -> Steps[None]:
        self._at += len(quote)
        tell('"')
        if quote != '"':
            if (yield from self._until((quote,), lambda text: tell(_escaped(text)))):
                tell('"')
            return
        while char := (yield from self._peek()):
            if (plain := _PLAIN.match(self._text, self._at)) is not None:
                self._take(plain[0], tell)
            elif char == '"':
                self._take(char, tell)
                return
            elif char == "\\":
                escape = yield from self._peek(2)
                if escape[1:] == "u":
                    escape = yield from self._peek(6)
                if _ESCAPE.fullmatch(escape):
                    self._take(escape, tell)
                else:  # as of a regular expression, or the answer's end
                    self._at += 1
                    tell("\\\\" if len(escape) > 1 else "")
            else:
                self._at += 1
                tell(_escaped(char))

    def _marked(self, pairs: Pairs) -> Steps[None]:
        dialect = self._dialect
        ends = _any((pairs.name_end,) if pairs.name_end else ("\n", pairs.key, dialect.closing))
        while (match := ends.search(self._text, self._at)) is None:
            if self._is_over or len(self._text) - self._at > _MOST_HEAD:
                return
            yield
        name = self._text[self._at : match.start()].strip()
        if match.end() - self._at > _MOST_HEAD or _NAME.fullmatch(name) is None:
            return
        self._at = match.end() if pairs.name_end else match.start()
        self._begin(name)
        prefix = "{"  # before the next key
        marks = (pairs.key, dialect.foot, dialect.closing, dialect.opening, dialect.head)
        while (mark := (yield from self._until(marks, lambda _: None))) == pairs.key:
            parts: list[str] = []
            if not (yield from self._until((pairs.key_end,), parts.append)):
                return
            key = _NAME.match("".join(parts).strip())
            shown = "".join(parts) if key is None else key[0]
            self._tell(f"{prefix}{json.dumps(shown, ensure_ascii=False)}: ")
            prefix = ", "
            yield from self._marked_value(pairs, types_of(self._tools.get(name), shown))
        self._at -= len(mark)
        if mark:
            self._tell("{}" if prefix == "{" else "}")

    def _marked_value(self, pairs: Pairs, types: set[str]) -> Steps[None]:
        dialect, around, parts = self._dialect, pairs.around, list[str]()
        if around:
            yield from self._takes(around)
        is_text = types == {"string"}
        if is_text:
            self._tell('"')
        again = (around + pairs.key, around + dialect.foot) if around else ()
        ends = (around + pairs.value_end, pairs.value_end, *again)
        tell = (lambda text: self._tell(_escaped(text))) if is_text else parts.append
        mark = yield from self._until(ends, tell)
        if mark in again:
            self._at -= len(mark) - len(around)
        if mark:
            self._tell('"' if is_text else json_of("".join(parts), types))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
