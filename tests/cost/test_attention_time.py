"""One layer of attention: floors, efficiency by length, bytes of the cache."""

import numpy as np
import pytest

from c2c.cost import cache_read_s, decode_attention_s, load_constants, pair_s, prefill_attention_s
from c2c.hardware import load_platform, slices

H100 = slices(load_platform("h100_sxm"), "1x80gb")[0]
CONSTANTS = load_constants("h100_sxm")


def efficiency(tokens: int) -> float:
    """Share of the tensor-core peak of one prompt in 32 heads."""
    pairs = tokens * (tokens + 1) / 2
    seconds = pairs * pair_s(32, 128, slice_=H100, constants=CONSTANTS) + float(
        prefill_attention_s(tokens, heads=32, kv_heads=8, slice_=H100, constants=CONSTANTS)
    )
    return 4 * 32 * 128 * pairs / seconds / (H100.bf16_tflops * 1e12)


def test_longer_prompts_come_closer_to_the_peak() -> None:
    shares = [efficiency(n) for n in (256, 1024, 2048, 4096, 16384)]
    assert shares == sorted(shares)
    # What was found on public rows: 0.27 to 1024 tokens, 0.37 to 2048, 0.49 to 4096, 0.59 above.
    assert shares[0] < 0.12
    assert 0.15 < shares[1] < 0.35
    assert 0.5 < shares[4] < CONSTANTS.prefill_efficiency


def test_every_call_has_a_floor() -> None:
    one = prefill_attention_s(1, heads=32, kv_heads=8, slice_=H100, constants=CONSTANTS)
    assert float(one) > CONSTANTS.prefill_floor_s
    decode = decode_attention_s([0, 1, 64], kv_heads=8, slice_=H100, constants=CONSTANTS)
    assert decode[0] == 0
    assert CONSTANTS.decode_floor_s < decode[1] < decode[2]


def test_a_cache_is_read_at_hbms_rate_unless_it_is_read_again_and_fits_the_l2() -> None:
    small, large = 1e6, 1e9
    rate = H100.hbm_gbps * 1e9 * CONSTANTS.decode_hbm_efficiency
    for repeated in (False, True):
        found = cache_read_s(large, slice_=H100, constants=CONSTANTS, repeated=repeated)
        assert float(found) == pytest.approx(large / rate)
    first = cache_read_s(small, slice_=H100, constants=CONSTANTS)
    again = cache_read_s(small, slice_=H100, constants=CONSTANTS, repeated=True)
    assert float(first) == pytest.approx(small / rate)
    assert float(again) == pytest.approx(small / rate / (1 + CONSTANTS.l2_gain))
    sizes = np.linspace(1e5, 2e8, 400)
    read = cache_read_s(sizes, slice_=H100, constants=CONSTANTS, repeated=True)
    assert (np.diff(read) > 0).all()
