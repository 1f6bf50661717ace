"""Tokenizers: what transformers gives for the same files."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.transformer.gguf.file import GgufCheckpoint
from c2c.transformer.text.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from c2c.transformer.weights.default_checkpoint import SMOLLM2, cached_path
from tests.transformer.small_tokenizers import CORPUS, byte_level

FAMILIES = {"llama": "llama-bpe", "qwen": "qwen2", "mistral": "tekken"}
TEXTS = [
    *CORPUS, "", " ", "\n\n\n", "x" * 50, "١٢٣ ½ Ⅷ", "é́ combining", "a\u200db\u00a0c", "<|a|>b<|",
    "'re 'S I'LL", "a  b   c    ", "\x00\x7f",
]  # fmt: skip


BYTE_LEVEL = byte_level()


def folder_of(path: Path, tokenizer_config: dict[str, Any], **files: Any) -> Path:
    BYTE_LEVEL.save(str(path / "tokenizer.json"))
    for name, content in {"tokenizer_config": tokenizer_config, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return path


def gguf_metadata(tokenizer_json: dict[str, Any], pre: str) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes about a tokenizer.json."""
    vocabulary = dict(tokenizer_json["model"]["vocab"])
    added = {token["id"]: token for token in tokenizer_json["added_tokens"]}
    vocabulary |= {token["content"]: index for index, token in added.items()}
    tokens = [token for token, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    kinds = [
        (3 if added[i]["special"] else 4) if i in added else 1 for i, _ in enumerate(tokens)
    ]  # fmt: skip
    merges = tokenizer_json["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
    }


# From a folder


def test_reference_tokenizers(shared_part: Callable[[str], Path]) -> None:
    checkpoints = shared_part("checkpoints")
    cases = json.loads((checkpoints / "reference/tokenizers.json").read_text("utf-8"))
    for family in cases.values():
        for model in family["models"]:
            tokenizer = tokenizer_from_folder(checkpoints / model)
            assert tokenizer.vocab_size == family["vocab_size"]
            for case in family["cases"]:
                text, ids = case["text"], case["ids"]
                assert tokenizer.encode(text, add_special_tokens=False) == ids
                assert tokenizer.encode(text) == case["ids_with_special_tokens"]
                assert tokenizer.decode(ids) == case["decoded"]
                skipped = tokenizer.decode(ids, skip_special_tokens=True)
                assert skipped == case["decoded_skip_special"]
            for case in family["chat"]:
                prompt = {"add_generation_prompt": case["add_generation_prompt"]}
                assert tokenizer.apply_chat(case["messages"], **prompt) == case["rendered"]
                assert tokenizer.encode_chat(case["messages"], **prompt) == case["ids"]


def test_special_tokens_in_the_files_of_both_versions(tmp_path: Path) -> None:
    a, end = (BYTE_LEVEL.token_to_id(token) for token in ("<|a|>", "<|end of text|>"))
    folder = folder_of(
        tmp_path,
        {"bos_token": {"content": "<|a|>", "__type": "AddedToken"}, "unk_token": None},
        special_tokens_map={"eos_token": {"content": "<|end of text|>"}, "pad_token": "<|a|>"},
    )
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (a, (end,), a)
    assert tokenizer.chat_template is None
    with pytest.raises(DataError, match="no chat template"):
        tokenizer.apply_chat([{"role": "user", "content": "x"}])
    # The tokenizer's end token counts, too, after those at which generation stops.
    folder_of(tmp_path, {}, generation_config={"eos_token_id": [7, end]})
    assert tokenizer_from_folder(folder).eos_ids == (7, end)
    folder_of(tmp_path, {}, generation_config={}, config={"eos_token_id": 9})
    assert tokenizer_from_folder(folder).eos_ids == (9, end)
    folder_of(tmp_path, {"eos_token": "<|a|>"}, generation_config={"eos_token_id": 7})
    assert tokenizer_from_folder(folder).eos_ids == (7, a)


def test_chat_templates_in_the_files_of_both_versions(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}]
    folder = folder_of(tmp_path, {"chat_template": "one {{ eos_token }}", "eos_token": "<|a|>"})
    assert tokenizer_from_folder(folder).apply_chat(messages) == "one <|a|>"
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": "two"}]
    folder_of(tmp_path, {"chat_template": several})
    assert tokenizer_from_folder(folder).apply_chat(messages) == "two"
    (folder / "chat_template.jinja").write_text("three", "utf-8")
    assert tokenizer_from_folder(folder).apply_chat(messages) == "three"


