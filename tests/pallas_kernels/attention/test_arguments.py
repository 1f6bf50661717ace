"""Wrong use fails before launch and says what is allowed; who serves what; programs."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnavailable
from pallas_kernels.attention import (
    Decode,
    DecodeConfig,
    Prefill,
    PrefillConfig,
    decode_attention,
    paged_prefill_attention,
    prefill_attention,
    programs,
)
from pallas_kernels.attention.config import (
    check_decode,
    check_prefill,
    choose_decode,
    choose_prefill,
    choose_splits,
    decode_shared_bytes,
    prefill_shared_bytes,
)
from pallas_kernels.attention.specs import MODEL_HEADS
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from tests.pallas_kernels.attention.cases import Case, decoding, paged

CASE = Case(queries=8, keys=64, heads=4, kv_heads=2, offsets=(0, 3))
Q, K, V = CASE.arrays
POOL = paged(decoding((40, 64), 64, heads=4, kv_heads=2), 16)
ONE, K_PAGES, V_PAGES, TABLES, LENGTHS = POOL.arguments

WRONG_PREFILL: list[tuple[dict[str, Any], str]] = [
    ({"q": Q[0]}, r"q: got \(8, 4, 64\), expected an array \[B, T, Hq, D\]"),
    ({"k": [1]}, r"k: got list, expected an array \[B, S, Hkv, D\]"),
    ({"q": Q.astype(np.float64)}, "q of dtype float64: expected one of bfloat16, float16, float32"),
    ({"v": V.astype(np.float16)}, "v of dtype float16: expected bfloat16 as in q"),
    ({"v": V[:, 1:]}, r"v of shape \(2, 63, 2, 64\): expected \(2, 64, 2, 64\) as k"),
    ({"k": K[:1], "v": V[:1]}, r"k of shape \(1, 64, 2, 64\): expected B=2 as in q"),
    ({"q": Q[:, :, :3]}, "q with 3 heads: expected a multiple of 2 KV heads"),
    ({"q": Q[..., :32]}, "q with head_dim=32: expected 64 as in the keys"),
    ({"q": Q[:, :0]}, r"q of shape \(2, 0, 4, 64\): expected every size above 0"),
    ({"window": 0}, "window=0: expected from 1 to 1073741824"),
    ({"window": 1.5}, "window of shape .* and kind 'f': expected a whole number"),
    ({"window": 4, "causal": False}, "window=4: expected None where causal=False"),
    ({"q_offset": 1 << 30}, "q_offset=1073741824: expected from -10737418"),
    ({"q_offset": np.zeros(3, np.int32)}, r"q_offset of shape \(3,\) .*int32 of shape \(2,\)"),
    ({"kv_lengths": 65}, "kv_lengths=65: expected from 0 to 64"),
    ({"kv_lengths": np.array([3, -1])}, "kv_lengths=-1: expected from 0 to 64"),
    ({"backend": "cuda"}, "backend='cuda': expected one of auto, sm90, interpret, reference"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_PREFILL)
def test_wrong_prefill(change: dict[str, Any], message: str) -> None:
    arguments = {"q": Q, "k": K, "v": V} | change
    arrays = [arguments.pop(name) for name in ("q", "k", "v")]
    unchecked = inspect.unwrap(prefill_attention)  # without the tests' own checks of types
    with pytest.raises(ValueError, match=message):
        unchecked(*arrays, **arguments)


WRONG_DECODE: list[tuple[dict[str, Any], str]] = [
    ({"q": Q}, r"q: got \(2, 8, 4, 64\), expected an array \[B, Hq, D\]"),
    ({"v_pages": V_PAGES[1:]}, r"v_pages of shape \(10, 16, 2, 64\): expected \(11, 16, 2, 64\)"),
    ({"block_tables": TABLES[0]}, r"block_tables: got \(4,\), expected an array \[B, max_pages\]"),
    ({"block_tables": TABLES.astype(np.int64)}, r"dtype int64: expected int32 \[2, max_pages"),
    ({"block_tables": TABLES[:1]}, r"block_tables of shape \(1, 4\)"),
    ({"lengths": 65}, "lengths=65: expected from 0 to 64"),
    ({"lengths": np.array([1.0, 2.0])}, "lengths of shape .* and kind 'f'"),
    ({"window": -2}, "window=-2: expected from 1"),
    ({"soft_cap": 0.0}, "soft_cap=0.0: expected a number above 0"),
    ({"soft_cap": 2.0, "backend": "interpret"}, "backend='interpret': expected 'auto' or"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_DECODE)
def test_wrong_decode(change: dict[str, Any], message: str) -> None:
    arguments = {
        "q": ONE, "k_pages": K_PAGES, "v_pages": V_PAGES, "block_tables": TABLES,
        "lengths": LENGTHS,
    } | change  # fmt: skip
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(decode_attention)(**arguments)


def test_sizes_that_the_kernels_do_not_take() -> None:
    """They are errors where a kernel was asked for, and the reference's where it was not."""
    odd = Case(queries=3, keys=20, dim=80, offsets=(17,))
    with pytest.raises(ValueError, match="head_dim=80: expected 64 or 128"):
        prefill_attention(*odd.arrays, backend="interpret")
    assert odd.exact().worst(prefill_attention(*odd.arrays, q_offset=17)) <= 1
    with pytest.raises(ValueError, match="dtype='float32': expected one of bfloat16, float16"):
        prefill_attention(*(a.astype(np.float32) for a in CASE.arrays), backend="interpret")
    pool = paged(decoding((40,), 48), 24)
    with pytest.raises(ValueError, match="k_pages: page=24: expected 16, 32 or a multiple of 64"):
        decode_attention(*pool.arguments, backend="interpret")
    wide = paged(decoding((10,), 16, heads=65), 16)
    with pytest.raises(ValueError, match="q with 65 query heads a KV head: expected at most 64"):
        decode_attention(*wide.arguments, backend="interpret")
    assert wide.case.exact().worst(decode_attention(*wide.arguments)[:, None]) <= 1


