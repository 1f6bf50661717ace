"""Layout of models side by side on GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt

from c2c.cost import Constants, StepTable, step_table
from c2c.errors import SettingError
from c2c.hardware import Platform, Slice, slices
from c2c.models import Deployment, ModelSpec, kv_bytes_per_token, weight_bytes
from c2c.ranges import AboveZero, Count, In, SomeShare, check_fields
from c2c.serving import (
    Cost,
    Curve,
    Lane,
    StepLayout,
    SystemSpec,
    Work,
    activation_bytes,
    side_by_side,
)
from c2c.systems.mechanism import Context, Mechanism
from c2c.systems.muxserve.placement import Served, placed

__all__ = ["SYSTEM", "Muxing", "muxed_layout"]

MOST_MODELS: Final = 64  # each has tables for every other one's lane
_PAIRS: Final = 1024  # tokens that a token of a prompt attends to at most, for timing

Shares = tuple[Annotated[float, In("(0, 1]", "a share of the SMs")], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Muxing:
    """Settings of `system.layout`: models side by side on GPUs.

    Attributes:
      rates_rps: requests a second of each model, in the catalog's order; (): one each.
      prompt_tokens: mean tokens of a prompt.
      output_tokens: mean tokens of an answer.
      prompt_share: share of the SMs for a model's prompts.
      decode_shares: shares of the SMs, one of which each model gets for decodes.
    """

    rates_rps: tuple[AboveZero, ...] = ()
    prompt_tokens: Count = 161
    output_tokens: Count = 338
    prompt_share: SomeShare = 1.0
    decode_shares: Shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode_shares", tuple(self.decode_shares))
        object.__setattr__(self, "rates_rps", tuple(self.rates_rps))
        check_fields(self, "system.layout")
        if not self.decode_shares:
            raise SettingError("system.layout.decode_shares", [], "at least one share")


def muxed_layout(
    muxing: Muxing, models: Sequence[Deployment], platform: Platform, gpus: int, system: SystemSpec,
    constants: Constants,
) -> StepLayout:  # fmt: skip
    """Return the layout of models over equal GPUs."""
    if len(models) > MOST_MODELS:
        raise SettingError("catalog", f"{len(models)} models", f"at most {MOST_MODELS}")
    if gpus > len(models):
        raise SettingError("superchips", gpus, f"at most {len(models)}, the number of models")
    if muxing.rates_rps and len(muxing.rates_rps) != len(models):
        allowed = f"a rate of each of {len(models)} models"
        raise SettingError("system.layout.rates_rps", list(muxing.rates_rps), allowed)
    return _Muxed(muxing, models, platform, system, constants).layout(gpus)


def _prepare(context: Context) -> SystemSpec:
    run, whole = context.run, context.platform.mig[0]
    if run["mig"].get("name") not in ("auto", whole):
        raise SettingError("mig", run["mig"].get("name"), f"auto or {whole}: models share SMs")
    if run["tensor_parallel"] > 1:
        raise SettingError("tensor_parallel", run["tensor_parallel"], "1: each model has one GPU")
    layout = muxed_layout(
        context.settings, context.deployments, context.platform, run["superchips"], context.system,
        context.constants,
    )  # fmt: skip
    return replace(context.system, layout=layout)


def _notes(context: Context) -> tuple[str, ...]:
    if context.settings.rates_rps:
        return ()
    return (
        "placement: one request a second of each model; system.layout.rates_rps has better rates",
    )


SYSTEM: Final = Mechanism(
    part="layout", settings=Muxing, prepare=_prepare, notes=_notes, over_chips=True
)


# A step is one work. It takes the time of its shares alone and draws the time of all SMs from its
# GPU: decodes that HBM bounds, or prompts on all SMs, slow each other down; decodes on few SMs and
# light prompts do not.
class _Muxed:
    def __init__(
        self, muxing: Muxing, models: Sequence[Deployment], platform: Platform, system: SystemSpec,
        constants: Constants,
    ) -> None:  # fmt: skip
        self.muxing, self.platform, self.system, self.constants = (
            muxing,
            platform,
            system,
            constants,
        )
        self.models = {one.name: one for one in models}
        (self.whole,) = slices(platform, platform.mig[0])
        self.chunk = max(system.profile.chunks)
        rates = muxing.rates_rps or [1.0] * len(models)
        self.rates = dict(zip(self.models, rates, strict=True))
        self.tables: dict[tuple[object, float], StepTable] = {}

    def layout(self, gpus: int) -> StepLayout:
        by_gpu, shares = placed([self._served(name) for name in self.models], gpus, self._room)
        there = {model.name for here in by_gpu for model in here}
        if lacking := [name for name in self.models if name not in there]:
            size = sum(weight_bytes(one.spec) for one in self.models.values()) / 1e9
            raise SettingError(
                "catalog", lacking, f"models with room in the HBM of {gpus} {self.platform.name}; "
                f"all have {size:.0f} GB", "MuxServe evicts none: set a larger superchips.",
            )  # fmt: skip
        layouts = [self._on_one(here, shares) for here in by_gpu]
        return side_by_side(layouts, [(g, [m.name for m in h]) for g, h in enumerate(by_gpu)])

    def _on_one(self, here: Sequence[Served], shares: Mapping[str, float]) -> StepLayout:
        lanes = []
        for model in here:
            spec, share = self.models[model.name].spec, shares[model.name]
            cost, whole = self._step(spec, share, self.muxing.prompt_share), self._step(spec, 1, 1)
            step = (Work(name="step", seconds=cost, draws={"gpu": _least(whole, cost)}),)
            place = replace(self.whole, name=model.name)
            lanes.append(Lane(place=place, steps={spec.name: (step,)}, kv_homes=({"gpu": 1.0},)))
        shares_text = ", ".join(f"{model.name} {shares[model.name]:.0%}" for model in here)
        return StepLayout(
            name=f"MuxServe on {self.platform.name}", resources=("gpu",), lanes=tuple(lanes),
            gpus=(("gpu", self.platform),), by_age=False, memories={"gpu": self._room(here)},
            notes=(f"SMs for decodes: {shares_text}",),
        )  # fmt: skip

    def _room(self, here: Sequence[Served]) -> float:
        specs = [self.models[model.name].spec for model in here]
        room = self.whole.hbm_bytes - self.system.hbm_reserve_bytes
        room -= max(activation_bytes(spec, self.chunk) for spec in specs)
        room -= (len(specs) - 1) * self.system.engines.bytes
        return float(room - sum(weight_bytes(spec) for spec in specs))

    def _served(self, name: str) -> Served:
        spec, settings = self.models[name].spec, self.muxing
        prompts = _prompts_s(self._table(spec, settings.prompt_share))
        tokens = settings.prompt_tokens + settings.output_tokens
        return Served(
            name=name, rate_rps=self.rates[name], output_tokens=settings.output_tokens,
            weight_bytes=float(weight_bytes(spec)),
            request_bytes=float(tokens * kv_bytes_per_token(spec)),
            prompt_s=float(prompts[min(settings.prompt_tokens, len(prompts)) - 1]),
            decode_s={
                share: _decodes_s(table) + table.kv_read_s_per_token * tokens
                * np.arange(1, self.system.max_batch + 1)
                for share in settings.decode_shares
                for table in (self._table(spec, share),)
            },
        )  # fmt: skip

    def _step(self, spec: ModelSpec, decode_share: float, prompt_share: float) -> Cost:
        """Return a step's cost; `system/batch=prompts_alone` never mixes both."""
        prompts_s, decodes = (
            _prompts_s(self._table(spec, prompt_share)),
            self._table(spec, decode_share),
        )
        decodes_s = _decodes_s(decodes)
        return Cost(
            prefill=_curve(prompts_s), decode=_curve(decodes_s), cached=decodes.kv_read_s_per_token
        )

    def _table(self, spec: ModelSpec, share: float) -> StepTable:
        key = (replace(spec, name=""), share)
        if key not in self.tables:
            self.tables[key] = step_table(
                spec, _share_of(self.whole, share), self.constants, 1.0, alphas=[0.0],
                max_tokens=self.chunk, max_rows=self.system.max_batch, weights="hbm",
            )  # fmt: skip
        return self.tables[key]


