"""`c2c generate` from outside: texts, streams, errors, signals, sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tokenizers import decoders, models, pre_tokenizers

from c2c.config import config_dir
from c2c.transformer import load
from experiments.generate import main
from experiments.generation import protected, register
from tests.transformer.random_checkpoints import config_of, tensors_of, write

COMMAND = [sys.executable, "-m", "c2c", "generate"]
AWKWARD = "Hello, world (it's {fine})=?\n\"${x}\" \\' @#%é 日本 ???"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokens are bytes and one special token, with a chat template."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = config_of("llama", vocab_size=257, max_position_embeddings=4096)
    write(folder, config | {"eos_token_id": 256}, tensors_of(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE})
    )
    return folder


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    def table(self, folder: Path, name: str = "generations") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
        return rows


def without_warnings(said: bytes) -> list[str]:
    """Lines of standard error; that a stored executable is of another source is no matter here."""
    return [line for line in said.decode().splitlines() if not line.startswith("warning: ")]


@pytest.fixture
def run(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., Done]]:
    """Run the command in this process, so that jax is started and stages are compiled once."""
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    form = warnings.formatwarning
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, given: Path | None = checkpoint) -> Done:
        more = [] if given is None else [f"checkpoint={given}"]
        status = main([*more, *arguments])
        return Done(status, *capfd.readouterr())

    yield call
    warnings.formatwarning = form
    for number, handler in handlers:
        signal.signal(number, handler)


@pytest.mark.slow
def test_any_text_reaches_the_model_through_the_shell(checkpoint: Path, tmp_path: Path) -> None:
    """A shell's process: a user's prompt, standard input, and nothing but text on stdout."""
    texts = []
    for argument, stdin in ((f"prompt={AWKWARD}", ""), ("prompt=-", AWKWARD + "\n")):
        done = subprocess.run(
            [*COMMAND, f"checkpoint={checkpoint}", argument, "max_new_tokens=8", "folder=here",
             "overwrite=true",
             "chat=false"],
            cwd=tmp_path, input=stdin, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (row,) = Done(0, "", "").table(tmp_path / "here")
        assert row["prompt"] == AWKWARD
        assert row["prompt_tokens"] == len(AWKWARD.encode())
        assert done.stdout == row["text"] + "\n"
        for said in (
            "prompt tokens, first token after", "tokens/s", "MB in device memory", "executables:",
        ):  # fmt: skip
            assert said in done.stderr
        texts.append(row["text"])
    assert texts[0] == texts[1]
    model = load(checkpoint)
    assert model.tokenizer is not None
    assert row["tokens"] == model.generate(model.tokenizer.encode(AWKWARD), 8, stop_at_eos=True)
    kept = yaml.safe_load((tmp_path / "here" / "config.yaml").read_text())
    assert kept["prompts"][0]["text"] == AWKWARD
    assert json.loads((tmp_path / "here" / "provenance.json").read_text())["command"][1:]


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.one_of(
        st.text(st.sampled_from("'\"\\${}[](),=: \n#@-é?"), max_size=10),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    )
)
@example("???")
@example("null")
@example(AWKWARD)
def test_hydra_never_sees_what_it_would_change(text: str) -> None:
    register()
    ((argument,), (stop,)) = (protected([f"{name}={text}"]) for name in ("system", "stop"))
    swept = OverridesParser.create().parse_override(argument).get_value_element_as_str()
    given = f"system_message={swept}", f"++prompt={argument.partition('=')[2]}"
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        got = OmegaConf.to_container(compose("generate", overrides=[*given, stop]), resolve=True)
    assert isinstance(got, dict)
    assert got["system_message"] == got["prompt"] == text
    if not text.startswith("["):
        assert got["stop"] == [int(text) if text.isascii() and text.isdecimal() else text]


def test_settings_that_cannot_work_are_one_line(run: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "wrong.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b", "sed": 1}\n')
    (tmp_path / "hot.jsonl").write_text('{"prompt": "a", "temperature": "hot"}\n')
    (tmp_path / "empty.txt").write_text("\n \n")
    for arguments, said in (
        (["prompt="], "prompt=''"),
        ([], 'prompt="What is the capital of France?"'),
        (["prompt=a", "prompts_file=b"], "prompts_file"),
        (["prompt=a", "temprature=1"], "temprature"),
        (["prompt=a", "temperature=-1"], "temperature=-1.0: expected a number, at least 0"),
        (["prompt=a", "top_p=0"], "top_p=0.0"),
        (["prompt=a", "max_new_tokens=0"], "max_new_tokens=0"),
        (["prompt=a", "seed=-1"], "seed=-1"),
        (["prompt=a", "stop="], "stop=''"),
        (["prompt=a", "stop=999"], "stop=999"),
        (["prompt=a", "linear=magic"], "one of hybrid, reference, staged"),
        (["prompt=a", "linear=hybrid", "linear.alpha.qkv=1.5"], "linear.alpha.qkv=1.5"),
        (["prompt=a", "linear.alpha.qkv=0.5"], "Only linear=hybrid"),
        (["prompt=a", "linear=hybrid", "dtype=float32"], "dtype='float32'"),
        (["prompt=a", "quantize=int3"], "quantize='int3'"),
        (["prompt=a", "rows=0"], "rows=0"),
        (["prompt=a", "chat=perhaps"], "chat='perhaps'"),
        (["prompt=a", "chat=false", "system=b"], "system='b'"),
        (["prompt=@none"], "prompt=@@none"),
        ([f"prompt={'a' * 4096}", "chat=false"], "prompt='4096 tokens': expected from 1 to 4095"),
        (["prompts_file=none"], "prompts_file='none'"),
        (["prompts_file=wrong.jsonl"], "wrong.jsonl: line 3: sed=1"),
        (["prompts_file=hot.jsonl"], "line 1: temperature='hot'"),
        (["prompts_file=empty.txt"], "empty.txt"),
        (["a text"], "override='a text'"),
    ):
        done = run(*arguments)
        assert done.status == 2, arguments
        assert done.err.count("\n") == 1, (arguments, done.err)
        line = done.err.strip()
        assert line.startswith("error: ")
        assert said in line
        assert done.out == ""
    done = run("prompt=a", "checkpoint=nowhere", given=None)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "checkpoint='nowhere'" in done.err
    assert not (tmp_path / "runs").exists()


def test_stops_end_a_text_before_any_of_them_is_shown(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    # At this temperature the bytes are mostly no UTF-8; a stop may be any character.
    free = [
        "prompt=abc", "max_new_tokens=40", "temperature=3", "seed=5", "folder=here",
        "overwrite=true",
    ]  # fmt: skip
    text = run(*free).out.removesuffix("\n")
    stop = text[10:13]
    done = run(*free, f"stop={json.dumps([stop, 'never there'])}")
    (row,) = done.table(tmp_path / "here")
    assert done.out == text[: text.index(stop)] + "\n"
    assert (row["ended"], row["stop_text"]) == ("stop_text", stop)
    assert row["new_tokens"] < 40
    token = row["tokens"][2]
    done = run(*free, f"stop={token}")
    (row,) = done.table(tmp_path / "here")
    assert row["ended"] == "stop_token"
    assert row["tokens"].index(token) == len(row["tokens"]) - 1
    assert text.startswith(row["text"].removesuffix("\N{REPLACEMENT CHARACTER}"))


def test_the_template_is_used_for_what_is_a_sentence(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    said = {}
    for text in ("How are you?", "How are you"):
        for chat in ("auto", "true", "false"):
            run(
                f"prompt={text}", f"chat={chat}", "max_new_tokens=1", "folder=here",
                "overwrite=true",
            )  # fmt: skip
            (row,) = Done(0, "", "").table(tmp_path / "here")
            said[text, chat] = row["prompt_tokens"] - len(text)
    framed = len("<user><assistant>")
    assert list(said.values()) == [framed, framed, 0, 0, framed, 0]
    run(
        "prompt=How", "system=Be brief, please", "max_new_tokens=1", "folder=here", "overwrite=true"
    )
    (row,) = Done(0, "", "").table(tmp_path / "here")
    assert row["prompt_tokens"] == len("<system>Be brief, please<user>How<assistant>")


@pytest.mark.slow
def test_many_prompts_are_one_batch_and_the_same_texts(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "one, two", "temperature": 1.5, "seed": 3, "max_new_tokens": 9},
        {"prompt": "three\nfour", "max_new_tokens": 5, "stop_at_eos": False},
        {"prompt": "five?", "chat": True, "temperature": 1.0, "top_k": 5, "max_new_tokens": 7},
        {"prompt": "six", "logit_bias": {"7": 99}, "presence_penalty": 1, "frequency_penalty": -1,
         "min_p": 0.1, "max_new_tokens": 4, "stop_at_eos": False},
    ]  # fmt: skip
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    done = run(f"prompts_file={file}", "chat=false", "folder=all", "overwrite=true", "rows=2")
    assert done.status == 0, done.err
    assert "[2] three four\n" in done.out
    rows = done.table(tmp_path / "all")
    for number, line in enumerate(lines):
        each = tmp_path / f"{number}.jsonl"
        each.write_text(json.dumps(line))
        run(f"prompts_file={each}", "chat=false", "folder=one", "overwrite=true")
        (row,) = done.table(tmp_path / "one")
        assert rows[number]["tokens"] == row["tokens"]
        assert row["text"] in done.out
    assert rows[3]["tokens"] == [7] * 4
    given = ["logit_bias={7: 99}", "max_new_tokens=4", "stop_at_eos=false"]
    run("prompt=six", *given, "folder=one", "overwrite=true")
    assert done.table(tmp_path / "one")[0]["tokens"] == [7] * 4
    (total,) = done.table(tmp_path / "all", "run")
    assert total["new_tokens"] == sum(row["new_tokens"] for row in rows)
    assert total["device_bytes"] > 0 == total["host_bytes"]

    file = tmp_path / "prompts.txt"
    file.write_text("same\nsame\n")
    run(
        f"prompts_file={file}", "temperature=2", "max_new_tokens=8", "seed=7", "folder=all",
        "overwrite=true",
    )  # fmt: skip
    first, second = done.table(tmp_path / "all")
    assert (first["seed"], second["seed"]) == (7, 8)
    assert first["tokens"] != second["tokens"]


@pytest.mark.slow
def test_a_sweep_keeps_every_point_and_runs_none_twice(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    sweep = ["-m", "prompt=a, b", "linear=hybrid", "max_new_tokens=3", "seed=0,-1",
             "linear.alpha.qkv=0.25,1"]  # fmt: skip
    first = run(*sweep)
    assert first.status == 1  # of the points that cannot work
    assert first.err.count("\nerror: seed=-1") == 2
    folders = list((tmp_path / "runs" / "generate").glob("[!.]*"))
    tables = [first.table(folder)[0] for folder in folders]
    assert sorted(row["alpha_qkv"] for row in tables) == [0.25, 1.0]
    assert {(row["prompt"], row["dtype"]) for row in tables} == {("a, b", "bfloat16")}
    assert not any("alpha_o" in row for row in tables)  # chosen for each call
    (total,) = first.table(folders[0], "run")
    assert total["host_bytes"] > 0
    again = run(*sweep)
    assert again.err.count("complete already") == 2
    assert again.out == first.out
    # Another alpha is no other program.
    counts = [first.table(folder, "run")[0]["executables_compiled"] for folder in folders]
    assert min(counts) == 0


@pytest.mark.slow
def test_an_interrupt_leaves_what_was_said(checkpoint: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, f"checkpoint={checkpoint}", "prompt=abc", "chat=false", "max_new_tokens=4000",
         "temperature=1", "stop_at_eos=false", "folder=here"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, said = process.stdout.read(), process.stderr.read()
        assert process.wait(60) == 130
    text = (first + rest).decode()  # whole characters
    assert text.endswith("\n")
    assert without_warnings(said) == ["interrupted"]
    assert not (tmp_path / "here" / "DONE").exists()
    assert json.loads((tmp_path / "here" / "crash.json").read_text())["exception"] == (
        "KeyboardInterrupt"
    )


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_quietly(checkpoint: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, f"checkpoint={checkpoint}", "prompt=abc", "chat=false", "max_new_tokens=4000",
         "temperature=1", "stop_at_eos=false"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert without_warnings(process.stderr.read()) == []
        assert process.wait(60) == 141


def test_help_names_every_setting() -> None:
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    meanings, _, values = done.stdout.partition("Current settings:")
    settings = yaml.safe_load(values)
    for name in settings:
        assert f"{name.removesuffix('_message')}=" in meanings, name
    assert np.isin(["prompt", "checkpoint", "linear"], list(settings)).all()
