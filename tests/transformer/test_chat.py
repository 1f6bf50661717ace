"""Chat templates: Jinja as transformers sets it up, in a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from c2c.errors import DataError, SettingError
from c2c.transformer.text.chat import ChatTemplate

USER = [{"role": "user", "content": "Hi <b>é</b>"}]


def render(source: str, messages: Any = USER, *, special: Any = None, **settings: Any) -> str:
    return ChatTemplate(source=source, special_tokens=special or {}).render(messages, **settings)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        # A block's own line leaves nothing behind, neither its indentation nor its end.
        ("{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}",
         "user\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi <b>é</b>"}]'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=1, sort_keys=true) }}",
         '{\n "a": [\n  1\n ],\n "b": 1\n}'),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}"
         "{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}"
         "{{ n.x }}", "1"),
        ("{% generation %}{{ messages[0]['content'].strip()[:2] }}{% endgeneration %}!", "Hi!"),
        ("{{ add_generation_prompt }} {{ tools }} {{ documents }}", "False None None"),
        ("[{{ missing }}{{ bos_token }}]", "[<s>]"),
        ("{{ enable_thinking is defined }}", "False"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, wanted: str) -> None:
    assert render(source, special={"bos_token": "<s>"}) == wanted


def test_variables_prompt_and_tools() -> None:
    source = "{{ x }}|{{ add_generation_prompt }}|{{ tools[0].name }}|{{ bos_token }}"
    tools = [{"name": "f"}]
    special = {"bos_token": "<s>"}
    found = render(source, special=special, x=3, add_generation_prompt=True, tools=tools)
    assert found == "3|True|f|<s>"
    assert render("{{ bos_token }}", special=special, bos_token="<t>") == "<t>"


def test_the_date_is_the_callers_or_now() -> None:
    source = "{{ strftime_now('%d %b %Y') }}"
    assert render(source, now=datetime(2024, 7, 26, tzinfo=UTC)) == "26 Jul 2024"
    before = datetime.now().astimezone().strftime("%Y")
    assert render("{{ strftime_now('%Y') }}") in (before, str(int(before) + 1))


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ missing + 'x' }}", "'missing' is undefined"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception.__globals__.x }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recurses without end"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "chat template"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(60) }}",
            "more than 1000000 steps",
        ),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            "more than 1000000 steps",
        ),
        (
            "{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
            "more than 33554432 characters",
        ),
        ("{{ ('x' * 10**11) | length }}", r"\* exceeds the size limit"),
        (
            "{% set n = namespace(x=9) %}{% for _ in range(60) %}{% set n.x=n.x*n.x %}{% endfor %}",
            r"\* exceeds the size limit",
        ),
        ("{{ 'x'.center(10 ** 15) }}", "runs out of memory"),
        ("{{ 10 ** (10 ** 10) }}", r"\*\* exceeds the size limit"),
        (
            "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}"
            "{% endfor %}",
            r"\+ exceeds the size limit",
        ),
    ],
)
def test_what_templates_may_not_do(source: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        render(source)


def test_a_broken_template_fails_when_it_is_loaded() -> None:
    with pytest.raises(DataError, match="line 2"):
        ChatTemplate(source="fine\n{% if %}")
    with pytest.raises(DataError, match="endgeneration"):
        ChatTemplate(source="{% generation %}x")


@pytest.mark.parametrize(
    "messages", ["hello", ["hello"], [{"content": "x"}], [{"role": 1}], [{"role": object()}]]
)
def test_messages_that_are_none(messages: Any) -> None:
    with pytest.raises(SettingError, match="messages"):
        render("x", messages)


def test_templates_see_copies() -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(DataError):
        render("{{ messages[0].update({'role': 'system'}) }}", messages)
    assert messages == [{"role": "user", "content": "x"}]