def _prompts_s(table: StepTable) -> npt.NDArray[np.float64]:
    # A step of 1, 2, ... prompt tokens alone.
    tokens = np.arange(1, table.max_tokens + 1)
    pairs = tokens * np.minimum(tokens, _PAIRS) / 2 * table.attn_s_per_pair
    alone = table.body_s[tokens, 0] + table.head_s[1, 0] + table.step_overhead_s
    result: npt.NDArray[np.float64] = alone + table.prefill_attention_s[tokens] + pairs
    return result


def _decodes_s(table: StepTable) -> npt.NDArray[np.float64]:
    # A step of 1, 2, ... decodes alone, without reads of the KV cache.
    rows = np.arange(1, table.max_rows + 1)
    times_s: npt.NDArray[np.float64] = table.body_s[rows, 0] + table.head_s[rows, 0]
    return times_s + table.step_overhead_s + table.decode_attention_s[rows]


def _curve(values: npt.NDArray[np.float64]) -> Curve:
    return Curve(tuple(range(1, len(values) + 1)), values)


def _share_of(part: Slice, share: float) -> Slice:
    sms = max(1, round(share * part.sm_count))
    return replace(part, sm_count=sms, bf16_tflops=part.bf16_tflops * sms / part.sm_count)


def _least(whole: Cost, cost: Cost) -> Cost:
    def least(all_sms: Curve, some: Curve) -> Curve:
        return Curve(some.sizes, np.minimum(all_sms.values, some.values))

    return Cost(
        prefill=least(whole.prefill, cost.prefill), decode=least(whole.decode, cost.decode),
        cached=min(whole.cached, cost.cached),
    )  # fmt: skip
