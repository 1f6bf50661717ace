"""Generate text: `c2c generate prompt="What is the capital of France?"`.

    c2c generate prompt="Why is the sky blue?" temperature=0.7 seed=3
    c2c generate checkpoint=<folder or GGUF file> chat=false prompt="Once upon"
    c2c generate linear=hybrid linear.alpha.qkv=0.5 prompt=-       # reads stdin
    c2c generate prompts_file=prompts.jsonl rows=16                # a batch
    c2c generate -m prompt="Hello" temperature=0.5,1 seed=0,1,2    # a sweep
    c2c generate --help                                            # all settings

The default checkpoint is SmolLM2-135M-Instruct, fetched at the first run. Text goes to standard
output, everything else to standard error. Each run has a folder in runs/generate.
"""

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
