"""Drawn grammars that may cost much, against the process that tries them (`make soak`)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from c2c.engine.front.failures import ApiError
from c2c.engine.front.grammars import grammar_of
from c2c.engine.front.protocol import ChatRequest
from c2c.engine.front.trials import Trials

pytestmark = pytest.mark.soak

# how many are drawn, and from which number on
SEEDS, FIRST = int(os.environ.get("SEEDS", "300")), int(os.environ.get("FIRST", "0"))
_MOST_S = 5.0  # 0.25 s of CPU time and the process's start, on a machine that others use, too
_MOST_GROWTH_MB = 300.0
_COUNTS = (0, 1, 7, 100, 4_999, 5_000, 5_001, 10**6, 2**24, 2**31 - 1, 10**30)


def pattern(r: random.Random, depth: int = 4) -> str:
    """Return a regular expression with nested quantifiers."""
    if depth == 0 or r.random() < 0.2:
        return r.choice(("a", "[a-z]", ".", r"\d", r"\w", r"\p{L}", "(a|b|ab)", "é"))
    inner = pattern(r, depth - 1)
    low = r.choice((0, 1, 9, 99, 999))
    return r.choice((
        f"({inner})*", f"({inner})+", f"({inner}){{{low},{low + r.choice((0, 1, 999))}}}",
        f"({inner}|{pattern(r, depth - 1)})", f"{inner}{pattern(r, depth - 1)}", f"({inner})?",
        f"({inner}){{{low}}}", f"(?={inner})", f"^{inner}$",
    ))  # fmt: skip


def schema(r: random.Random, depth: int = 5) -> Any:
    """Return a JSON schema that may be deep, wide, or refer to itself."""
    if depth == 0:
        return r.choice((True, {"type": "integer"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}))
    inner = [schema(r, depth - 1) for _ in range(r.randint(1, 3))]
    names = [f"n{k}" for k in range(r.choice((1, 3, 30, 300, 3_000)))]
    found: Any = r.choice((
        {"type": "array", "items": inner[0], "maxItems": r.choice(_COUNTS)},
        {"type": "array", "items": inner[0], "minItems": r.choice(_COUNTS)},
        {"type": "array", "prefixItems": inner * r.choice((1, 50))},
        {"type": "object", "properties": dict.fromkeys(names, inner[0]),
         "required": names[: r.choice((0, 1, 3_000))], "additionalProperties": r.random() < 0.5},
        {"type": "object", "patternProperties": {pattern(r, 2): inner[0]}},
        {"type": "object", "minProperties": r.choice(_COUNTS)},
        {"anyOf": inner * r.choice((1, 20))}, {"oneOf": inner}, {"allOf": inner * r.choice((1, 9))},
        {"enum": [name * r.choice((1, 40)) for name in names]},
        {"type": "string", "pattern": pattern(r)},
        {"type": "string", "minLength": r.choice(_COUNTS), "maxLength": r.choice(_COUNTS)},
        {"type": "number", "multipleOf": r.choice((0.1, 3, 1e-9))},
        {"type": "integer", "minimum": -r.choice(_COUNTS), "maximum": r.choice(_COUNTS)},
        {"not": inner[0]},
    ))  # fmt: skip
    return found | ({"$defs": {"a": inner[-1]}} if r.random() < 0.3 else {})


def lark(r: random.Random) -> str:
    """Return a grammar of many rules, in one another."""
    count = r.choice((1, 5, 50, 500))
    rules = [
        f"r{k}: " + " ".join(
            r.choice((f"r{r.randrange(count)}", '"a"', f"/{pattern(r, 2)}/", '("b" | "c")*',
                      f'"x"{{{r.choice((1, 99, 9999))}}}', f"%json {json.dumps(schema(r, 1))}"))
            for _ in range(r.randint(1, 4))
        )
        for k in range(count)
    ]  # fmt: skip
    return "\n".join(["start: r0", *rules])


def drawn(seed: int) -> dict[str, Any]:
    r = random.Random(seed)
    kind = r.choice(("guided_json", "guided_regex", "guided_grammar", "guided_choice"))
    value: Any = {
        "guided_json": schema(r, r.randint(1, 6)), "guided_regex": pattern(r, r.randint(1, 7)),
        "guided_grammar": lark(r), "guided_choice": ["a" * r.choice((1, 99, 60_000))] * 3,
    }[kind]  # fmt: skip
    if kind == "guided_json" and not isinstance(value, dict):
        value = {"items": value}
    return {kind: value}


def _mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_no_drawn_grammar_costs_much() -> None:
    async def tried() -> dict[str, int]:
        trials, counts = Trials(), {"taken": 0, "refused": 0}
        statuses: set[int] = set()
        try:
            for seed in range(FIRST, FIRST + SEEDS):
                body = {"model": "any", "messages": [{"role": "user"}], **drawn(seed)}
                began_s = time.monotonic()
                try:
                    grammar, param = grammar_of(ChatRequest.model_validate(body))
                    await trials.check(grammar, param)
                    counts["taken"] += 1
                except (ApiError, ValueError) as error:
                    statuses.add(getattr(error, "status_code", 400))
                    counts["refused"] += 1
                took_s = time.monotonic() - began_s
                assert took_s < _MOST_S, (seed, took_s)
        finally:
            await trials.close()
        assert statuses == {400}
        return counts

    before_mb = _mb()
    counts = asyncio.run(tried())
    print(counts, f"{_mb() - before_mb:.0f} MB more")
    assert min(counts.values()) > SEEDS // 20
    assert _mb() - before_mb < _MOST_GROWTH_MB
