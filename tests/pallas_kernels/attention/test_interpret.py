"""The kernels themselves, run step by step on a CPU with NaN in all memory, against float64."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import (
    DecodeConfig,
    PrefillConfig,
    decode_attention,
    online,
    prefill_attention,
    sm90_decode,
    sm90_prefill,
)
from pallas_kernels.attention.specs import Decode, Prefill
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.attention.cases import Case, Paged, decoding, paged
from tests.pallas_kernels.interpreting import races_found, reset, within
from tests.tiers import tiered

SMALL = PrefillConfig(block_kv=64)
INTERPRET: dict[str, Any] = {"backend": "interpret"}

# A program takes longer to compile than to run: cases differ in run-time values where they can.
TILES = Case(queries=136, keys=200)  # two tiles, the last ragged; four blocks
CHUNK = Case(queries=21, keys=136, heads=4, kv_heads=2, offsets=(115, 60), lengths=(136, 81))
PREFILLS = {
    "two tiles": TILES,
    "window": replace(TILES, offsets=(64,), window=70),
    "one query, one key": Case(queries=1, keys=1),
    "chunks over their past": CHUNK,
    "keys begin after some queries": replace(CHUNK, offsets=(-9, -64)),
    "a row without keys": replace(CHUNK, offsets=(0, 0), lengths=(0, 33)),
    "window of one": replace(CHUNK, offsets=(60, 64), window=1),
    "every key": Case(queries=24, keys=130, causal=False, lengths=(129,)),
    "128 wide, float16": Case(queries=72, keys=136, dim=128, dtype="float16", offsets=(64,)),
}


QUICK = ("window of one", "a row without keys", "128 wide, float16")


@pytest.mark.parametrize(
    "case", tiered(PREFILLS.values(), *(PREFILLS[k] for k in QUICK)), ids=PREFILLS.keys()
)
def test_prefill_within_the_bound(case: Case) -> None:
    out = within(
        lambda: prefill_attention(*case.arrays, **case.options(), config=SMALL, **INTERPRET)
    )
    assert out.dtype == case.arrays[0].dtype
    assert case.exact().worst(out) <= 1


def test_prefill_as_configured() -> None:
    case = Case(queries=136, keys=300, heads=1, dim=128, offsets=(150,), window=150)
    out = within(lambda: prefill_attention(*case.arrays, **case.options(), **INTERPRET))
    assert case.exact().worst(out) <= 1


SIXTEENS = decoding((150, 60), 192, heads=6, kv_heads=2)
DECODES = {
    "splits, one of them empty": (SIXTEENS, 16, 3),
    "a sequence without tokens": (replace(SIXTEENS, offsets=(-1, 0), lengths=(0, 1)), 16, 3),
    "window": (replace(SIXTEENS, offsets=(149, 191), lengths=(150, 192), window=70), 16, 3),
    "pages of 32": (decoding((128, 161), 192, window=70, heads=8), 32, 2),
    "pages of 64, one head each": (decoding((64, 65), 128, heads=2, kv_heads=2), 64, 2),
    "pages of two blocks": (decoding((250,), 256, heads=3), 128, 3),
    "12 heads share one": (decoding((100,), 128, heads=12), 16, 1),
    "128 wide, float16": (decoding((130,), 192, heads=8, dim=128, dtype="float16"), 64, 2),
}


def decode(pool: Paged, splits: int) -> Any:
    config = DecodeConfig(stages=2, splits=splits)
    return within(
        lambda: decode_attention(
            *pool.arguments, window=pool.case.window, config=config, **INTERPRET
        )
    )


@pytest.mark.parametrize(("case", "page", "splits"), DECODES.values(), ids=DECODES.keys())
def test_decode_within_the_bound(case: Case, page: int, splits: int) -> None:
    out = decode(paged(case, page), splits)
    assert out.dtype == case.arrays[0].dtype
    assert case.exact(merges=splits).worst(out[:, None]) <= 1


def test_decode_as_configured() -> None:
    case = decoding((200, 77), 208, heads=4, kv_heads=2)
    out = within(lambda: decode_attention(*paged(case, 16).arguments, **INTERPRET))
    assert case.exact(merges=4).worst(out[:, None]) <= 1


def test_the_order_of_pages_changes_no_bit() -> None:
    a, b = (decode(paged(SIXTEENS, 16, seed=seed), 3) for seed in (1, 2))
    np.testing.assert_array_equal(a, b)


def test_kernels_under_vmap() -> None:
    case = Case(queries=8, keys=64, offsets=(56, 10))
    q, k, v = (jnp.asarray(array)[:, None] for array in case.arrays)

    def one(q: Any, k: Any, v: Any, offset: Any) -> Any:
        return prefill_attention(q, k, v, q_offset=offset, config=SMALL, **INTERPRET)

    out = within(lambda: jax.vmap(one)(q, k, v, jnp.array(case.offsets)))
    assert case.exact().worst(out[:, 0]) <= 1


def prefill_races() -> bool:
    case = Case(queries=136, keys=136, lengths=(130,))
    spec = Prefill(batch=1, queries=136, keys=136, heads=2, kv_heads=1, dim=64)
    params = interpret_params(detect_races=True)
    kernel = jax.jit(sm90_prefill.build(spec, SMALL, interpret=params))
    bounds = np.array([[0, 130, 1 << 30]], np.int32)
    reset()
    out = within(lambda: jax.block_until_ready(kernel(bounds, *case.arrays)))
    assert out.shape == case.arrays[0].shape
    return races_found()


def decode_races() -> bool:
    case = decoding((150,), 160, heads=4)
    q, k_pages, v_pages, tables, _ = paged(case, 16).arguments
    spec = Decode(batch=1, kv_heads=1, group=4, dim=64, pages=13, page=16, table=10)
    params = interpret_params(detect_races=True)
    config = DecodeConfig(stages=2, splits=2)
    kernel = jax.jit(sm90_decode.build(spec, config, interpret=params))
    bounds = np.array([[149, 150, 1 << 30]], np.int32)
    reset()
    out, _ = within(lambda: jax.block_until_ready(kernel(bounds, tables, q, k_pages, v_pages)))
    assert out.shape == (2, 4, 64)
    return races_found()


@pytest.mark.parametrize("races", [prefill_races, decode_races])
def test_no_race(races: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert not races()


@pytest.mark.parametrize("races", [prefill_races, decode_races])
def test_the_race_detector_sees_a_missing_fence(
    races: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without = SimpleNamespace(**{**vars(online.plgpu), "commit_smem": lambda: None})
    monkeypatch.setattr(online, "plgpu", without)
    assert races()
    reset()


def test_unwritten_values_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control of `zero_beyond`: without it NaN beyond a length reaches the result."""
    monkeypatch.setattr(online, "zero_beyond", lambda *_: None)
    case = Case(queries=8, keys=64, lengths=(33,), offsets=(33,))
    spec = Prefill(batch=1, queries=8, keys=64, heads=2, kv_heads=1, dim=64)
    kernel = jax.jit(sm90_prefill.build(spec, SMALL, interpret=interpret_params()))
    bounds = np.array([[33, 33, 1 << 30]], np.int32)
    out = within(lambda: jax.block_until_ready(kernel(bounds, *case.arrays)))
    assert np.isnan(np.asarray(out, np.float32)).all()
