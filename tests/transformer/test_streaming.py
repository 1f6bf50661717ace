"""Tokens as text: streams that agree with the library's decode, bytes, places in the text."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.transformer.text.stop_text import StopText
from c2c.transformer.text.streaming import TextStream
from c2c.transformer.text.token_bytes import Spelling, byte_alphabet
from c2c.transformer.text.tokenizer import Tokenizer
from tests.transformer.small_tokenizers import CORPUS, KINDS

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SPELLINGS = {kind: Spelling(backend) for kind, backend in KINDS.items()}
IN_BYTES = ("byte level", "strip", "metaspace", "plain")  # any text has tokens, and they give it
ALIKE = "abé日🙂 \n"


def texts_of(backend: tokenizers.Tokenizer) -> Any:
    """Token ids of pieces of text, and single tokens that are no byte between them."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    single = sorted(i for name, i in vocabulary.items() if not name.startswith("<0x"))
    if isinstance(backend.decoder, tokenizers.decoders.ByteLevel):
        added = backend.get_added_tokens_decoder()
        single = [i for name, i in vocabulary.items() if i in added or name.isascii()]
    text = st.text(st.sampled_from(ALIKE), max_size=12).map(lambda t: backend.encode(t).ids)
    ids = st.lists(text | st.sampled_from(single).map(lambda i: [i]), max_size=8)
    return ids.map(lambda found: list(itertools.chain.from_iterable(found)))


