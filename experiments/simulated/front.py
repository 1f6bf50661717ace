"""Front of a simulated endpoint, with the API key of C2C_KEY."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from c2c.engine.front.served_model import Served
from c2c.engine.front.server import run_front
from c2c.engine.messages import ModelInfo
from experiments.simulated.faults import Faults
from experiments.simulated.texts import read_tokenizer


def main(arguments: list[str]) -> int:
    """Serve until the scheduler ends; return the exit status."""
    socket, host, port, at_once, folder = arguments
    # "": the tokenizer that is trained on this package
    tokenizer = read_tokenizer(Path(folder) if folder else None)

    def read(infos: Sequence[ModelInfo]) -> dict[str, Served]:
        longest, eos = tokenizer.spelling.longest(), frozenset(tokenizer.eos_ids)
        return {
            info.name: Served(info=info, tokenizer=tokenizer, eos=eos, longest=longest)
            for info in infos
        }

    run_front(socket, host, port, around=Faults, at_once=int(at_once), read=read)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
