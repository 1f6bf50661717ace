"""A model whose weights stay in host memory: its logits, what it compiles, what it copies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from c2c import transformer
from tests.compilations import compilations
from tests.gpu.exact import BACKEND

pytestmark = pytest.mark.gpu

PROMPT = np.random.default_rng(1).integers(0, 8000, 150).tolist()
# bf16 is rounded to at about so many places of a layer; sums of a wrong order differ by that
ROUNDINGS = 8
SHAPES = {
    "llama": {"name": "llama-3-8b"},
    "qwen3": {"name": "llama-3-8b", "qk_norm": True, "tie_embeddings": True},
}


def shape(kind: str = "llama", layers: int = 4) -> Any:
    """Return a model with the structure of a large one and a hundredth of its weights."""
    from c2c.models import load_spec

    changes = dict(SHAPES[kind])
    return dataclasses.replace(
        load_spec(changes.pop("name")), layers=layers, hidden=1024, heads=16, kv_heads=4,
        head_dim=64, intermediate=2816, vocab=8000, **changes,
    )  # fmt: skip


def model(spec: Any, linear: Any, quantization: Any = None, seed: int = 0) -> Any:
    params = transformer.random_params(
        spec, np.random.default_rng(seed), dtype="bfloat16", placement=linear.placement,
        quantization=quantization,
    )  # fmt: skip
    return transformer.Model(spec=spec, params=params, linear=linear)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    assert a.shape == b.shape
    assert np.isfinite(a).all()
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def allowed(layers: int) -> float:
    return float(2.0**-8 * (ROUNDINGS * layers) ** 0.5)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", SHAPES)
def test_logits_are_those_of_weights_on_the_device(kind: str, alpha: float) -> None:
    spec = shape(kind)
    hybrid = transformer.Hybrid(backend=BACKEND)
    every = dict.fromkeys(("qkv", "o", "gate_up", "down", "head"), alpha)
    ours = model(spec, hybrid.with_alpha(**every)).logits(PROMPT)
    theirs = model(spec, transformer.Reference()).logits(PROMPT)
    assert apart(ours, theirs) <= allowed(spec.layers)
    if alpha == 1.0:  # it can fail
        other = model(spec, transformer.Reference(), seed=5).logits(PROMPT)
        assert apart(ours, other) > 0.5


@pytest.mark.parametrize(
    ("kind", "group"), [("int8", None), ("int8", 32), ("int4", 32), ("float8_e4m3fn", None)]
)
def test_quantised_weights(kind: str, group: int | None) -> None:
    spec = shape()
    quantization = transformer.Quantization(kind=kind, group=group)
    ours = model(spec, transformer.Hybrid(backend=BACKEND), quantization).logits(PROMPT)
    # dequantised to bf16, which rounds each weight once more
    theirs = model(spec, transformer.Reference(), quantization).logits(PROMPT)
    assert apart(ours, theirs) <= allowed(spec.layers)


def test_token_by_token_is_the_whole_prompt() -> None:
    spec = shape()
    ours = model(spec, transformer.Hybrid(backend=BACKEND))
    tokens = ours.generate(PROMPT, 8)
    logits = ours.logits(PROMPT + tokens[:-1])[len(PROMPT) - 1 :]
    # where the first two are closer than rounding, either may be drawn
    best = np.sort(logits, axis=-1)
    clear = best[:, -1] - best[:, -2] > 4 * allowed(spec.layers) * logits.std()
    assert [t for t, c in zip(tokens, clear, strict=True) if c] == (
        logits.argmax(axis=-1)[clear].tolist()
    )


def test_another_model_of_the_architecture_compiles_nothing() -> None:
    spec = shape()
    linear = transformer.Hybrid(backend=BACKEND)
    first, second = (model(spec, linear, seed=seed) for seed in (0, 1))
    told = first.generate(PROMPT, 4)
    with compilations() as seen:
        other = second.generate(PROMPT, 4)
        assert first.generate(PROMPT, 4) == told
    assert seen == []
    assert other != told
    with compilations() as seen:  # the positive control
        first.generate(PROMPT * 3, 1)
    assert seen
