"""Prints what this machine's GPU is, as JSON, so that the parent process needs none of it.

A driver that hangs then takes this child with it and no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.gpu.children import ENVIRONMENT
from experiments.gpu.device import find_gpu, provenance, query_driver

LIMIT_S = 120.0


def ask(
    command: Sequence[str], *, seed: int, dry_run: bool, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """Return the provenance of a run.

    Raises:
      RuntimeError: there is no GPU, or it does not answer; with what was found instead.
    """
    asked = [
        sys.executable,
        "-m",
        "experiments.gpu.describe",
        json.dumps([seed, dry_run, *command]),
    ]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            asked,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            cwd=Path(__file__).parents[2],
            env=os.environ | ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the GPU did not answer within {limit_s:.0f} s") from error
    if done.returncode:
        raise RuntimeError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(text: str) -> int:
    """Print the provenance, or say what is missing."""
    seed, dry_run, *command = json.loads(text)
    if dry_run:
        import jax

        print(json.dumps(provenance(jax.devices("cpu")[0], seed=seed, command=command)))
        return 0
    try:
        device = find_gpu()
    except RuntimeError as error:
        driver = query_driver()
        what = (
            "nvidia-smi finds none either: this machine has no NVIDIA GPU."
            if driver is None
            else f"The driver sees {driver['name']}; jax needs CUDA: pip install -e '.[cuda]'."
        )
        print(f"{error}. {what}", file=sys.stderr)
        return 2
    print(json.dumps(provenance(device, seed=seed, command=command)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
