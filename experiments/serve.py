r"""Serve a folder of checkpoints behind OpenAI's API: `python -m experiments.serve catalog=models`.

    python -m experiments.serve                                # SmolLM2, fetched once
    python -m experiments.serve catalog=models workers=2 port=8123
    python -m experiments.serve catalog=models out=runs/live   # records the run
    python -m experiments.serve simulated=true                 # a simulated fleet, no GPU
    python -m experiments.serve --help                         # all settings

Then, in another terminal:

    curl http://127.0.0.1:8123/v1/models
    curl http://127.0.0.1:8123/v1/chat/completions -H 'content-type: application/json' \
        -d '{"model": "...", "messages": [{"role": "user", "content": "Hello"}]}'
"""

from __future__ import annotations

import sys

from experiments.command import command

__all__ = ["main"]


def main() -> int:
    """Run the command; return the exit status."""

    def run() -> int:
        if "simulated=true" in (argument.lower() for argument in sys.argv[1:]):
            from experiments.simulated.command import serve_simulated

            return serve_simulated(sys.argv[1:])
        if {"--help", "-h"} & set(sys.argv[1:]):
            from experiments.serving.settings import ServeConf

            print(__doc__)
            print(ServeConf.__doc__)
            return 0
        from experiments.serving.command import serve

        return serve(sys.argv[1:])

    return command(run, goes_on=False)


if __name__ == "__main__":
    sys.exit(main())
