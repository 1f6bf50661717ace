"""Settings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from omegaconf import DictConfig, OmegaConf

from c2c.errors import SettingError
from c2c.ranges import Count, OneOf, Share, check_fields, check_value
from experiments.generation.prompts import Prompt, prompts_of
from experiments.generation.schema import GenerateConf

__all__ = ["LinearSettings", "Settings", "settings_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSettings:
    """Multiplication of projections; all but `name` for "hybrid"."""

    name: str
    alpha: Mapping[str, float]  # by kind of projection; others use the best alpha of each call
    sm_limit: int | None
    cluster: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one run.

    Attributes:
      checkpoint: folder or file; None for the default.
      dtype: of parameters and activations, or "auto".
      quantize: on load; None for none.
      executables: folder of compiled code, or "auto"; None for none.
      pool: file of weights that processes share; None for none.
      cache_tokens: of a batch's KV cache; None for enough.
      out: folder of run folders.
      folder: run folder; None for one in `out`.
      resume: whether a complete run is kept.
      overwrite: whether the folder may hold another run's results.
    """

    given: Mapping[str, Any]
    prompts: tuple[Prompt, ...]
    checkpoint: Path | None
    dtype: str
    linear: LinearSettings
    quantize: str | None
    executables: str | None
    pool: str | None
    rows: int
    cache_tokens: int | None
    out: Path
    folder: Path | None
    resume: bool
    overwrite: bool


def settings_of(cfg: DictConfig, *, swept: bool = False) -> Settings:
    """Validate a composed configuration and return its settings."""
    values: Any = OmegaConf.to_container(cfg, resolve=True)
    check_fields(values, "", GenerateConf)
    resume = values["resume"]
    if resume not in ("auto", True, False):
        raise SettingError("resume", resume, "true, false or auto")
    if swept and values["folder"] is not None:
        raise SettingError(
            "folder", values["folder"], "null in a sweep, whose points need a folder each",
            "Set out=<folder> for all of them.",
        )  # fmt: skip
    linear = _linear(values["linear"])
    if linear.name == "hybrid" and values["dtype"] == "float32":
        raise SettingError("dtype", "float32", "auto, bfloat16 or float16 with linear=hybrid")
    checkpoint = values["checkpoint"]
    path = None if checkpoint is None else Path(checkpoint).expanduser()
    if path is not None and not path.exists():
        raise SettingError("checkpoint", checkpoint, "an existing folder or GGUF file")
    executables = values["executables"]
    return Settings(
        given=values,
        prompts=prompts_of(values),
        checkpoint=path,
        dtype=values["dtype"],
        linear=linear,
        quantize=values["quantize"],
        executables=None if executables in (None, "none") else executables,
        pool=values["pool"],
        rows=values["rows"],
        cache_tokens=values["cache_tokens"],
        out=Path(values["out"]).expanduser(),
        folder=None if values["folder"] is None else Path(values["folder"]).expanduser(),
        resume=swept if resume == "auto" else resume,
        overwrite=values["overwrite"],
    )


def _linear(values: Mapping[str, Any]) -> LinearSettings:
    alpha = {k: share for k, share in (values.get("alpha") or {}).items() if share is not None}
    check_value(alpha, Mapping[str, Share], "linear.alpha")
    check_value(values.get("sm_limit"), Count | None, "linear.sm_limit")
    check_value(values.get("cluster"), Annotated[int, OneOf(1, 2, 4, 8)] | None, "linear.cluster")
    return LinearSettings(
        name=str(values["name"]),
        alpha=alpha,
        sm_limit=values.get("sm_limit"),
        cluster=values.get("cluster"),
    )