@st.composite
def any_texts(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[str, list[int]]:
    kind = draw(st.sampled_from(kinds))
    return kind, draw(texts_of(KINDS[kind]))


def streamed(kind: str, tokens: list[int], skip: bool = False, after: Any = ()) -> str:
    stream = TextStream(SPELLINGS[kind], skip_special_tokens=skip, after=after)
    pieces = [stream.push(token) for token in tokens]
    text = "".join(pieces) + stream.finish()
    assert stream.length == len(text)
    return text


# Also of any tokens: bytes that are no UTF-8, special tokens inside a character, unknown ids.
@given(
    found=any_texts()
    | st.tuples(st.just("byte level"), st.lists(st.integers(0, 605), max_size=20)),
    skip=st.booleans(),
)
@settings(max_examples=100)
def test_streams_give_what_decode_gives(found: tuple[str, list[int]], skip: bool) -> None:
    kind, tokens = found
    wanted = KINDS[kind].decode(tokens, skip_special_tokens=skip)
    assert streamed(kind, tokens, skip) == wanted


@given(found=any_texts(), cut=st.integers(0, 40), skip=st.booleans())
def test_a_text_goes_on_where_the_prompt_ends(
    found: tuple[str, list[int]], cut: int, skip: bool
) -> None:
    kind, tokens = found
    decode = KINDS[kind].decode
    prompt = decode(tokens[:cut], skip_special_tokens=skip)
    text = streamed(kind, tokens[cut:], skip, after=tokens[:cut])
    if not prompt.endswith(REPLACEMENT):  # not within a character
        assert prompt + text == decode(tokens, skip_special_tokens=skip)


def in_bytes(kind: str, character: str) -> list[int]:
    """The tokens of single bytes that a character is made of."""
    names = [f"<0x{byte:02X}>" for byte in character.encode()]
    if kind == "byte level":
        letters = {byte: letter for letter, byte in byte_alphabet().items()}
        names = [letters[byte] for byte in character.encode()]
    return [KINDS[kind].token_to_id(name) for name in names]


@pytest.mark.parametrize("kind", IN_BYTES)
def test_a_character_that_the_prompt_began_comes_whole(kind: str) -> None:
    first, *rest = in_bytes(kind, "🙂")
    assert streamed(kind, rest, after=[first]) == "🙂"
    assert streamed(kind, rest) == REPLACEMENT * 3


@pytest.mark.parametrize("kind", IN_BYTES)
def test_what_the_prompt_left_incomplete_is_no_part_of_a_text_that_does_not_complete_it(
    kind: str,
) -> None:
    """The prompt's own text has the U+FFFD of its bytes."""
    first, second, *_ = in_bytes(kind, "🙂")
    a = KINDS[kind].token_to_id("a")
    assert streamed(kind, [a], after=[first]) == "a"
    assert streamed(kind, in_bytes(kind, "é"), after=[first]) == "é"
    assert streamed(kind, [second, a], after=[first]) == REPLACEMENT + "a"
    assert streamed(kind, [second], after=[first]) == REPLACEMENT
    assert streamed(kind, [], after=[first]) == ""


@given(st.text(st.sampled_from(ALIKE), min_size=1, max_size=3).map(str.encode), st.data())
def test_any_bytes_after_any_part_of_a_character(prompt: bytes, data: st.DataObject) -> None:
    """The character whole if the text's bytes complete it, else the text's bytes alone."""
    cut = data.draw(st.integers(0, len(prompt)))
    answer = data.draw(st.just(prompt[cut:]) | st.binary(max_size=6))
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    ids = [[KINDS["byte level"].token_to_id(letters[b]) for b in part] for part in (
        prompt[:cut], answer)]  # fmt: skip
    decoded = prompt[:cut].decode(errors="replace")
    begun = prompt[:cut][len(decoded.rstrip(REPLACEMENT).encode()) :]
    whole = (begun + answer).decode(errors="replace")
    wanted = answer.decode(errors="replace")
    if begun and not whole.startswith(REPLACEMENT):
        wanted = whole
    assert streamed("byte level", ids[1], after=ids[0]) == wanted


@given(found=any_texts(IN_BYTES), skip=st.booleans())
def test_whole_tokens_begin_at_their_offsets(found: tuple[str, list[int]], skip: bool) -> None:
    kind, tokens = found
    spelling, after = SPELLINGS[kind], KINDS[kind].encode("ab").ids
    stream = TextStream(spelling, skip_special_tokens=skip, after=after)
    text, offsets = "", []
    for token in tokens:
        text += stream.push(token)
        offsets.append(stream.offset(token))
    text += stream.finish()
    assert offsets == sorted(offsets)
    for token, offset in zip(tokens, offsets, strict=True):
        own = spelling.text(token)
        if REPLACEMENT not in own and not (skip and token in spelling.special):
            assert text[offset:].startswith(own)


@pytest.mark.parametrize("kind", IN_BYTES)
def test_a_token_after_a_broken_character_has_its_own_place(kind: str) -> None:
    first, second, *_ = in_bytes(kind, "🙂")
    a, spelling = KINDS[kind].token_to_id("a"), SPELLINGS[kind]
    stream = TextStream(spelling, skip_special_tokens=True, after=[a])
    assert [stream.push(token) for token in (first, second)] == ["", ""]
    text = stream.push(a)
    assert text == (REPLACEMENT if kind == "byte level" else REPLACEMENT * 2) + "a"
    assert stream.offset(a) == len(text) - 1


@given(found=any_texts(IN_BYTES))
def test_bytes_of_tokens_are_those_of_the_text(found: tuple[str, list[int]]) -> None:
    kind, tokens = found
    spelling = SPELLINGS[kind]
    text = streamed(kind, tokens, after=KINDS[kind].encode("ab").ids)
    assert b"".join(map(spelling.data, tokens)) == text.encode()


@pytest.mark.parametrize("kind", IN_BYTES)
@pytest.mark.parametrize("character", ["é", "語", "🙂", "🤷"])
def test_a_character_comes_out_whole_with_its_last_byte(kind: str, character: str) -> None:
    tokens, spelling = in_bytes(kind, character), SPELLINGS[kind]
    assert [spelling.data(token) for token in tokens] == [bytes([b]) for b in character.encode()]
    assert {spelling.text(token) for token in tokens} == {REPLACEMENT}
    stream = TextStream(spelling, skip_special_tokens=True)
    assert [stream.push(token) for token in tokens] == [""] * (len(tokens) - 1) + [character]
    assert stream.finish() == ""
    assert [stream.push(token) for token in tokens[:-1]] == [""] * (len(tokens) - 1)
    assert set(stream.finish()) == {REPLACEMENT}


@pytest.mark.parametrize("kind", ["strip", "metaspace"])
def test_a_word_keeps_its_space_but_at_the_beginning_of_a_text(kind: str) -> None:
    backend, spelling = KINDS[kind], SPELLINGS[kind]
    prompt, word = backend.encode("ab ab").ids, backend.token_to_id("▁ab")
    assert spelling.text(word) == " ab"
    assert streamed(kind, [word, word]) == "ab ab"
    assert streamed(kind, [word, word], after=prompt) == " ab ab"
    special = backend.token_to_id("<s>")
    assert streamed(kind, [word], True, after=[special]) == "ab"  # the prompt has no text
    assert streamed(kind, [word], True, after=[*prompt, special]) == " ab"
    assert streamed(kind, [special, word]) == "<s> ab"


def test_a_byte_that_fits_nowhere_does_not_hold_a_stream_up() -> None:
    backend = KINDS["strip"]
    stream = TextStream(SPELLINGS["strip"], skip_special_tokens=True)
    broken = backend.token_to_id("<0xFF>")
    pieces = [stream.push(token) for token in [broken] * 4 + backend.encode("ab").ids]
    assert pieces == [REPLACEMENT] * 4 + [" ab"]


@given(found=any_texts(IN_BYTES), stop=st.text(st.sampled_from(ALIKE), min_size=1, max_size=3))
def test_stop_strings_are_found_across_tokens(found: tuple[str, list[int]], stop: str) -> None:
    kind, tokens = found
    stream, until = TextStream(SPELLINGS[kind], skip_special_tokens=True), StopText([stop])
    pieces = [until.push(stream.push(token)) for token in tokens]
    text = "".join(pieces) + until.push(stream.finish()) + until.finish()
    whole = streamed(kind, tokens, skip=True)
    assert text == re.split(re.escape(stop), whole)[0]


@given(kind=st.sampled_from(IN_BYTES), text=st.text(max_size=40) | st.text("ab ", max_size=300))
def test_no_token_stands_for_more_than_the_longest(kind: str, text: str) -> None:
    longest = SPELLINGS[kind].longest()
    assert longest is not None
    assert len(text) <= longest * len(KINDS[kind].encode(text).ids)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(IN_BYTES)))
