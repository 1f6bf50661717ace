"""Compile the executables of generation for one model before the first request.

    c2c warm checkpoint=<folder or GGUF file> context=2048

All models of this architecture then start without compiling, in any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import DataError
from c2c.runs import progress_bar
from c2c.transformer.loading import load
from c2c.transformer.running.generate import Bucket, buckets_up_to
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from experiments.plain_settings import run_settings
from pallas_kernels.repository import RepositoryError, default_folder

__all__ = ["WarmSettings", "main"]


@dataclass
class WarmSettings:
    """Settings of the command line, as key=value.

    Attributes:
      checkpoint: folder or GGUF file; by default SmolLM2, which is fetched.
      dtype: as in `load`.
      linear: as in `load`.
      context: most tokens of a sequence.
      executables: folder for executables; by default `pallas_kernels.repository`'s.
    """

    checkpoint: str = ""
    dtype: str = "auto"
    linear: str = "reference"
    context: int = 1024
    executables: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    return run_settings(WarmSettings, arguments, _warm, goes_on=True)


def _warm(settings: WarmSettings) -> None:
    buckets = buckets_up_to(settings.context)
    folder = settings.executables or default_folder()
    ready: list[Bucket] = []
    try:
        model = load(
            settings.checkpoint or default_checkpoint(),
            settings.dtype,
            linear=settings.linear,
            executables=folder,
        )
        with progress_bar("shapes", len(buckets)) as report:

            def done(bucket: Bucket) -> None:
                ready.append(bucket)
                report(len(ready))

            warmed = model.warm(buckets, done=done)
    except RepositoryError as error:
        raise DataError(str(folder), str(error)) from error
    print(
        f"{len(buckets)} shapes ready in {warmed.seconds:.1f} s: {warmed.loaded} executables "
        f"loaded, {warmed.compiled} compiled ({folder})"
    )
