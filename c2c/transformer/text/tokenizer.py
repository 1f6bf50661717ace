"""Tokenizers of checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from c2c.errors import DataError, SettingError
from c2c.models import read_json_object, read_text
from c2c.transformer.gguf.vocabulary import gguf_tokenizer, special_id
from c2c.transformer.text.chat import ChatTemplate
from c2c.transformer.text.eos import eos_ids
from c2c.transformer.text.streaming import TextStream
from c2c.transformer.text.token_bytes import Spelling

__all__ = ["Tokenizer", "tokenizer_from_folder", "tokenizer_from_gguf"]

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """Tokenizer with keywords named as in transformers.

    Attributes:
      eos_ids: the most usual first.
      tool_template: of chats with tools (`tool_use`); None: `chat_template`.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    chat_template: ChatTemplate | None = None
    tool_template: ChatTemplate | None = None
    spelling: Spelling = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", Spelling(self.backend))

    @property
    def vocab_size(self) -> int:
        """Tokens with a text; embeddings may be padded."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return token ids, without the GIL; special tokens are recognised.

        Args:
          add_special_tokens: whether to add, mostly, BOS.
        """
        # With a single text the library would hold the GIL.
        batch = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return batch[0].ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text, with U+FFFD for invalid UTF-8."""
        return self.backend.decode(
            [int(token) for token in ids], skip_special_tokens=skip_special_tokens
        )

    def stream(
        self,
        *,
        skip_special_tokens: bool = False,
        exceptions: Collection[int] = (),
        after: Sequence[int] = (),
    ) -> TextStream:
        """Return a streaming decoder of tokens; see `TextStream`."""
        return TextStream(
            self.spelling,
            skip_special_tokens=skip_special_tokens,
            exceptions=exceptions,
            after=after,
        )

    def token_id(self, token: str) -> int:
        """Return a token's id by its text."""
        index = self.backend.token_to_id(token)
        if index is None:
            raise SettingError("token", token, "a token of the vocabulary")
        return index

    def template(self, *, has_tools: bool) -> ChatTemplate | None:
        """Return the template with or without tools, or None."""
        return (self.tool_template if has_tools else None) or self.chat_template

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render messages with their template, see `ChatTemplate.render`.

        Raises:
          DataError: no template, or it rejects the messages.
        """
        template = self.template(has_tools=bool(variables.get("tools")))
        if template is None:
            raise DataError("checkpoint", "no chat template", "Use a plain prompt.")
        return template.render(messages, add_generation_prompt=add_generation_prompt, **variables)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Return rendered messages' ids; only the template adds BOS."""
        text = self.apply_chat(messages, add_generation_prompt=add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)


def tokenizer_from_folder(folder: Path | str) -> Tokenizer:
    """Read a tokenizer saved by transformers 4 or 5.

    Args:
      folder: with tokenizer.json and optionally tokenizer_config.json, special_tokens_map.json,
        generation_config.json, config.json, chat_template.jinja,
        additional_chat_templates/tool_use.jinja.

    Raises:
      DataError: no tokenizer.json, or a damaged file.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise DataError(str(path), "no such file", "A tokenizer.json is required.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise DataError(str(path), f"damaged: {error}") from None
    # Remove truncation and padding left from training.
    backend.no_truncation()
    backend.no_padding()
    config = _json(folder / "tokenizer_config.json")
    _add_declared(backend, config, str(folder / "tokenizer_config.json"))
    names = {**_json(folder / "special_tokens_map.json"), **config}
    special = {name: text for name in _NAMED if (text := _text(names.get(name))) is not None}
    ids = {name: backend.token_to_id(text) for name, text in special.items()}
    ends = (*eos_ids(folder), ids.get("eos_token"))
    templates = _templates(folder, config, special)
    return Tokenizer(
        backend=backend,
        bos_id=ids.get("bos_token"),
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        pad_id=ids.get("pad_token"),
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
    )


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """Rebuild a GGUF file's tokenizer."""
    backend = gguf_tokenizer(metadata, source)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    files = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: special_id(metadata, key, source) for name, key in files.items()}
    special = {name: tokens[index] for name, index in ids.items() if index is not None}
    ends = (special_id(metadata, name, source) for name in ("eos", "eot", "eom"))

    def template(key: str) -> ChatTemplate | None:
        text = metadata.get(key)
        return None if text is None else ChatTemplate(source=str(text), special_tokens=special)

    return Tokenizer(
        backend=backend,
        bos_id=ids["bos_token"],
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        pad_id=ids["pad_token"],
        chat_template=template("tokenizer.chat_template"),
        tool_template=template("tokenizer.chat_template.tool_use"),
    )


def _json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _text(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_declared(backend: tokenizers.Tokenizer, config: Mapping[str, Any], source: str) -> None:
    declared = config.get("added_tokens_decoder") or {}
    try:
        entry_of = {int(number): dict(entry) for number, entry in declared.items()}
        texts = {number: str(entry.pop("content")) for number, entry in entry_of.items()}
        for entry in entry_of.values():
            entry.pop("__type", None)
        tokens = {n: tokenizers.AddedToken(texts[n], **entry_of[n]) for n in sorted(entry_of)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            source, f"added_tokens_decoder: expected tokens with their content by number ({error})"
        ) from None
    for number, token in tokens.items():
        if backend.token_to_id(texts[number]) is None:
            backend.add_tokens([token])
        if backend.token_to_id(texts[number]) != number:
            raise DataError(
                source, f"token {texts[number]!r} is declared as {number}, tokenizer.json "
                f"makes it {backend.token_to_id(texts[number])}",
            )  # fmt: skip


def _templates(
    folder: Path, config: Mapping[str, Any], special: Mapping[str, str]
) -> dict[str, ChatTemplate]:
    path = folder / "chat_template.jinja"
    template = read_text(path) if path.is_file() else config.get("chat_template")
    named = {"default": template}
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, Mapping)]
        named = {str(entry.get("name")): entry.get("template") for entry in entries}
    more = folder / "additional_chat_templates" / "tool_use.jinja"
    if more.is_file():
        named["tool_use"] = read_text(more)
    result = {}
    for name in ("default", "tool_use"):
        source = named.get(name)
        if source is None:
            continue
        if not isinstance(source, str):
            where = str(folder / "tokenizer_config.json")
            raise DataError(where, "chat_template: expected a text")
        result[name] = ChatTemplate(source=source, special_tokens=special)
    return result
