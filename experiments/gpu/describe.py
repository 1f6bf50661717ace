"""Child process that prints the provenance of this machine's GPU as JSON.

The parent does not touch the GPU, so that a driver that hangs costs only this child.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from experiments.children import answer_of, gpu_environment
from experiments.gpu.device import find_gpu, provenance, query_driver

LIMIT_S = 120.0


def ask(
    command: Sequence[str], *, seed: int, dry_run: bool, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """Return the provenance of a run, which a child process finds out.

    Raises:
      RuntimeError: there is no GPU, or it does not answer; the message says what was found.
    """
    asked = json.dumps([seed, dry_run, *command])
    line = [sys.executable, "-m", "experiments.gpu.describe", asked]
    found: dict[str, Any] = answer_of(line, RuntimeError, limit_s=limit_s, env=gpu_environment())
    return found


class _Heard(logging.Handler):
    """Keeps jax's reasons for leaving a plugin out: an old driver, a missing library."""

    said: list[str]

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.said = []

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        self.said.append(str(fault or record.getMessage()))


def main(text: str) -> int:
    """Print the provenance, or the error if there is no GPU; return the exit status."""
    seed, dry_run, *command = json.loads(text)
    if dry_run:
        import jax

        print(json.dumps(provenance(jax.devices("cpu")[0], seed=seed, command=command)))
        return 0
    heard = _Heard(logging.WARNING)
    logging.getLogger("jax._src.xla_bridge").addHandler(heard)
    try:
        device = find_gpu()
    except RuntimeError as error:
        driver, what = (
            query_driver(),
            "nvidia-smi finds none either: this machine has no NVIDIA GPU.",
        )
        if driver is not None:
            why = "; ".join(heard.said) or "jax needs CUDA: pip install -e '.[gpu]'"
            what = f"The driver, {driver['driver_version']}, sees {driver['name']}: {why}."
        print(" ".join(f"{error}. {what}".split()), file=sys.stderr)
        return 2
    print(json.dumps(provenance(device, seed=seed, command=command)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
