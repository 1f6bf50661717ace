"""The fixture: a decode step of two layers, compiled by XLA for an A100 that is not here.

PYTHONPATH=.venv-aot .venv/bin/python -m tests.systems.program.xla.make [folder]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from c2c.systems.program.xla import StepShape, compile_step

DECODE = Path(__file__).with_name("decode")
SHAPE = StepShape(
    target="a100_80", rows=4, chunk=1, context=128, layers=2, hidden=256, heads=4, kv_heads=2,
    head_dim=64, intermediate=512, vocab=512,
)  # fmt: skip


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    compile_step(SHAPE, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DECODE)
