"""Generate text: `python -m experiments.generate prompt="The capital of France is"`.

    python -m experiments.generate prompt="Why is the sky blue?" temperature=0.7 seed=3
    python -m experiments.generate checkpoint=<folder or GGUF file> chat=false prompt="Once upon"
    python -m experiments.generate linear=hybrid linear.alpha.qkv=0.5 prompt=-       # reads stdin
    python -m experiments.generate prompts_file=prompts.jsonl rows=16                # a batch
    python -m experiments.generate -m prompt="Hello" temperature=0.5,1 seed=0,1,2    # a sweep
    python -m experiments.generate --help                                            # all settings

The default checkpoint is SmolLM2-135M-Instruct, fetched at the first run. Text goes to standard
output, everything else to standard error. Each run has a folder in runs/generate.
"""

from __future__ import annotations

import sys

from experiments.command import command

__all__ = ["main"]


def main() -> int:
    """Run the command; return the exit status."""

    def run() -> int:
        from experiments.generation.cli import run_command_line

        return run_command_line(sys.argv[1:])

    return command(run, goes_on=False, once=True)


if __name__ == "__main__":
    sys.exit(main())
