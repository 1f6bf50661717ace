"""Slices and models the cost tests share."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from c2c.cost import Constants, load_constants
from c2c.hardware import Slice, load_mig, load_platform, slices
from c2c.models import ModelSpec, load_spec


@pytest.fixture(scope="session")
def constants() -> Constants:
    return load_constants("gh200")


@pytest.fixture(scope="session")
def gh200() -> Callable[[str], Slice]:
    """One slice of a GH200 in a MIG layout, as C2CServe's Table 1 has it."""
    paper = replace(load_platform("gh200"), mig_table="paper")
    return lambda mig: slices(paper, load_mig(mig))[0]


@pytest.fixture(scope="session")
def full_gpu(gh200: Callable[[str], Slice]) -> Slice:
    return gh200("1x96gb")


@pytest.fixture(scope="session")
def small_slice(gh200: Callable[[str], Slice]) -> Slice:
    return gh200("7x12gb")


@pytest.fixture(scope="session")
def scaled() -> Callable[..., Slice]:
    """A slice with more SMs (tensor cores with them), HBM or link bandwidth."""

    def change(slice_: Slice, *, sms: int = 1, hbm: float = 1, link: float = 1) -> Slice:
        return replace(
            slice_, sm_count=slice_.sm_count * sms, bf16_tflops=slice_.bf16_tflops * sms,
            hbm_gbps=slice_.hbm_gbps * hbm, link_cap_gbps=slice_.link_cap_gbps * link,
        )  # fmt: skip

    return change


@pytest.fixture(scope="session")
def dense() -> ModelSpec:
    return load_spec("llama-3-8b")


@pytest.fixture(scope="session")
def moe() -> ModelSpec:
    return load_spec("qwen3-30b-a3b")
