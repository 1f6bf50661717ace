r"""Serve a folder of checkpoints behind OpenAI's API: `c2c serve catalog=models`.

    c2c serve                                # SmolLM2, fetched once
    c2c serve catalog=models workers=2 port=8123
    c2c serve catalog=models out=runs/live   # records the run
    c2c serve simulated=true                 # a simulated fleet, no GPU
    c2c serve --help                         # all settings

Then, in another terminal:

    curl http://127.0.0.1:8123/v1/models
    curl http://127.0.0.1:8123/v1/chat/completions -H 'content-type: application/json' \
        -d '{"model": "...", "messages": [{"role": "user", "content": "Hello"}]}'
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.command import command

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""

    def run() -> int:
        if "simulated=true" in (argument.lower() for argument in arguments):
            from experiments.simulated.command import serve_simulated

            return serve_simulated(arguments)
        if {"--help", "-h"} & set(arguments):
            from experiments.serving.settings import ServeConf

            print(__doc__)
            print(ServeConf.__doc__)
            return 0
        from experiments.serving.command import serve

        return serve(arguments)

    return command(run, arguments, goes_on=False)
