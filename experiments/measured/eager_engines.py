"""Public rows of engines that launch kernels singly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from c2c.cost import Engine, load_engine, step_table, step_time
from c2c.hardware import link_gbps, load_platform, slices
from c2c.models import ModelSpec
from experiments.measured.chips import Chip, whole
from experiments.measured.rows import OWN, Rows, read_folder

__all__ = ["EagerTime", "batch_steps", "launched_rows", "shapes", "single_requests"]

ANSWER: Final = 2048  # tokens of a row of single_requests.csv
DECODES: Final = 9  # steps that a decode time of engine_steps.csv is the mean of

# Chips without a file of their own: the measured chip of the same generation and what differs, from
# their datasheets. An H800 differs in NVLink alone.
_ALIKE: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = {
    "h800": ("h100_sxm", {}),
    "h20": ("h100_sxm", {"sm_count": 78, "hbm_gbps": 4000.0, "bf16_tflops": 148.0}),
    "a10": ("a100_sxm", {"sm_count": 72, "hbm_gbps": 600.0, "bf16_tflops": 125.0,
                         "l2_bytes": 6_291_456}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerTime:
    """A measured time beside the predicted one, in seconds."""

    model: str
    chip: str
    engine: str
    what: str
    prompt_tokens: int
    batch: int
    measured_s: float
    ours_s: float

    @property
    def error(self) -> float:
        """Our time over the measured one, less 1."""
        return self.ours_s / self.measured_s - 1.0


@cache
def shapes() -> Mapping[str, ModelSpec]:
    """Return the shapes of `model_shapes.csv` by model."""
    rows = read_folder(OWN)["model_shapes"]
    names = [n for n in rows.columns if n not in ("model", "tied")]
    result = {}
    for i, model in enumerate(rows["model"]):
        sizes: dict[str, Any] = {name: int(rows[name][i]) for name in names}
        result[model] = ModelSpec(
            name=model, family="qwen2", tie_embeddings=rows["tied"][i] == "1", max_position=32768,
            **sizes,
        )  # fmt: skip
    return result


@cache
def _chip(name: str) -> Chip:
    like, other = _ALIKE.get(name, (name, {}))
    platform = load_platform(like)
    changed = replace(platform, gpu=replace(platform.gpu, **other))  # type: ignore[arg-type]
    return replace(whole(like), slice_=slices(changed, changed.mig[0])[0])


def single_requests(rows: Rows) -> list[EagerTime]:
    """Return rows of `single_requests.csv` beside a token's mean time."""
    result = []
    for i, model in enumerate(rows["model"]):
        engine = load_engine(rows["engine"][i])
        ours_s = _steps_s(model, rows["chip"][i], engine, 1, np.array([1]), ANSWER / 2.0)[1][0]
        result.append(EagerTime(
            model=model, chip=rows["chip"][i], engine=rows["engine"][i], what="token",
            prompt_tokens=1, batch=1, measured_s=1.0 / rows["tokens_per_s"][i], ours_s=ours_s,
        ))  # fmt: skip
    return result


def batch_steps(rows: Rows, engine: Engine) -> list[EagerTime]:
    """Return rows of `engine_steps.csv` beside an engine's prefill, then decode."""
    result = []
    for key in sorted(set(rows.keys(("model", "chip", "prompt_tokens")))):
        model, chip, tokens = key.split(",")
        here = rows.take(
            np.array([k == key for k in rows.keys(("model", "chip", "prompt_tokens"))])
        )
        prompt = int(tokens)
        batches = here["batch"].astype(int)
        ours = _steps_s(model, chip, engine, prompt, batches, prompt + DECODES / 2.0)
        for phase, times in zip(("prefill", "decode"), ours, strict=True):
            result += [
                EagerTime(
                    model=model, chip=chip, engine=f"{engine.name}-{engine.version}", what=phase,
                    prompt_tokens=prompt, batch=int(batch), measured_s=ms / 1e3, ours_s=ours_s,
                )
                for batch, ms, ours_s in zip(batches, here[f"{phase}_ms"], times, strict=True)
            ]  # fmt: skip
    return result


def launched_rows(tables: Mapping[str, Rows]) -> list[EagerTime]:
    """Return the project's rows of single requests and, of vLLM, of steps."""
    steps = batch_steps(tables["engine_steps"], load_engine("vllm-0.5.1-eager"))
    return [*single_requests(tables["single_requests"]), *steps]


def _steps_s(
    model: str, chip: str, engine: Engine, prompt: int, batches: np.ndarray, context: float
) -> tuple[list[float], list[float]]:
    spec, machine = shapes()[model], _chip(chip)
    platform = load_platform(machine.platform)
    constants = engine.constants(machine.constants, platform.host.host_factor)
    most = int(batches.max())
    table = step_table(
        spec, machine.slice_, constants, link_gbps(platform.link, "datasheet"),
        max_tokens=most * prompt, max_rows=most, alphas=(0.0,), weights="hbm",
    )  # fmt: skip
    pairs_s = table.attn_s_per_pair * prompt * (prompt + 1) / 2.0
    prefill = [
        float(
            table.body_s[n * prompt, 0] + table.head_s[n, 0] + table.step_overhead_s
            + table.prefill_attention_s[n * prompt] + n * pairs_s
        )
        for n in batches
    ]  # fmt: skip
    decode = [
        step_time(
            table, decode_seqs=int(n), decode_kv_tokens=n * context, head_rows=int(n)
        ).seconds
        for n in batches
    ]  # fmt: skip
    return prefill, decode
