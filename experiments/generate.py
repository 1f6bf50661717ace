"""Command `c2c generate`: text from a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.command import command

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""

    def run() -> int:
        from experiments.generation.cli import run_command_line

        return run_command_line(arguments)

    return command(run, arguments, goes_on=False, once=True)