def test_no_gpu_no_kernel() -> None:
    for call in (
        lambda: prefill_attention(Q, K, V, backend="sm90"),
        lambda: paged_prefill_attention(
            ONE[:, None], K_PAGES, V_PAGES, TABLES, q_offset=0, kv_lengths=1, backend="sm90"
        ),
        lambda: decode_attention(*POOL.arguments, backend="sm90"),
    ):
        with pytest.raises(KernelUnavailable, match="backend='sm90': it needs an NVIDIA GPU"):
            call()


def test_traced_values_are_clamped() -> None:
    out = jax.jit(lambda n: prefill_attention(Q, K, V, q_offset=56, kv_lengths=n))(
        jnp.array([1000, -5])
    )
    assert np.asarray(out[0]).all()
    assert not np.asarray(out[1]).any()


def test_no_derivative() -> None:
    with pytest.raises(NotImplementedError, match="prefill_attention has no derivative"):
        jax.grad(lambda q: prefill_attention(q, K, V).astype(jnp.float32).sum())(jnp.asarray(Q))


def test_configurations_that_cannot_run() -> None:
    spec = Prefill(batch=1, queries=8, keys=64, heads=1, kv_heads=1, dim=128)
    with pytest.raises(ValueError, match="bytes of shared memory, expected at most"):
        check_prefill(spec, PrefillConfig(stages=4))
    with pytest.raises(ValueError, match="block_kv=96: expected a multiple of 64"):
        PrefillConfig(block_kv=96)
    with pytest.raises(ValueError, match="stages=1: expected a number from 2 to 32"):
        DecodeConfig(stages=1)
    with pytest.raises(ValueError, match="stages=33: expected a number from 2 to 32"):
        DecodeConfig(stages=33)
    with pytest.raises(ValueError, match="compute_registers=240: expected"):
        PrefillConfig(compute_registers=240)
    with pytest.raises(ValueError, match="queries=9: expected a multiple of 8"):
        Prefill(batch=1, queries=9, keys=64, heads=1, kv_heads=1, dim=128)
    small = {"batch": 1, "kv_heads": 1, "dim": 64, "pages": 4, "table": 4}
    with pytest.raises(ValueError, match="group=12: expected 1 to 8"):
        Decode(group=12, page=16, **small)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_kv=128: expected a multiple or a divisor"):
        check_decode(Decode(group=1, page=192, **small), DecodeConfig(block_kv=128))  # type: ignore[arg-type]


@pytest.mark.parametrize("work", [1, 8, 33, 132, 140, 512, 5000])
@pytest.mark.parametrize("blocks", [1, 9, 512, 4096])
@pytest.mark.parametrize("sms", [16, 132])
def test_splits_keep_the_sms_busy(work: int, blocks: int, sms: int) -> None:
    def busy(splits: int) -> float:
        return work * splits / (-(-work * splits // sms) * sms)

    chosen = choose_splits(work, blocks, sms)
    assert 1 <= chosen <= max(1, min(64, blocks // 4))
    assert busy(chosen) >= min(0.9, busy(1))
    if chosen > 1:
        assert busy(chosen - 1) < 0.9


@pytest.mark.parametrize("model", MODEL_HEADS)
def test_every_model_has_configurations_that_fit(model: str) -> None:
    heads, kv_heads, dim = MODEL_HEADS[model]
    spec = Prefill(batch=1, queries=8, keys=64, heads=heads, kv_heads=kv_heads, dim=dim)
    config = choose_prefill(spec)
    check_prefill(spec, config)
    assert prefill_shared_bytes(spec, config) <= SHARED_BYTES_LIMIT
    for page in (16, 32, 64, 128):
        decode = Decode(
            batch=3, kv_heads=kv_heads, group=heads // kv_heads, dim=dim, pages=99, page=page,
            table=33,
        )  # fmt: skip
        for sms in (16, 132):
            chosen = choose_decode(decode, sm_count=sms)
            check_decode(decode, chosen)
            assert decode_shared_bytes(decode, chosen) <= SHARED_BYTES_LIMIT


def test_programs_trace_and_differ() -> None:
    found = programs.programs(132)
    assert len({program.name for program in found}) == len(found)
    for program in (found[0], found[3]):  # a prefill and a decode; the others differ in sizes
        arguments = [jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in program.arguments]
        jaxpr = str(jax.make_jaxpr(program.function)(*arguments))
        assert jaxpr.count("copy_gmem_to_smem") > 0
        assert program.shared_bytes <= SHARED_BYTES_LIMIT
