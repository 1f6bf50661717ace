"""Attacks on the API over a socket: pieces of bytes, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.attacks.table import Attack

__all__ = ["ADDING", "API", "SLOW", "head", "posted"]

_MODEL = "three"


def head(first: str, *more: str) -> bytes:
    """Return a request's line and headers."""
    return "\r\n".join([first + " HTTP/1.1", "host: x", *more, "", ""]).encode()


def posted(
    body: Any, path: str = "/v1/completions", *more: str, length: int | None = None
) -> bytes:
    """Return a request with a body: bytes, or what JSON makes of it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = ("content-type: application/json", "connection: close")
    return head(f"POST {path}", *kind, f"content-length: {length or len(raw)}", *more) + raw


def _text(**more: Any) -> bytes:
    return posted({"model": _MODEL, "prompt": "w5", "max_tokens": 3} | more)


def _raw(field: str) -> bytes:
    return posted(b'{"model": "three", "prompt": "w5", "max_tokens": 3, %s}' % field.encode())


def _chunked(*parts: bytes) -> bytes:
    kind = ("content-type: application/json", "transfer-encoding: chunked", "connection: close")
    return head("POST /v1/completions", *kind) + b"".join(parts)


_NO_HTTP = "400 Invalid HTTP request received."
_HEAD = "431 expected at most 65536 bytes outside a request's body"
_DEEP = (
    "400 the body is not valid JSON: maximum recursion depth exceeded while decoding a JSON array "
    "from a unicode string"
)


def _api() -> Sequence[tuple[str, bytes, str]]:
    get = head("GET /v1/models", "connection: close")
    return [
        # The protocol.
        ("bytes that are no HTTP", b"\x00\xff\r\n\r\n", _NO_HTTP),
        ("a method that is none", head("FOO /health"), _NO_HTTP),
        ("HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", _NO_HTTP),
        ("a header of 30 MB", head("GET /health", "x: " + "a" * 30_000_000), _HEAD),
        ("500,000 headers", head("GET /health", *["x: a"] * 500_000), _HEAD),
        ("a path of 10 MB", head("GET /" + "a" * 10_000_000), _HEAD),
        ("a negative length", posted(b"", length=-1), _NO_HTTP),
        ("two lengths", posted(b"{}", "/v1/completions", "content-length: 3"), _NO_HTTP),
        ("a length and chunks", posted(b"", "/tokenize", "transfer-encoding: chunked"), _NO_HTTP),
        ("chunks of nonsense", _chunked(b"zz\r\nabc"), _NO_HTTP),
        ("a chunk of 2^68 bytes", _chunked(b"fffffffffffffffff\r\n"), _NO_HTTP),
        ("36 MB of trailers", _chunked(b"0\r\n", b"x: aaaaaaaaaaaaaaa\r\n" * 1_900_000),
         "431 expected at most 1048576 bytes outside a request's body"),
        ("a trailer", _chunked(b"2\r\n{}\r\n0\r\nx: y\r\n\r\n"), "400 model: Field required"),
        ("a length that is too short", posted(b'{"model": 1}', length=5),
         "400 the body is not valid JSON: "
         "Unterminated string starting at: line 1 column 2 (char 1)"),
        ("a body of 40 MB", posted(b" " * 40_000_000),
         "413 expected a body of at most 33554432 bytes"),
        ("a body of 33 MB in chunks", _chunked(*[b"100000\r\n" + b" " * (1 << 20) + b"\r\n"] * 33),
         "413 expected a body of at most 33554432 bytes"),
        ("three requests at once", get.replace(b"connection: close\r\n", b"") * 2 + get,
         "200, three times"),
        ("an upgrade to WebSockets", head("GET /version", "connection: upgrade, close",
         "upgrade: websocket", "sec-websocket-version: 13"), "200"),
        # Methods and paths.
        ("HEAD of what GET has", head("HEAD /v1/models", "connection: close"), "200"),
        ("HEAD of what POST has", head("HEAD /v1/completions", "connection: close"), "405"),
        *((f"{method} of /v1/models", head(f"{method} /v1/models", "connection: close"),
           "405 Method Not Allowed") for method in ("PUT", "PATCH", "TRACE", "OPTIONS", "CONNECT")),
        ("a path out of the models", head("GET /v1/models/../../etc/passwd", "connection: close"),
         "404 the model '../../etc/passwd' does not exist"),
        ("a path with NUL and a line break", head("GET /%00%0aERROR", "connection: close"),
         "404 Not Found"),
        # Bodies.
        ("a body that is gzip", posted(b"\x1f\x8b" + b"x" * 9),
         "400 the body is not valid UTF-8 (at byte 1)"),
        ("a text that is no UTF-8", posted(b'{"model": "\xff"}'),
         "400 the body is not valid UTF-8 (at byte 11)"),
        ("half of a surrogate pair", _raw(r'"stop": "\ud800"'),
         "400 stop: half of a surrogate pair, expected valid Unicode"),
        ("a million lists in one another", posted(b'{"model":' + b"[" * 1_000_000), _DEEP),
        ("NaN", _raw('"temperature": NaN'), "400 temperature: Input should be a finite number"),
        ("-Infinity", _raw('"temperature": -Infinity'),
         "400 temperature: Input should be a finite number"),
        ("1e999", _raw('"seed": 1e999'), "400 seed: Input should be a finite number"),
        ("a number of 5,000 digits", _raw('"seed": ' + "9" * 5000),
         "400 the body is not valid JSON: Exceeds the limit (4300 digits) for integer string "
         "conversion: value has 5000 digits; "
         "use sys.set_int_max_str_digits() to increase the limit"),
        ("-1 new tokens", _text(max_tokens=-1),
         "400 max_tokens: Input should be greater than or equal to 0"),
        ("10^30 new tokens", _text(max_tokens=10**30),
         "400 max_tokens: ... prompt tokens and 1000000000000000000000000000000 new ones exceed "
         "the context of ... tokens"),
        ("a field twice: the last one is taken", _raw('"n": 0, "n": 1'), "200"),
        ("NUL in a text", _raw(r'"user": "\u0000"'), "200"),
        ("20,000 unknown fields", _text(**{f"f{k}": 1 for k in range(20_000)}), "200"),
        ("an unknown field that looks like a line of the log",
         _text(**{"x\nERROR \x1b[31mdown": 1}), "200"),
        ("a million stop strings", _text(stop=["a"] * 1_000_000),
         "400 stop: List should have at most 64 items after validation, not 1000000"),
        ("a million prompts", _text(prompt=["a"] * 1_000_000),
         "400 prompt: List should have at most 2048 items after validation, not 1000000"),
        ("a million messages that are none",
         posted({"model": _MODEL, "messages": [1] * 1_000_000}, "/v1/chat/completions"),
         "400 messages: Input should be a valid dictionary or object to extract fields from"),
        ("a prompt of 5 million tokens", _text(prompt=[1] * 5_000_000),
         "400 prompt: the prompt exceeds the context of ... tokens"),
        ("500,000 biases", _text(logit_bias={str(k): 1 for k in range(500_000)}),
         "400 logit_bias: Dictionary should have at most 1024 items after validation, not more"),
        ("a text of 24 MB", posted({"model": _MODEL, "prompt": "w5 " * 8_000_000}, "/tokenize"),
         "400 prompt: expected at most ... characters"),
        ("an array of 3,000,000 items", _text(guided_json={"type": "array", "maxItems": 3_000_000}),
         "400 guided_json: maxItems: 3000000, expected at most 5000"),
        ("a schema that is its own reference", _text(guided_json={"$ref": "#"}),
         "400 guided_json: its references lead in a circle, so no value ends"),
        ("patterns that take minutes",
         _text(guided_json={"allOf": [
             {"type": "string", "pattern": f"^(a|b)*a(a|b){{{k}}}$"} for k in range(5, 30)
         ]}),
         "400 guided_json: it takes more than ... s or ... MiB to build, or nests too deeply; "
         "expected a smaller grammar"),
        ("a grammar of 2^31 items", _text(guided_grammar='start: %json {"minItems": 2147483647}'),
         "400 guided_grammar: it takes more than ... s or ... MiB to build, or nests too deeply; "
         "expected a smaller grammar"),
        ("5 million strings and an emoji",
         posted(b'{"model":"three","x":[' + b'"a",' * 5_000_000 + b'"\\ud83d\\ude00"]}'),
         "400 prompt: Field required"),
    ]  # fmt: skip


API = tuple(
    Attack(name=name, make=lambda sent=sent: sent, back=back) for name, sent, back in _api()
)

_NONE = "expected a checkpoint's folder (config.json) or GGUF file in the folder add_from."
_PLAIN = r"String should match pattern '^[^\x00-\x1f\x7f-\x9f]*$'"
_ADDED = (
    ("../../etc/passwd", "x", f"400 path='passwd': {_NONE}"),
    ("/etc", "x", f"400 path='etc': {_NONE}"),
    ("out", "x", f"400 path='out': {_NONE}"),  # a link to what is outside
    ("loop", "x", f"400 path='loop': {_NONE}"),
    ("a/" * 2000, "x", f"400 path='a/': {_NONE}"),
    ("a\0b", "x", f"400 path: {_PLAIN}"),
    ("one", "x\nERROR y", f"400 model: {_PLAIN}"),
    ("one", "one", "400 model='one': expected a name that no other model has."),
    (".", "", "400 path='.': expected one checkpoint; it has 6."),
)
ADDING = (
    *(
        Attack(
            name=f"POST /v1/models of path {ascii(path)[:24]}, model {model!a}",
            make=lambda path=path, model=model: posted(
                {"path": path, "model": model}, "/v1/models"
            ),
            back=back,
        )
        for path, model, back in _ADDED
    ),
    Attack(
        name="DELETE of a path out of the models",
        make=lambda: head("DELETE /v1/models/..", "connection: close"),
        back="404 the model '..' does not exist",
    ),
)
"""To an engine that adds models; the others answer 403."""

_BODY = posted({"model": _MODEL, "prompt": "w5", "max_tokens": 3}, length=100_000)
_LATE = (
    "408 expected a request's headers within ... s, then 20000 bytes of its body in each such time"
)
SLOW = (
    Attack(name="nothing, for ever", make=lambda: (b"", b""), back=_LATE),
    Attack(name="half of a line", make=lambda: (b"GET /hea", b""), back=_LATE),
    Attack(
        name="a header now and then",
        make=lambda: (b"GET /health HTTP/1.1\r\nhost: x\r\n", b"x: y\r\n"),
        back=_LATE,
    ),
    Attack(name="a byte of a body now and then", make=lambda: (_BODY, b" "), back=_LATE),
    Attack(
        name="a further request that never ends",
        make=lambda: (head("GET /health") + b"GET /", b"x"),
        back=f"200, then {_LATE}",
    ),
)
"""What is sent first, and then again and again."""
