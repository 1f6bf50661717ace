"""Answers as blocks: Anthropic's messages and OpenAI's responses."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from c2c.engine.front.answers import usage
from c2c.engine.front.choices import Choice, Piece
from c2c.engine.front.failures import ApiError
from c2c.engine.front.parser import Delta, Kind

__all__ = ["Blocks", "MessageBlocks", "ResponseBlocks"]

type Event = dict[str, Any]


# A whole answer is the last state of its stream.
class Blocks:
    """Form of one choice's answer; a subclass has an API's events."""

    _choice: Choice
    _prompt: int
    # What a subclass has: whole answer and block as JSON types, and events of each moment.
    _answer: Callable[[], Event]
    _block: Callable[[Kind, str], Event]
    _problem: Callable[[ApiError], Event]
    _first: Callable[[], Iterable[Event]]
    _opened: Callable[[Kind], Iterable[Event]]
    _more: Callable[[Kind, str], Iterable[Event]]
    _shut: Callable[[Kind, Event], Iterable[Event]]
    _last: Callable[[], Iterable[Event]]

    def __init__(self) -> None:
        self._kind: Kind | None = None
        self._texts: list[str] = []  # of the current block
        self._call = Delta(0, "")
        self._done: list[dict[str, Any]] = []
        self._has_failed = False

    def begin(self, choices: Sequence[Choice], prompt: int) -> None:
        """Set the choice and the prompt's tokens."""
        (self._choice,), self._prompt = choices, prompt

    def whole(self) -> dict[str, Any]:
        """Return the complete answer."""
        self._events(Piece(self._choice.parts), is_first=True, is_last=True)
        return self._answer()

    def chunk(self, _choice: Choice, piece: Piece, *, is_first: bool, is_last: bool) -> bytes:
        """Return the events of new parts."""
        return self._written(self._events(piece, is_first=is_first, is_last=is_last))

    def _events(self, piece: Piece, *, is_first: bool, is_last: bool) -> list[Event]:
        events = list(self._first()) if is_first else []
        for kind, part in piece.parts.found:
            text, call = (part.arguments, part) if isinstance(part, Delta) else (part, None)
            if kind != self._kind or (call is not None and call.name):
                events += self._closed()
                self._kind, self._texts, self._call = kind, [], call or self._call
                events += self._opened(kind)
            self._texts.append(text)
            if text:
                events += self._more(kind, text)
        if is_last:
            events += self._closed()
        return events

    def last(self) -> bytes:
        """Return the events after the last part."""
        return b"" if self._has_failed else self._written(self._last())

    def failed(self, error: ApiError) -> bytes:
        """Return a failure's event, the last."""
        self._has_failed = True
        return self._written([{"type": "error"} | self._problem(error)])

    def _closed(self) -> Iterable[Event]:
        if self._kind is None:
            return []
        kind, self._kind = self._kind, None
        block = self._block(kind, "".join(self._texts))
        events = list(self._shut(kind, block))
        self._done.append(block)
        return events

    def _written(self, events: Iterable[Event]) -> bytes:
        lines = (
            b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
            for event in map(self._numbered, events)
        )
        return b"".join(lines)

    def _numbered(self, event: Event) -> Event:
        return event


