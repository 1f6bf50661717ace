"""Texts, tokens and their places as the front answers them, for tokens that are given to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from c2c.engine import messages as say
from c2c.engine.front.app import make_app
from c2c.transformer import load
from tests.engine.fake_front import FakeLink, begun
from tests.transformer.random_checkpoints import config_of, tensors_of, write
from tests.transformer.small_tokenizers import KINDS

CONTEXT = 64
LONG = "<a token of thirty characters>"
MODELS = ("byte level", "strip", "word level")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
Top = tuple[tuple[int, float], ...]


class Scripted(FakeLink):
    """Each token that is to come has a frame of its own."""

    tokens: tuple[int, ...] = ()
    tops: tuple[Top, ...] = ()

    def ask(self, **fields: Any) -> tuple[int, asyncio.Queue[say.Answered]]:
        answers: asyncio.Queue[say.Answered] = asyncio.Queue()
        for token, top in zip(self.tokens, self.tops or ((),) * len(self.tokens), strict=True):
            scored = () if fields["scores"] is None else (say.Scored(1, -1.0 - token, top),)
            answers.put_nowait(say.Tokens(request=1, tokens=(token,), scores=scored))
        answers.put_nowait(say.Ended(request=1, why="length"))
        return 1, answers


def backend_of(model: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(KINDS[model].to_str())
    backend.add_tokens([tokenizers.AddedToken(LONG, normalized=False)])
    return backend


class Front:
    """Requests, and what is drawn for them."""

    def __init__(self, link: Scripted, ask: Callable[..., httpx.Response]) -> None:
        self.link, self.ask = link, ask

    def answer(
        self, model: str, names: list[str], tops: tuple[Top, ...] = (), **body: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The answer's choice, and the text and log-probabilities of the same as a stream."""
        backend = backend_of(model)
        self.link.tokens = tuple(backend.token_to_id(name) for name in names)
        self.link.tops = tops
        is_chat = "messages" in body
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        whole = self.ask("POST", path, json={"model": model, **body})
        assert whole.status_code == 200, whole.text
        stream = self.ask("POST", path, json={"model": model, "stream": True, **body}).text
        lines = [line.removeprefix("data: ") for line in stream.split("\n\n")]
        choices = [json.loads(line)["choices"][0] for line in lines if line.startswith("{")]
        scores: dict[str, Any] = {}
        for choice in choices:
            for name, values in (choice["logprobs"] or {}).items():
                scores.setdefault(name, []).extend(values)
        text = "".join(c["delta"].get("content", "") if is_chat else c["text"] for c in choices)
        return whole.json()["choices"][0], {"text": text, **scores}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("texts")
    for name in MODELS:
        backend = backend_of(name)
        config = config_of("llama", vocab_size=backend.get_vocab_size() + 8)
        path = write(folder / name, config, tensors_of(config))
        backend.save(str(path / "tokenizer.json"))
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    infos = [
        say.ModelInfo(name=name, path=str(folder / name), context=CONTEXT, vocab=1000)
        for name in MODELS
    ]
    link = Scripted(*infos)
    with begun(make_app(link, key=None)) as ask:
        yield Front(link, ask)


def test_a_text_goes_on_after_its_prompt_with_the_space(front: Front) -> None:
    names = ["▁ab", "c", "▁ab"]
    whole, stream = front.answer("strip", names, prompt="ab ab", logprobs=0)
    told = whole["logprobs"]
    assert whole["text"] == stream["text"] == " abc ab"
    assert told["tokens"] == stream["tokens"] == [" ab", "c", " ab"]
    assert told["text_offset"] == stream["text_offset"] == [0, 3, 4]
    assert [list(top) for top in told["top_logprobs"]] == [[" ab"], ["c"], [" ab"]]
    ids = backend_of("strip").encode("ab ab").ids
    assert front.answer("strip", names, prompt=ids)[1]["text"] == " abc ab"
    until, _ = front.answer("strip", names, prompt="ab ab", stop=" ab")
    assert (until["text"], until["finish_reason"]) == ("", "stop")
    until, _ = front.answer("strip", names, prompt="ab ab", stop="c a")
    assert (until["text"], until["finish_reason"]) == (" ab", "stop")


def test_a_chats_text_begins_without_it_and_its_tokens_keep_it(front: Front) -> None:
    chat = {"messages": [{"role": "user", "content": "ab"}], "logprobs": True}
    whole, stream = front.answer("strip", ["▁ab", "▁ab"], **chat)
    assert whole["message"]["content"] == stream["text"] == "ab ab"
    told = whole["logprobs"]["content"]
    assert told == stream["content"]
    assert [one["token"] for one in told] == [" ab", " ab"]
    assert [bytes(one["bytes"]) for one in told] == [b" ab", b" ab"]


def test_words_without_a_decoder_have_spaces_between(front: Front) -> None:
    whole, _ = front.answer("word level", ["b", "c"], prompt="a", logprobs=0)
    assert whole["text"] == " b c"
    assert whole["logprobs"]["tokens"] == [" b", " c"]
    assert whole["logprobs"]["text_offset"] == [0, 2]