def test_chats_with_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    def shown(**more: Any) -> list[str]:
        tokenizer = tokenizer_from_folder(folder)
        messages = [{"role": "user", "content": "x"}]
        return [tokenizer.apply_chat(messages, tools=tools, **more) for tools in ([], [{"a": 1}])]

    several = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "calls"}]
    folder = folder_of(tmp_path, {"chat_template": several})
    assert shown() == ["x", "calls"]
    (folder / "chat_template.jinja").write_text("plain", "utf-8")
    assert shown() == ["plain", "plain"]  # the list gives way, as in transformers
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}", "utf-8")
    assert shown() == ["plain", "[{'a': 1}]"]
    (folder / "chat_template.jinja").unlink()
    folder_of(tmp_path, {"chat_template": several[1:]})
    with pytest.raises(DataError, match="no chat template"):
        shown()
    folder_of(tmp_path, {"chat_template": [{"name": "default", "template": 1}]})
    with pytest.raises(DataError, match="expected a text"):
        shown()


def test_tokens_that_only_the_config_lists(tmp_path: Path) -> None:
    size = BYTE_LEVEL.get_vocab_size()
    new = {"content": "<|new|>", "special": True, "normalized": False, "lstrip": False}
    folder = folder_of(tmp_path, {"added_tokens_decoder": {str(size): new}})
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.encode("a<|new|>b")[1] == size == tokenizer.token_id("<|new|>")
    folder_of(tmp_path, {"added_tokens_decoder": {str(size + 3): new}})
    with pytest.raises(DataError, match=f"declared as {size + 3}"):
        tokenizer_from_folder(folder)


def test_truncation_and_padding_of_a_training_run_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    wanted = BYTE_LEVEL.encode(CORPUS[0]).ids
    assert tokenizer_from_folder(tmp_path).encode(CORPUS[0]) == wanted
    assert 4 < len(wanted) < 64


def test_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json: no such file"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"', "utf-8")
    with pytest.raises(DataError, match="damaged"):
        tokenizer_from_folder(tmp_path)
    folder = folder_of(tmp_path, {})
    (folder / "tokenizer_config.json").write_text("[1]", "utf-8")
    with pytest.raises(DataError, match=r"tokenizer_config\.json: expected a JSON object"):
        tokenizer_from_folder(folder)


def test_unknown_token() -> None:
    with pytest.raises(SettingError, match="a token of the vocabulary"):
        Tokenizer(backend=BYTE_LEVEL).token_id("<|nothing|>")


# From a GGUF file's metadata


