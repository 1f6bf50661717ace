"""Sizes of grammars: bounds before they are built, and trial builds in a process of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from c2c.engine.front import trials as trying
from c2c.engine.front.ends import has_end
from c2c.engine.front.failures import ApiError
from c2c.engine.front.grammars import MOST_ITEMS, schema_grammar
from c2c.engine.front.trial import MOST_SYMBOLS, fault
from c2c.engine.front.trials import MOST_CHARACTERS, Trials

WHOLE = {"type": "integer"}
COUNTS = st.sampled_from([0, 1, 3, MOST_ITEMS, MOST_ITEMS + 1, 10**6, 2**24, 2**31 - 1, 1e30])
LEAVES = st.sampled_from([WHOLE, {"type": "string", "maxLength": 10**9}, {"const": 1}, True])


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    array = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={"minItems": COUNTS, "maxItems": COUNTS},
    )
    fields = st.dictionaries(st.sampled_from(["items", "maxItems", "enum", "a"]), inner, max_size=3)
    return (
        array
        | st.fixed_dictionaries({"type": st.just("object"), "properties": fields})
        | st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
        | inner.map(lambda one: {"allOf": [one], "$defs": {"minItems": one}})
    )


def counts(schema: Any) -> list[float]:
    """Return the bounds of arrays, wherever they are, that an answer has room for."""
    if isinstance(schema, list):
        return [n for one in schema for n in counts(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema.get("minItems"), schema.get("maxItems")]
    found = [own[0]] + [own[1]] * (isinstance(own[1], int | float) and own[1] < 2**24)
    return [n for n in found if isinstance(n, int | float)] + counts(list(schema.values()))


@given(st.recursive(LEAVES, _wider, max_leaves=6).filter(lambda schema: isinstance(schema, dict)))
@settings(max_examples=150, deadline=None)
def test_a_schema_is_refused_if_and_only_if_it_counts_too_many_items(schema: Any) -> None:
    if any(count > MOST_ITEMS for count in counts(schema)):
        with pytest.raises(ApiError, match=rf"Items: .*, expected at most {MOST_ITEMS}"):
            schema_grammar(schema, "any")
        return
    grammar = schema_grammar(schema, "any")
    began_s = time.process_time()
    said = fault(grammar)
    assert time.process_time() - began_s < 2.0  # some 0.1 where nothing else runs
    # What is left is a matter of the sum, or has no value at all.
    assert not said or f"limit for this grammar: {MOST_SYMBOLS}" in said or "nsatisfiable" in said


@pytest.mark.parametrize("name", ["minItems", "maxItems"])
@pytest.mark.parametrize(
    "around",
    [
        lambda array: array,
        lambda array: {"items": {"items": array}},
        lambda array: {"properties": {"maxItems": array}},
        lambda array: {"$defs": {"a": array}, "$ref": "#/$defs/a"},
        lambda array: {"allOf": [WHOLE, array]},
        lambda array: {"type": "array", "prefixItems": [array], "additionalItems": False},
    ],
)
def test_items_are_counted_wherever_they_are(name: str, around: Any) -> None:
    with pytest.raises(ApiError, match=f"guided_json: {name}: 5001, expected at most 5000"):
        schema_grammar(around({"type": "array", "items": WHOLE, name: 5_001}), "guided_json")


def test_a_maximum_that_no_answer_reaches_is_none() -> None:
    def grammar(**more: Any) -> str:
        return schema_grammar({"type": "array", "items": WHOLE, **more}, "any")

    assert grammar(maxItems=2**31 - 1) == grammar(maxItems=1e18) == grammar()
    assert grammar(maxItems=MOST_ITEMS) != grammar()
    assert fault(grammar(maxItems=MOST_ITEMS)) == ""


TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
LIST = {"type": "array", "items": {"$ref": "#"}}
A, B = {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b~1/0"}


@pytest.mark.parametrize(
    ("schema", "ends"),
    [
        ({"$ref": "#"}, False),
        ({"allOf": [{"$ref": "#"}]}, False),
        ({"anyOf": [{"$ref": "#"}]}, False),
        ({"oneOf": [{"$ref": "#"}, WHOLE]}, True),
        ({**A, "$defs": {"a": A}}, False),
        ({**A, "$defs": {"a": B, "b/": [A]}}, False),
        ({**A, "$defs": {"a": B, "b/": [{"anyOf": [A, WHOLE]}]}}, True),
        ({"$defs": {"a": A}}, True),  # not used
        (TREE, True),
        (TREE | {"required": ["left"]}, False),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, True),  # a number has no fields
        (LIST, True),
        (LIST | {"minItems": 1}, False),
        (LIST | {"minItems": 1, "prefixItems": [WHOLE]}, True),
        (LIST | {"minItems": 2, "prefixItems": [WHOLE]}, False),
        ({"$ref": "#/missing"}, True),  # llguidance refuses it
        ({"$ref": "https://example.org"}, True),
        ({**A, "$defs": {"a": {"type": "object", "required": ["b"], "properties": {"b": B}},
                         "b/": [{"anyOf": [A, {"type": "null"}]}]}}, True),
    ],
)  # fmt: skip
def test_a_schema_whose_references_have_no_end_is_refused(schema: Any, ends: bool) -> None:
    assert has_end(schema) == ends
    if not ends:
        with pytest.raises(ApiError, match="circle"):
            schema_grammar(schema, "any")


@given(st.data())
def test_a_schema_that_a_value_has_has_an_end(data: st.DataObject) -> None:
    """A schema that is found to have no end has no value: none of a few small ones."""
    names = ["a", "b", "c"]
    refs = st.sampled_from([{"$ref": f"#/$defs/{name}"} for name in names])
    one = st.recursive(
        refs | st.just({"type": "null"}),
        lambda inner: (
            st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
            | st.fixed_dictionaries(
                {"type": st.just("array"), "items": inner, "minItems": st.just(1)}
            )
        ),
        max_leaves=4,
    )
    schema = {"$defs": {name: data.draw(one) for name in names}, "$ref": "#/$defs/a"}
    values: list[Any] = [None, [None], [[None]], [[[None]]], [None, [None]]]
    try:
        has_value = any(Draft202012Validator(schema).is_valid(value) for value in values)
    except RecursionError:  # a circle
        return
    assert has_end(schema) or not has_value


def tried(*grammars: tuple[str, str]) -> list[str]:
    """Return what a client is told of each, one after the other."""

    async def scenario() -> list[str]:
        trials, told = Trials(), []
        for grammar, param in grammars:
            try:
                await trials.check(grammar, param)
                told.append("")
            except ApiError as error:
                told.append(f"{error.status_code} {error.detail}")
        await trials.close()
        return told

    return asyncio.run(scenario())


def lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def test_grammars_are_tried_in_a_process_that_may_end() -> None:
    fine = schema_grammar({"type": "array", "items": WHOLE, "maxItems": MOST_ITEMS}, "any")
    endless = lark(
        'start: %json {"type": "array", "items": {"type": "null"}, "maxItems": 100000000}'
    )
    deep = lark("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(50_000)) + 'r50000: "a"')
    slow = schema_grammar(
        {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{k}}}$"} for k in range(5, 30)]},
        "any",
    )
    none, large = lark("start: start"), lark("start: " + '"a" ' * (MOST_CHARACTERS // 4))
    long = lark("start: " + " ".join(f'"{i}"' for i in range(MOST_SYMBOLS)))
    began_s = time.monotonic()
    told = tried(*((grammar, "any") for grammar in (
        fine, endless, deep, fine, slow, none, large, long, lark("start: <[70000]>"), lark("{"),
        fine, lark('start: "a"~1000000'), lark('start: ""'), lark('start: "a"?'),
    )))  # fmt: skip
    assert time.monotonic() - began_s < 60.0
    killed = (
        "400 any: it takes more than 0.25 s or 1024 MiB to build, or nests too deeply; expected a "
        "smaller grammar"
    )
    assert told[:6] == ["", killed, killed, "", killed, "400 any: no text is of this form"]
    assert told[6] == f"400 any: {len(large)} characters, expected at most {MOST_CHARACTERS}"
    assert told[7] == killed or str(MOST_SYMBOLS) in told[7]
    assert (told[8], told[10]) == ("", "")  # a token that another vocabulary may have
    assert told[11].startswith("400 any: parser error: Too many items")  # after its first letter
    assert told[12:] == ["", ""]
    assert told[9].startswith("400 any: ")


def test_one_grammar_is_tried_at_a_time_and_those_known_are_not() -> None:
    async def scenario() -> tuple[list[Any], float]:
        trials = Trials()
        await trials.check(lark('start: "a"'), "any")
        async with trials._lock:  # another one takes long
            began_s = time.monotonic()
            known = trials.check(lark('start: "a"'), "any")
            found = await asyncio.gather(
                known, trials.check(lark('start: "b"'), "any"), return_exceptions=True
            )
            took_s = time.monotonic() - began_s
        await trials.close()
        return found, took_s

    (known, other), took_s = asyncio.run(scenario())
    assert known is None
    assert isinstance(other, ApiError)
    assert (other.status_code, other.code) == (503, "overloaded")
    assert took_s < 30.0


def test_a_process_that_others_ended_refuses_nothing() -> None:
    async def scenario() -> None:
        trials = Trials()
        await trials.check(lark('start: "a"'), "any")
        assert trials._process is not None
        trials._process.kill()
        await trials._process.wait()
        await trials.check(lark('start: "b"'), "any")
        await trials.close()

    asyncio.run(scenario())


def test_a_process_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        trials = Trials()
        await trials.check(lark('start: "a"'), "any")
        assert trials._process is not None
        stopped = trials._process
        stopped.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(trying, "_MOST_S", 0.2)
        with pytest.raises(ApiError, match="takes more than") as found:
            await trials.check(lark('start: "b"'), "any")
        assert (found.value.status_code, stopped.returncode) == (400, -signal.SIGKILL)
        monkeypatch.undo()
        await trials.check(lark('start: "b"'), "any")
        await trials.close()

    asyncio.run(scenario())


def test_a_machine_without_room_is_no_fault_of_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(ApiError, match="Cannot allocate memory") as found:
        asyncio.run(Trials().check(lark('start: "a"'), "any"))
    assert found.value.status_code == 503


def test_a_client_that_goes_leaves_no_answer_for_the_next_one() -> None:
    async def scenario() -> None:
        trials = Trials()
        await trials.check(lark('start: "a"'), "any")
        gone = asyncio.create_task(trials.check(lark("{"), "any"))
        await asyncio.sleep(0.0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await trials.check(lark('start: "b"'), "any")
        await trials.close()

    asyncio.run(scenario())