class MessageBlocks(Blocks):
    """Form of Anthropic's messages."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._head = {
            "id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model,
        }  # fmt: skip

    def _end(self) -> dict[str, Any]:
        one = self._choice
        reasons = {"length": "max_tokens", "tool_calls": "tool_use", None: None}
        why = reasons.get(one.finish, "stop_sequence" if one.stopped_by else "end_turn")
        return {"stop_reason": why, "stop_sequence": one.stopped_by}

    def _usage(self) -> dict[str, int]:
        hit_tokens = min(self._choice.found, self._prompt)
        return {
            "input_tokens": self._prompt - hit_tokens, "cache_read_input_tokens": hit_tokens,
            "cache_creation_input_tokens": 0, "output_tokens": self._choice.drawn,
        }  # fmt: skip

    def _problem(self, error: ApiError) -> dict[str, Any]:
        return {"error": error.body()["error"]}

    def _answer(self) -> dict[str, Any]:
        return self._head | {"content": self._done} | self._end() | {"usage": self._usage()}

    def _block(self, kind: Kind, text: str) -> dict[str, Any]:
        if kind == "thought":
            return {"type": "thinking", "thinking": text, "signature": ""}
        if kind == "text":
            return {"type": "text", "text": text}
        try:
            value = json.loads(text or "{}")
        except (ValueError, RecursionError):
            value = None
        arguments = value if isinstance(value, dict) else {"arguments": text}  # cut off, or no JSON
        return {
            "type": "tool_use",
            "id": self._call.id,
            "name": self._call.name,
            "input": arguments,
        }

    def _first(self) -> Iterable[Event]:
        more: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        yield {"type": "message_start", "message": self._head | more}

    def _opened(self, kind: Kind) -> Iterable[Event]:
        block = self._block(kind, "")
        yield {"type": "content_block_start", "index": len(self._done), "content_block": block}

    def _more(self, kind: Kind, text: str) -> Iterable[Event]:
        name, field = {
            "thought": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
            "call": ("input_json_delta", "partial_json"),
        }[kind]  # fmt: skip
        delta = {"type": name, field: text}
        yield {"type": "content_block_delta", "index": len(self._done), "delta": delta}

    def _shut(self, _kind: Kind, _block: dict[str, Any]) -> Iterable[Event]:
        yield {"type": "content_block_stop", "index": len(self._done)}

    def _last(self) -> Iterable[Event]:
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage()}
        yield {"type": "message_stop"}


class ResponseBlocks(Blocks):
    """Form of OpenAI's responses."""

    def __init__(self, shown: dict[str, Any]) -> None:
        """Create the form; the answer repeats the fields `shown`."""
        super().__init__()
        self._number, self._item = -1, ""
        self._head = shown | {
            "id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time()),
            "error": None, "store": False, "previous_response_id": None,
        }  # fmt: skip

    def _numbered(self, event: Event) -> Event:
        self._number += 1
        return event | {"sequence_number": self._number}

    def _problem(self, error: ApiError) -> dict[str, Any]:
        return {name: error.body()["error"][name] for name in ("message", "param", "code")}

    def _answer(self) -> dict[str, Any]:
        finish, used = self._choice.finish, usage([self._choice], self._prompt)
        is_cut = finish == "length"
        status = "incomplete" if is_cut else "completed" if finish else "in_progress"
        return self._head | {
            "status": status, "output": self._done,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": used["prompt_tokens"], "output_tokens": used["completion_tokens"],
                "total_tokens": used["total_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens_details": {"reasoning_tokens": 0},
            } if finish else None,
        }  # fmt: skip

    def _block(self, kind: Kind, text: str, status: str = "completed") -> dict[str, Any]:
        base = {"id": self._item, "status": status}
        if kind == "call":
            name, call = self._call.name, self._call.id
            return base | {
                "type": "function_call", "call_id": call, "name": name, "arguments": text,
            }  # fmt: skip
        content = [self._part(kind, text)] if status == "completed" else []
        if kind == "thought":
            return base | {"type": "reasoning", "summary": [], "content": content}
        return base | {"type": "message", "role": "assistant", "content": content}

    def _part(self, kind: Kind, text: str) -> dict[str, Any]:
        if kind == "thought":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _at(self, kind: Kind) -> dict[str, Any]:
        inner = {} if kind == "call" else {"content_index": 0}
        return {"item_id": self._item, "output_index": len(self._done), **inner}

    def _first(self) -> Iterable[Event]:
        for name in ("created", "in_progress"):
            yield {"type": f"response.{name}", "response": self._answer()}

    def _opened(self, kind: Kind) -> Iterable[Event]:
        prefix = {"thought": "rs", "text": "msg", "call": "fc"}[kind]
        self._item = f"{prefix}_{uuid.uuid4().hex}"
        item = self._block(kind, "", "in_progress")
        yield {
            "type": "response.output_item.added", "output_index": len(self._done), "item": item,
        }  # fmt: skip
        if kind != "call":
            part = self._part(kind, "")
            yield {"type": "response.content_part.added", **self._at(kind), "part": part}

    def _name(self, kind: Kind) -> str:
        names = {
            "thought": "reasoning_text",
            "text": "output_text",
            "call": "function_call_arguments",
        }
        return f"response.{names[kind]}"

    def _more(self, kind: Kind, text: str) -> Iterable[Event]:
        more: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
        yield {"type": f"{self._name(kind)}.delta", **self._at(kind), "delta": text, **more}

    def _shut(self, kind: Kind, block: dict[str, Any]) -> Iterable[Event]:
        done = {"type": f"{self._name(kind)}.done", **self._at(kind)}
        if kind == "call":
            yield done | {"arguments": block["arguments"], "name": block["name"]}
        else:
            (part,) = block["content"]
            yield done | {"text": part["text"]} | ({"logprobs": []} if kind == "text" else {})
            yield {"type": "response.content_part.done", **self._at(kind), "part": part}
        index = len(self._done)
        yield {"type": "response.output_item.done", "output_index": index, "item": block}

    def _last(self) -> Iterable[Event]:
        answer = self._answer()
        yield {"type": f"response.{answer['status']}", "response": answer}
