"""Schema of `conf/generate.yaml`, with which Hydra refuses unknown keys and types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hydra.core.config_store import ConfigStore

from c2c.ranges import Count, OneOf

__all__ = ["GenerateConf", "register"]


@dataclass
class GenerateConf:
    """Settings of `conf/generate.yaml`, which describes them in its help."""

    checkpoint: str | None = None
    prompt: str | None = None
    prompts_file: str | None = None
    chat: Any = "auto"
    system_message: str | None = None
    max_new_tokens: Count = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: list[Any] = field(default_factory=list)
    stop_at_eos: bool = True
    dtype: Annotated[str, OneOf("auto", "float32", "bfloat16", "float16")] = "auto"
    linear: Any = None
    quantize: Annotated[str, OneOf("int8", "fp8", "int4", "stored")] | None = None
    executables: str | None = "auto"
    pool: str | None = None
    rows: Count = 8
    cache_tokens: Count | None = None
    out: str = "runs/generate"
    folder: str | None = None
    resume: Any = "auto"
    overwrite: bool = False


def register() -> None:
    """Register the schema with Hydra."""
    ConfigStore.instance().store(name="generate_schema", node=GenerateConf, provider="c2c")
