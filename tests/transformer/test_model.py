"""A model in a notebook: bounds, text, chat, what it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from c2c.errors import SettingError
from c2c.transformer import Request, Sampling
from c2c.transformer.running.kv_pool import check_room
from c2c.transformer.running.sampling import sampling_rows
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.tokenizer import Tokenizer

Make = Callable[..., Any]


@pytest.fixture
def talking(made: Make, tmp_path: Path) -> Any:
    """A model whose words are w0, w1, ...; w7 ends a text."""
    words = {f"w{i}": i for i in range(96)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    template = ChatTemplate(source="{% for m in messages %}w1 {{ m.content }} {% endfor %}w2")
    tokenizer = Tokenizer(backend=backend, eos_ids=(7,), chat_template=template)
    return replace(made("llama")[0], tokenizer=tokenizer)


def test_the_context_bounds_prompt_and_answer_before_anything_runs(made: Make) -> None:
    model = made("llama")[0]
    assert model.context == 512
    for new in (10**6, 512):
        with pytest.raises(SettingError, match=r"max_new_tokens=.*at most 511: .* 512 tokens"):
            model.stream([5], new)
    with pytest.raises(
        SettingError, match="ids='3000 tokens': expected at most the model's context, 512"
    ):
        model.generate([5] * 3000, 1)
    with pytest.raises(SettingError, match="max_new_tokens"):
        model.stream_batch([Request(ids=[5] * 500, max_new_tokens=13)])
    with pytest.raises(SettingError, match="ids='513 tokens'"):
        model.logits([5] * 513)
    assert made("dynamic")[0].context == 72  # 18, stretched by 4


def test_memory_bounds_a_cache() -> None:
    with pytest.raises(SettingError, match=r"cache='1000000\.0 GB': expected at most the"):
        check_room(10**15)


def test_text_in_text_out(talking: Any) -> None:
    ids = talking.generate([5, 9], 12, stop_at_eos=True)
    shown = [token for token in ids if token not in (*talking.eos_ids, 7)]
    text = talking.generate("w5 w9", 12)
    assert text.split() == [f"w{token}" for token in shown]
    assert "".join(talking.stream("w5 w9", 12)) == text
    asked = talking.tokenizer.encode("w1 w5 w2")
    answer = talking.chat("w5", 6)
    assert answer == talking.chat([{"role": "user", "content": "w5"}], 6)
    free = talking.generate(asked, 6, stop_at_eos=True, stop_tokens=[7])
    assert answer.split() == [f"w{t}" for t in free if t not in (*talking.eos_ids, 7)]
    with pytest.raises(SettingError, match="no tokenizer"):
        replace(talking, tokenizer=None).generate("w5")


def test_a_model_is_shown_on_one_screen(made: Make) -> None:
    shown = repr(made("llama")[0])
    assert len(shown) < 400
    for part in ("llama", "3 layers", "float32", "context 512"):
        assert part in shown


def test_top_k_beyond_any_vocabulary_is_all() -> None:
    rows = sampling_rows([Sampling(top_k=2**40), Sampling(top_k=3)])
    assert rows.top_k.tolist() == [2**31 - 1, 3]