@pytest.mark.parametrize("model", ["byte level", "strip"])
def test_bytes_and_places_of_parts_of_characters(front: Front, model: str) -> None:
    parts = [f"<0x{byte:02X}>" for byte in "🤷".encode()]
    special, space = ("<s>", "▁") if model == "strip" else ("<|a|>", "Ġ")
    if model == "byte level":
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        parts = list(level.pre_tokenize_str("🤷")[0][0])
    names = [special, "a", *parts, "b", special, space, "a"]
    whole, stream = front.answer(model, names, prompt="ab", logprobs=0)
    assert whole["text"] == stream["text"] == "a🤷b a"
    told = whole["logprobs"]
    assert told["text_offset"] == stream["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 3, 3, 4]
    assert told["tokens"] == [special, "a", *"\ufffd" * 4, "b", special, " ", "a"]
    shown, _ = front.answer(model, names, prompt="ab", logprobs=0, skip_special_tokens=False)
    text, told = shown["text"], shown["logprobs"]
    assert text == f"{special}a🤷b{special} a"
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert token == "\ufffd" or text[offset:].startswith(token)
    chat = {"messages": [{"role": "user", "content": "ab"}], "logprobs": True}
    for more in ({}, {"return_tokens_as_token_ids": True}):
        told = front.answer(model, names[1:-3], **chat, **more)[0]["logprobs"]["content"]
        assert b"".join(bytes(one["bytes"]) for one in told).decode() == "a🤷b"
    assert all(one["token"].startswith("token_id:") for one in told)


def test_likeliest_tokens_hold_the_drawn_one_and_lose_none(front: Front) -> None:
    backend = backend_of("byte level")
    a, b, first, second = (backend.token_to_id(name) for name in ("a", "b", "ð", "Ł"))
    tops = (
        ((a, -0.5), (b, -2.0)),  # the drawn one is none of them
        ((b, -0.5), (a, -2.0)),  # ... is one
        ((first, -0.5), (second, -1.5)),  # ... is third of those that are written alike
    )
    third = backend.token_to_id("ĺ")
    told = front.answer("byte level", ["c", "a", "ĺ"], tops, prompt="a", logprobs=2)[0]["logprobs"]
    c = backend.token_to_id("c")
    assert told["top_logprobs"] == [
        {"a": -0.5, "b": -2.0, "c": -1.0 - c},
        {"b": -0.5, "a": -1.0 - a},
        {f"token_id:{first}": -0.5, f"token_id:{second}": -1.5, "\ufffd": -1.0 - third},
    ]
    for token, logprob, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert top[token] == logprob


def test_a_long_text_is_refused_by_its_tokens(front: Front) -> None:
    for model, text in (("byte level", LONG * 60), ("word level", " " * 10_000 + "a" * 10_000)):
        answer = front.ask("POST", "/v1/completions", json={"model": model, "prompt": text})
        assert answer.status_code == 200, answer.text
    messages = [{"role": "user", "content": LONG * 60}]
    chat = {"model": "byte level", "messages": messages}
    assert front.ask("POST", "/v1/chat/completions", json=chat).status_code == 200
    for prompt in (LONG * 64, LONG * 100_000):
        body: dict[str, Any] = {"model": "byte level", "prompt": prompt}
        answer = front.ask("POST", "/v1/completions", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        chat["messages"] = [{"role": "user", "content": prompt}]
        answer = front.ask("POST", "/v1/chat/completions", json=chat)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")


def test_the_case_of_a_sentencepiece_model(shared_part: Callable[[str], Path]) -> None:
    case = shared_part("cases/engine/leading_space")
    asked = json.loads((case / "request.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    model = load(case / "checkpoint", "float32")
    assert model.tokenizer is not None
    text = model.generate(asked["prompt"], asked["max_tokens"], stop_at_eos=False)
    ids = model.tokenizer.encode(asked["prompt"])
    tokens = model.generate(ids, asked["max_tokens"])
    stream = model.tokenizer.stream(after=ids)
    offsets = []
    for token in tokens:
        stream.push(token)
        offsets.append(stream.offset(token))
    assert text == expected["text"]
    assert [model.tokenizer.spelling.text(token) for token in tokens] == expected["tokens"]
    assert offsets == expected["text_offset"]


def test_the_case_of_a_prompt_that_ends_within_a_character(
    shared: Path, shared_part: Callable[[str], Path]
) -> None:
    case = shared_part("cases2/engine/part_of_a_character_before_the_answer")
    asked = json.loads((case / "request.json").read_text())
    expected = json.loads((case / "expected.json").read_text())
    model = load(shared / "checkpoints" / asked["model"], "float32")
    assert model.tokenizer is not None
    tokens = model.generate(asked["prompt"], asked["max_tokens"])
    stream = model.tokenizer.stream(after=asked["prompt"])
    text = "".join(map(stream.push, tokens)) + stream.finish()
    assert (list(tokens), text) == (expected["token_ids"], expected["text"])
