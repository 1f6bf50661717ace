"""The chunk profile against steps added up one by one."""

import numpy as np
import pytest

from c2c.cost import Constants, chunk_profile, step_table, step_time
from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import ModelSpec, load_spec

CHUNKS = [1, 64, 100, 256, 700, 1024]


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("rate", [None, 60.0])
@pytest.mark.parametrize("prompt", [1, 64, 700, 1000])
def test_profile_adds_up_the_steps_of_a_prefill(
    model: str, rate: float | None, prompt: int, small_slice: Slice, constants: Constants
) -> None:
    spec = load_spec(model)
    table = step_table(spec, small_slice, constants, 375.0, max_tokens=1024, max_rows=4)
    profile = chunk_profile(
        table, spec, small_slice, constants,
        chunks=CHUNKS, prompt_tokens=prompt, ttft_target_s=2.0, rate_gbps=rate, alpha_index=5,
    )  # fmt: skip
    for i, chunk in enumerate(CHUNKS):
        seconds, hbm, link, done = 0.0, 0.0, 0.0, 0
        while done < prompt:
            size = min(chunk, prompt - done)
            step = step_time(
                table, prefill_tokens=size, context_tokens=done,
                head_rows=int(done + size == prompt), alpha_index=5, rate_gbps=rate,
            )  # fmt: skip
            seconds, hbm, link = (
                seconds + step.seconds, hbm + step.hbm_bytes, link + step.link_bytes
            )  # fmt: skip
            done += size
        assert profile.ttft_s[i] == pytest.approx(seconds, rel=1e-9)
        assert profile.hbm_gbps_needed[i] == pytest.approx(hbm / 2.0e9, rel=1e-9)
        assert profile.link_gbps_needed[i] == pytest.approx(link / 2.0e9, rel=1e-9)


def test_small_chunks_waste_compute_and_stream_weights_again(
    dense: ModelSpec, small_slice: Slice, constants: Constants
) -> None:
    table = step_table(dense, small_slice, constants, 375.0, max_tokens=1024, max_rows=1)
    profile = chunk_profile(
        table, dense, small_slice, constants, chunks=CHUNKS, prompt_tokens=1024, ttft_target_s=1.0
    )
    assert profile.compute_share[0] > 10 * profile.compute_share[-1]
    assert (np.diff(profile.link_gbps_needed) < 0).all()


@pytest.mark.parametrize(
    "change",
    [
        {"chunks": [0]}, {"chunks": [65]}, {"chunks": []}, {"prompt_tokens": 0},
        {"ttft_target_s": 0.0}, {"rate_gbps": -1.0},
    ],
)  # fmt: skip
def test_profiles_that_cannot_be_made_name_the_field(
    change: dict[str, object], dense: ModelSpec, small_slice: Slice, constants: Constants
) -> None:
    table = step_table(dense, small_slice, constants, 375.0, max_tokens=64, max_rows=1)
    options: dict[str, object] = {"chunks": [64], "prompt_tokens": 64, "ttft_target_s": 1.0}
    with pytest.raises(SettingError, match=next(iter(change))):
        chunk_profile(table, dense, small_slice, constants, **(options | change))  # type: ignore[arg-type]