def test_words_may_be_of_any_length(kind: str) -> None:
    """Spaces between words are dropped; an unknown word is one token."""
    assert SPELLINGS[kind].longest() is None


@pytest.mark.parametrize(
    ("normalizer", "added"),
    [
        (tokenizers.normalizers.Strip(), {}),
        (tokenizers.normalizers.Replace(tokenizers.Regex(" +"), " "), {}),
        (tokenizers.normalizers.NFC(), {"rstrip": True}),
    ],
)
def test_no_bound_where_spaces_vanish(normalizer: Any, added: dict[str, bool]) -> None:
    backend = tokenizers.Tokenizer.from_str(KINDS["byte level"].to_str())
    backend.normalizer = normalizer
    backend.add_tokens([tokenizers.AddedToken("<new>", **added)])
    assert Spelling(backend).longest() is None


def test_a_normal_form_makes_fewer_characters() -> None:
    backend = tokenizers.Tokenizer.from_str(KINDS["byte level"].to_str())
    backend.normalizer = tokenizers.normalizers.NFC()
    text = "\u03b1\u0313\u0300\u0345" * 32  # each of four characters, in NFC one
    backend.add_tokens([tokenizers.AddedToken("\u1f82" * 32, normalized=True)])
    longest = Spelling(backend).longest()
    assert len(backend.encode(text).ids) == 1
    assert longest == len(text) == 128


def test_a_tokenizer_streams_what_it_decodes() -> None:
    tokenizer = Tokenizer(backend=KINDS["byte level"])
    ids = tokenizer.encode("<|a|>naïve 日本<|end of text|>")
    assert ids == tokenizer.backend.encode("<|a|>naïve 日本<|end of text|>").ids
    for skip, wanted in ((True, "naïve 日本"), (False, "<|a|>naïve 日本<|end of text|>")):
        stream = tokenizer.stream(skip_special_tokens=skip)
        assert "".join(map(stream.push, ids)) + stream.finish() == wanted
        assert tokenizer.decode(ids, skip_special_tokens=skip) == wanted
    after = tokenizer.stream(after=tokenizer.encode(CORPUS[0]))
    assert after.push(ids[0]) == "<|a|>"
