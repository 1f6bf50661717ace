"""Prompts from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from c2c.errors import DataError, SettingError
from c2c.ranges import Count, check_value

if TYPE_CHECKING:
    from c2c.transformer import Sampling

__all__ = ["Prompt", "prompts_of", "text_of"]

Chat = Literal["true", "false", "auto"]

_KINDS: Mapping[str, tuple[type, ...]] = {
    "prompt": (str,),
    "system": (str, type(None)),
    "chat": (bool, str),
    "max_new_tokens": (int,),
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "min_p": (int, float),
    "repetition_penalty": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "logit_bias": (dict,),
    "seed": (int,),
    "stop": (list, str, int),
    "stop_at_eos": (bool,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One text to continue or to answer, with its settings.

    Attributes:
      system: None for the template's own.
      chat: whether to apply the chat template; "auto": to sentences.
      stop: end texts and token ids.
      stop_at_eos: whether the checkpoint's end tokens end it.
    """

    text: str
    system: str | None = None
    chat: Chat = "auto"
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str | int, ...] = ()
    stop_at_eos: bool = True

    def __post_init__(self) -> None:
        if not self.text:
            raise SettingError("prompt", "", "at least one character")
        for name, text in (("prompt", self.text), ("system", self.system or "")):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise SettingError(name, text, "UTF-8") from None
        check_value(self.max_new_tokens, Count, "max_new_tokens")
        for stop in self.stop:
            kind: type = type(stop)  # any type that YAML or JSON has
            if kind not in (str, int) or stop == "":
                raise SettingError("stop", stop, "non-empty texts, and token ids")
        if self.chat == "false" and self.system is not None:
            raise SettingError("system", self.system, "null with chat=false")
        try:
            self.sampling()
        except SettingError as error:
            name = error.field.removeprefix("sampling.")
            raise SettingError(name, error.value, error.allowed) from None

    def sampling(self) -> Sampling:
        """Return the settings by which its tokens are drawn."""
        from c2c.transformer import Sampling  # loads jax

        return Sampling(**{f.name: getattr(self, f.name) for f in fields(Sampling)})


def text_of(name: str, value: str) -> str:
    """Return a setting's text: `-`: standard input, `@file`: a file, `@@`: an @."""
    if value != "-" and not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    try:
        data = sys.stdin.buffer.read() if value == "-" else Path(value[1:]).read_bytes()
        text = data.decode()
    except OSError as error:
        hint = "" if value == "-" else f"For a text that begins with @, write {name}=@{value}"
        raise SettingError(
            name, value, f"a file that can be read ({error.strerror})", hint
        ) from None
    except UnicodeDecodeError:
        raise SettingError(name, value, "UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def prompts_of(settings: Mapping[str, Any]) -> tuple[Prompt, ...]:
    """Return the settings' prompts, with all their settings."""
    shared = {name: settings[name] for name in _KINDS if name not in ("prompt", "system")}
    shared["chat"], shared["stop"] = _chat(shared["chat"]), tuple(shared["stop"])
    shared["logit_bias"] = _bias(shared["logit_bias"])
    system = settings["system_message"]
    shared["system"] = None if system is None else text_of("system", system)
    text, file = settings["prompt"], settings["prompts_file"]
    if (text is None) == (file is None):
        raise SettingError(
            "prompt", text, "a text, or prompts_file instead",
            'Try: c2c generate prompt="What is the capital of France?"',
        )  # fmt: skip
    if file is None:
        return (Prompt(text=text_of("prompt", text), **shared),)
    # Validated once without a line, so that a setting's error does not blame the file.
    common = Prompt(text="any", **shared)
    return tuple(_of_file(Path(file).expanduser(), common))


def _of_file(path: Path, common: Prompt) -> Iterator[Prompt]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise SettingError(
            "prompts_file", str(path), f"a file that can be read ({error.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise DataError(str(path), "is not UTF-8") from None
    parser = _of_json if path.suffix in (".jsonl", ".ndjson", ".json") else _of_text
    count = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield parser(line, common, count)
        except (SettingError, ValueError) as error:
            raise DataError(str(path), f"line {number}: {error}".rstrip(".")) from None
        count += 1
    if not count:
        raise DataError(str(path), "has no prompt")


def _of_text(line: str, common: Prompt, number: int) -> Prompt:
    return replace(common, text=line, seed=common.seed + number)


def _of_json(line: str, common: Prompt, number: int) -> Prompt:  # noqa: ARG001 (as `_of_text`)
    entry = json.loads(line)
    if not isinstance(entry, dict) or "prompt" not in entry:
        raise ValueError('expected an object with "prompt"')
    for name, value in entry.items():
        if name not in _KINDS:
            raise SettingError(name, value, f"a key among {', '.join(sorted(_KINDS))}")
        kinds = _KINDS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
            raise SettingError(name, value, expected)
    if "chat" in entry:
        entry["chat"] = _chat(entry["chat"])
    if "logit_bias" in entry:
        entry["logit_bias"] = _bias(entry["logit_bias"])
    if "stop" in entry:
        stop = entry["stop"]
        entry["stop"] = tuple(stop) if isinstance(stop, list) else (stop,)
    return replace(common, text=entry.pop("prompt"), **entry)


def _bias(values: Mapping[Any, Any]) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in values.items()}
    except (TypeError, ValueError):
        raise SettingError("logit_bias", values, "numbers by token id") from None


def _chat(value: Any) -> Chat:
    text = str(value).lower()
    for allowed in ("true", "false", "auto"):
        if text == allowed:
            return allowed
    raise SettingError("chat", value, "true, false or auto")
