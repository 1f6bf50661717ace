"""Shape of a model on a tensor-parallel rank."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from c2c.errors import SettingError
from c2c.models.spec import LinearAttention, ModelSpec

__all__ = ["rank_of"]


@lru_cache(maxsize=256)
def rank_of(spec: ModelSpec, ranks: int, *, experts_apart: bool = False) -> ModelSpec:
    """Return a model's part on a tensor-parallel rank, as a narrower model.

    Heads, feed-forward columns and vocabulary are split; norms, routers, projections to latents and
    indices, and too few key/value heads are replicated.

    Args:
      experts_apart: whether a rank has whole experts.

    Raises:
      SettingError: uneven shares of heads, columns or experts.

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
    for name, value in shared.items():
        if value % ranks:
            raise _uneven(spec, name, value, ranks)
    keys = spec.kv_heads if spec.latent is None else spec.heads
    part = replace(
        spec, kv_heads=max(1, keys // ranks), **{k: v // ranks for k, v in shared.items()}
    )
    if spec.widths:
        part = replace(part, widths=tuple(width // ranks for width in spec.widths))
    if (local := spec.windowed_heads) is not None:
        if local.heads % ranks or max(local.kv_heads, ranks) % min(local.kv_heads, ranks):
            raise _uneven(spec, "windowed_heads", local.heads, ranks)
        kv_heads = max(1, local.kv_heads // ranks)
        local = replace(local, heads=local.heads // ranks, kv_heads=kv_heads)
        part = replace(part, windowed_heads=local)
    if (form := spec.compressed) is not None:
        if form.out_groups % ranks:
            raise _uneven(spec, "out_groups", form.out_groups, ranks)
        form = replace(form, out_groups=form.out_groups // ranks)
        part = replace(part, compressed=form)
    if spec.linear is not None:
        part = replace(part, linear=_states(spec, spec.linear, ranks))
    return part


def _states(spec: ModelSpec, linear: LinearAttention, ranks: int) -> LinearAttention:
    for name in ("key_heads", "value_heads"):
        if getattr(linear, name) % ranks:
            raise _uneven(spec, name, getattr(linear, name), ranks)
    return replace(
        linear,
        key_heads=linear.key_heads // ranks,
        value_heads=linear.value_heads // ranks,
        inputs=tuple(
            (module, n if module.endswith("_a_proj") else n // ranks) for module, n in linear.inputs
        ),
        inner=tuple((module, k, n // ranks) for module, k, n in linear.inner),
        parameters=-(-linear.parameters // ranks),
    )


def _uneven(spec: ModelSpec, field: str, value: int, ranks: int) -> SettingError:
    return SettingError(
        "tensor_parallel", ranks, f"a number that shares the {value} {field} of {spec.name} evenly"
    )