def test_gguf_vocabulary_is_the_same_tokenizer() -> None:
    metadata = gguf_metadata(json.loads(BYTE_LEVEL.to_str()), "smollm")
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    for text in [*TEXTS, "<tool>x<|end of text|> y <tool>"]:
        ids = tokenizer.encode(text)
        assert ids == BYTE_LEVEL.encode(text).ids
        for skip in (True, False):
            wanted = BYTE_LEVEL.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_vocabularies_of_the_reference_families(
    shared_part: Callable[[str], Path], family: str
) -> None:
    checkpoints = shared_part("checkpoints")
    cases = json.loads((checkpoints / "reference/tokenizers.json").read_text("utf-8"))[family]
    original = json.loads((checkpoints / cases["models"][0] / "tokenizer.json").read_text("utf-8"))
    metadata = gguf_metadata(original, FAMILIES[family])
    if (bos := tokenizer_from_folder(checkpoints / cases["models"][0]).bos_id) is not None:
        metadata["tokenizer.ggml.bos_token_id"] = bos
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    for case in cases["cases"]:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]
        assert tokenizer.encode(case["text"]) == case["ids_with_special_tokens"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [("gpt-2", ["a", "b", "c"]), ("qwen2", ["a", "b", "c"]), ("llama-bpe", ["abc"])],
)
def test_words_that_no_merge_leads_to(pre: str, wanted: list[str]) -> None:
    """Vocabularies converted from tiktoken have them; there a whole word wins over merges."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "c", "abc", "<s>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 4,
    }
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    ids = [tokenizer.token_id(token) for token in wanted]
    # Llama 3's files need not say that texts begin with BOS.
    assert tokenizer.encode("abc") == ([4, *ids] if pre == "llama-bpe" else ids)


def test_gguf_special_ids_and_template() -> None:
    a, end = (BYTE_LEVEL.token_to_id(token) for token in ("<|a|>", "<|end of text|>"))
    metadata = gguf_metadata(json.loads(BYTE_LEVEL.to_str()), "smollm") | {
        "tokenizer.ggml.bos_token_id": a,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.eom_token_id": end,
        "tokenizer.ggml.padding_token_id": a,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}{{ eos_token }}",
    }
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (a, (end, 5), a)
    plain = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.encode("ab") == [a, *plain, end]
    assert tokenizer.encode_chat([{"role": "user", "content": "ab"}]) == [a, *plain, end]
    text = tokenizer.apply_chat([{"role": "user", "content": "ab"}], tools=[1])
    assert text == "[1]<|end of text|>"


PIECES = ["▁", "a", "b", "c"]


def sentence_pieces(words: list[str], scores: list[float]) -> dict[str, Any]:
    """Metadata of a vocabulary in SentencePiece's form, with <unk>, <s> and all bytes."""
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 258 + [-1e3] * len(PIECES) + scores,
        "tokenizer.ggml.token_type": [2, 3, *[6] * 256, *[1] * (len(PIECES) + len(words))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def merged(text: str, score: dict[str, float]) -> list[str]:
    """SentencePiece's rule: the neighbours that make the best piece merge, the first of equals."""
    parts = list(text)
    while True:
        pairs = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(parts))
                 if a + b in score]  # fmt: skip
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(
    words=st.lists(st.text("▁abc", min_size=2, max_size=4), unique=True, max_size=12),
    text=st.text("abc é\n", max_size=24),
)
def test_sentence_pieces_of_a_gguf_file_merge_by_score(words: list[str], text: str) -> None:
    scores = [-float(rank) for rank, _ in enumerate(words)]
    metadata = sentence_pieces(words, scores)
    tokenizer = tokenizer_from_gguf(metadata, "m.gguf")
    score = dict(zip([*words, *PIECES], [*scores, *[-1e3] * len(PIECES)], strict=True))
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    expected = [
        tokens.index(name)
        for part in merged("▁" * bool(text) + text.replace(" ", "▁"), score)
        for name in ([part] if part in score else [f"<0x{b:02X}>" for b in part.encode()])
    ]
    assert tokenizer.encode(text) == [1, *expected]
    assert tokenizer.decode(expected) == text


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tokenizer.ggml.model": "bert"}, "kind 'bert': only byte-level BPE"),
        ({"tokenizer.ggml.model": "llama"}, "scores or token_type: expected one a token"),
        ({"tokenizer.ggml.pre": "default"}, "pre-tokenizer 'default' is not supported.*smollm"),
        ({"tokenizer.ggml.tokens": None}, "tokens' is missing"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "the same token twice"),
        ({"tokenizer.ggml.merges": ["ab"]}, "not a pair"),
        ({"tokenizer.ggml.merges": ["not there"]}, "damaged vocabulary"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "2 token types for"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000, not one of"),
        ({"tokenizer.ggml.add_bos_token": True}, "adds BOS tokens but has no BOS id"),
    ],
)
def test_gguf_vocabularies_that_cannot_work(change: dict[str, Any], match: str) -> None:
    metadata = gguf_metadata(json.loads(BYTE_LEVEL.to_str()), "smollm") | change
    with pytest.raises(DataError, match=match):
        tokenizer_from_gguf(metadata, "m.gguf")


def test_smollm2() -> None:
    path = cached_path(SMOLLM2)
    if not path.is_file():
        pytest.skip("SmolLM2 is not in the cache; default_checkpoint() fetches it")
    tokenizer = tokenizer_from_gguf(GgufCheckpoint(path).metadata, str(path))
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), 49152)
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    for text in TEXTS:
        if text.isprintable():  # its vocabulary lacks some control characters
            assert tokenizer.decode(tokenizer.encode(text)) == text
    rendered = tokenizer.apply_chat([{"role": "user", "content": "Hi"}])
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert ids[:3] == [1, 9690, 198]
    assert [i for i in ids if i < 3] == [1, 2, 1, 2, 1]
