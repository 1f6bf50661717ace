"""Shape of a model on one of several tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from c2c.errors import SettingError
from c2c.models.spec import ModelSpec

__all__ = ["rank_of"]


@lru_cache(maxsize=256)
def rank_of(spec: ModelSpec, ranks: int, *, experts_apart: bool = False) -> ModelSpec:
    """Return the part of a model on one tensor-parallel rank, as a narrower model.

    Heads, feed-forward columns and the vocabulary are split; norms, routers and projections to a
    latent vector are replicated. Each rank has at least one key/value head, so ranks share heads if
    there are fewer heads than ranks.

    Args:
      spec: the whole model.
      ranks: number of ranks.
      experts_apart: True if each rank has whole experts, False if it has a part of each.

    Raises:
      SettingError: the ranks cannot share heads, columns or experts evenly.

    Source: Megatron-LM, arXiv:1909.08053, section 3; replicated key heads as in vLLM.
    """
    if ranks == 1:
        return spec
    shared: dict[str, Any] = {"heads": spec.heads, "vocab": spec.vocab}
    if not spec.experts or spec.dense_layers:
        shared["intermediate"] = spec.intermediate
    if spec.shared_intermediate:
        shared["shared_intermediate"] = spec.shared_intermediate
    if spec.experts and not experts_apart:
        shared["moe_intermediate"] = spec.moe_intermediate
    elif spec.experts and spec.experts % ranks:
        raise _uneven(spec, "experts", spec.experts, ranks)
    if spec.latent is None and max(spec.kv_heads, ranks) % min(spec.kv_heads, ranks):
        raise _uneven(spec, "kv_heads", spec.kv_heads, ranks)
    if spec.linear is not None:
        raise SettingError(
            "tensor_parallel", ranks, f"1 for {spec.name}, whose linear attention is not shared out"
        )
    for name, value in shared.items():
        if value % ranks:
            raise _uneven(spec, name, value, ranks)
    keys = spec.kv_heads if spec.latent is None else spec.heads
    return replace(
        spec, kv_heads=max(1, keys // ranks), **{k: v // ranks for k, v in shared.items()}
    )


def _uneven(spec: ModelSpec, field: str, value: int, ranks: int) -> SettingError:
    return SettingError(
        "tensor_parallel", ranks, f"a number that shares the {value} {field} of {spec.name} evenly"
    )
