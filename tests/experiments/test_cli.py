"""The command `c2c`: its subcommands exist, and a wrong one is refused."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module

import pytest

from experiments.cli import COMMANDS, Command, Group, main


def modules(commands: Mapping[str, Command | Group]) -> Iterator[str]:
    for one in commands.values():
        yield from [one.module] if isinstance(one, Command) else modules(one.commands)


@pytest.mark.parametrize("module", list(modules(COMMANDS)))
def test_a_command_is_a_main_over_arguments(module: str) -> None:
    parameters = inspect.signature(import_module(module).main).parameters
    assert list(parameters) == ["arguments"]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("", 0, "c2c simulate "),
        ("--help", 0, "c2c bench "),
        ("--version", 0, "c2c 0."),
        ("plan", 0, "c2c plan weaver "),
        ("bench --help", 0, "c2c bench measured "),
        ("collect --help", 0, "c2c collect runs/simulate"),
        ("simulat", 2, "command='simulat': expected a name that exists (of 18). Did you mean"),
        ("plan medusa", 2, "command='medusa': expected one of cocoserve, tessera, weaver."),
        ("layout hardware=gh20", 2, "hardware='gh20': expected"),
    ],
)
def test_help_and_errors(
    words: str, status: int, says: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["c2c", *words.split()])
    assert main() == status
    out, err = capsys.readouterr()
    assert says in (err if status else out)
    assert len((out + err).splitlines()) < 28
    assert max(map(len, out.splitlines()), default=0) <= 100
