"""The paper's five workloads and three pairs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Final

from c2c.cost.kernel_graph import (
    MAMBA,
    SD35,
    VISION,
    Load,
    Served,
    decoder,
    diffusion,
    state_space,
    timed_gpus,
    vision_kernels,
)
from c2c.models import load_spec
from c2c.systems.tessera import Pair, load_pair, work_of
from experiments.claims import claim

__all__ = [
    "GPT_OSS",
    "LABELS",
    "LENGTHS",
    "MXFP4_BYTES",
    "PAIRS",
    "PROMPTS",
    "SAID",
    "WORKLOADS",
    "fitted_share",
    "gpus_of",
    "workload",
]

PAIRS: Final = ("a100_l40s", "h100_rtx", "b200_h100")
GPT_OSS: Final = "gpt-oss-20b"
LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "llama-3-8b": "Llama-3 8B",
        "gpt-oss-20b": "GPT-oss 20B",
        "mamba-codestral-7b": "Mamba 7B",
        "qwen2.5-vl-7b": "Qwen2.5-VL 7B",
        "sd3.5-medium": "SD3.5",
        "a100_l40s": "A100 + L40S",
        "h100_rtx": "H100 + RTX Pro 6000",
        "b200_h100": "B200 + H100",
    }
)
WORKLOADS: Final = tuple(LABELS)[:5]
MXFP4_BYTES: Final = 4.25 / 8  # bytes of a weight and its share of a scale, as in GPT-oss

# Inputs: Splitwise's medians; 512 x 512 pixels are 36 x 36 patches, merged to 324 tokens.
MEDIANS: Final = (1020, 129)  # tokens of a prompt and an answer in Azure's conversation trace
# Readings (`readings.yaml`): tokens of a prompt and an answer, and prompts of a step by its rows.
LENGTHS: Final = {"conversation": MEDIANS, "code": (1500, 13), "alike": (512, 512)}
PROMPTS: Final = {16: 1, 64: 4, 256: 8}
SAID: Final = frozenset({"batch", "lengths"})
_PATCHES: Final = 36 * 36
_IMAGE_TOKENS: Final = _PATCHES // 4
# Assumptions: words of a question about an image and of its answer; images made at once.
_QUESTION, _ANSWER, _IMAGES = 32, 64, 2
_STEPS: Final = 28


@cache
def workload(name: str, batch: int = 64, lengths: str = "conversation") -> Served:
    """Return the offline decoder of one of `WORKLOADS`."""
    prompt, output = LENGTHS[lengths]
    chat = Load(prompt=prompt, output=output, rows=batch, prompts=PROMPTS[batch])
    if name == "sd3.5-medium":
        return diffusion(name, SD35, images=_IMAGES, steps=_STEPS)
    if name == "mamba-codestral-7b":
        return state_space(name, MAMBA, chat)
    spec = load_spec(name)
    if name == "qwen2.5-vl-7b":
        load = replace(chat, prompt=_IMAGE_TOKENS + _QUESTION, output=_ANSWER)
        return decoder(spec, load, before=vision_kernels(VISION, load.prompts, _PATCHES))
    return decoder(spec, chat, expert_bytes=MXFP4_BYTES if spec.experts else 2)


def gpus_of(pair: str) -> tuple[str, str]:
    """Return a pair's GPU names, left and right, for texts."""
    left, _, right = LABELS.get(pair, "").partition(" + ")
    if right:
        return left, right
    gpu_pair = load_pair(pair)
    return gpu_pair.left, gpu_pair.right


def relative(pair: Pair, names: Sequence[str] = WORKLOADS) -> dict[str, float]:
    """Return workloads' throughput, right GPU over left, unfitted."""
    gpus = timed_gpus(pair.left, pair.right)
    result = {}
    for name in names:
        parts = [
            (work_of(phase.kernels, gpus).times.sum(0), phase.steps)
            for phase in workload(name).phases
        ]
        left, right = (sum(float(t[g]) * steps for t, steps in parts) for g in (0, 1))
        result[name] = left / right
    return result


def fitted_share(name: str) -> float:
    """Return the `right_share` with the paper's mean over workloads."""
    pair = load_pair(name)
    left, right = (side.gpu for side in pair.gpus)
    assert left.price is not None
    assert right.price is not None
    printed = float(claim(f"tessera.table3.{name}.homo_right").value) * right.price / left.price
    mean = sum(relative(pair).values()) / len(WORKLOADS)
    return printed / mean


def main(arguments: Sequence[str]) -> int:
    """Print stored and fitted values; return 2 for any arguments."""
    if arguments:
        print(f"error: {arguments[0]!r}: expected no argument", file=sys.stderr)
        return 2
    for name in PAIRS:
        text = ", ".join(f"{k} {v:.2f}" for k, v in relative(load_pair(name)).items())
        print(f"{name}: stored {load_pair(name).right_share}, fitted {fitted_share(name):.3f}")
        print(f"  right over left with nothing fitted: {text}")
    return 0
