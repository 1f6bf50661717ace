"""Estimate a model on chips under a serving engine in one line, with the error of measured runs.

    c2c estimate model=llama-3.1-70b chip=h200 tp=4 engine=vllm precision=fp8 isl=1024 osl=256
        clients=32
    c2c estimate model=deepseek-r1 chip=b200 tp=8 engine=sglang isl=1024 osl=1024 clients=64
    c2c estimate model=llama-3.1-8b chip=h100 rate=10

Weights are in HBM. Lengths are 0.8 to 1 times `isl` and `osl`; clients start at once, `rate=` is
Poisson. Beside each number is the simulator's error on the nearest public runs, held out of fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np

from c2c.cost import load_engine, step_time
from c2c.errors import SettingError
from c2c.hardware import Platform
from c2c.metrics.growth import growth_of
from c2c.models import ModelSpec, at_precision, flops_per_token, rank_of, weight_bytes
from c2c.ranges import Count, FromZero, In
from experiments.names import chip_named, model_named
from experiments.near_runs import FACTOR, borrowed, nearest, precision_of, read_errors
from experiments.plain_engine import Figures, Group, Load, prepared_group, served
from experiments.plain_settings import run_settings

__all__ = ["EstimateSettings", "main"]

FULL_SHARE: Final = 0.5  # of a step from which a resource is said to bind


@dataclass
class EstimateSettings:
    """Settings of the estimate, as key=value on the command line.

    Attributes:
      model: name (llama-3.1-8b, meta-llama/Llama-3.1-8B-Instruct) or folder with a config.json.
      chip: h100, h200, a100, b200, gh200, or a file of conf/hardware.
      tp: chips that compute the model together.
      ep: whether each chip has whole experts of a mixture.
      engine: engine of conf/engines (vllm, vllm-0.12, sglang, trtllm).
      precision: bf16, fp8, fp8_block, nvfp4, mxfp4, int8, int4; or {weights: fp8, cache: bf16};
        null: the checkpoint's.
      isl: tokens of a prompt.
      osl: tokens of an answer.
      clients: clients of a closed loop; 0: none.
      rate: requests a second of an open loop; 0: none. Without both, 1 client.
    """

    model: str = "llama-3.1-8b"
    chip: str = "h100"
    tp: Count = 1
    ep: bool = False
    engine: str = "vllm"
    precision: Any = None
    isl: Annotated[int, In("[1, 1_000_000]")] = 1024
    osl: Annotated[int, In("[2, 100_000]")] = 256
    clients: Annotated[int, In("[0, 4096]")] = 0
    rate: FromZero = 0.0


def main(arguments: Sequence[str]) -> int:
    """Estimate; return the exit status, 2 for invalid settings."""
    return run_settings(EstimateSettings, arguments, _run)


def _run(settings: EstimateSettings) -> None:
    for line in estimate_lines(settings):
        print(line)


def estimate_lines(settings: EstimateSettings) -> list[str]:
    """Return an answer's lines."""
    if settings.clients and settings.rate:
        raise SettingError("rate", settings.rate, "0 with clients")
    if settings.ep and settings.tp == 1:
        raise SettingError("ep", True, "false with tp=1")
    chip, spec = chip_named(settings.chip), model_named(settings.model)
    if settings.precision is not None:
        spec = at_precision(spec, settings.precision)
    try:
        rank_of(spec, settings.tp, experts_apart=settings.ep)
    except SettingError as error:
        raise SettingError("tp", error.value, error.allowed) from error
    engine = load_engine(settings.engine)
    group = Group(platform=chip, tp=settings.tp, apart=settings.ep)
    prepared = prepared_group(group, spec, engine)
    room = int(prepared.fleet.kv_capacity[0, 0])  # tokens of KV cache
    if settings.isl + settings.osl > (most := min(spec.max_position, room)):
        why = "The KV cache has no more." if room == most else ""
        raise SettingError("isl", settings.isl, f"at most {most} tokens with osl", why)
    load = Load(
        isl=settings.isl, osl=settings.osl, rate_rps=settings.rate,
        clients=settings.clients or (0 if settings.rate else 1),
    )  # fmt: skip
    figures, records = served(group, spec, engine, load)
    figures, overload = _lasting(figures, records, load)
    precision = precision_of(spec)
    near = nearest(
        read_errors(), chip=chip, precision=precision, tp=settings.tp, load=load,
        kind="mixture" if spec.experts else "dense",
    )  # fmt: skip
    platform, table = prepared.setup.platform, prepared.tables[0][0]
    batch = _batch(records, load)
    bill = _bill(platform, spec, table, figures, batch, load)
    lines = [
        f"{spec.name} {precision} ({weight_bytes(spec) / 1e9:.0f} GB), {settings.tp} x {chip}, "
        f"{engine.label}; " + (
            f"{load.clients} clients" if load.clients else f"{load.rate_rps:g} requests/s"
        ) + f", {load.isl} + {load.osl} tokens",
        _line("TTFT", f"{1e3 * figures.ttft_s:.0f} ms", near.says("ttft")),
        _line("TPOT", f"{1e3 * figures.tpot_s:.2f} ms", near.says("tpot")),
        _line("output", f"{figures.tokens_s:.0f} tokens/s", near.says("tokens_s")),
        _line("a step", f"{batch:.0f} requests", f"binds: {_binds(platform, table, batch, load)}"),
        *bill,
        *overload,
    ]  # fmt: skip
    lines += [f"  {line}" for line in borrowed(prepared.setup)]
    if near.runs:
        lines.append(f"near: {near.of}, within a factor of {FACTOR:g} in lengths, clients and TP")
    return lines


# The records of a rate end with a batch that empties.
def _lasting(figures: Figures, records: Any, load: Load) -> tuple[Figures, list[str]]:
    if load.clients:
        return figures, []
    arrival_s, mean = records.arrival_s, float(records.output_tokens.mean())
    span_s = float(arrival_s.min()), float(arrival_s.max())
    if growth_of(arrival_s, records.first_token_s, np.ones(len(records), bool), span_s) is None:
        return replace(figures, tokens_s=load.rate_rps * mean), []
    rps = f"about {figures.tokens_s / mean:.3g} of {load.rate_rps:g} requests/s are served"
    return figures, [f"  overload: {rps}; the TTFT, here of {len(records):,} requests, grows"]


def _line(name: str, value: str, beside: str) -> str:
    return f"  {name:<8}{value:>16}   {beside}"


def _batch(records: Any, load: Load) -> float:
    decoding_s = float((records.finished_s - records.first_token_s).sum())
    seconds = float(records.finished_s.max() - records.arrival_s.min())
    most = load.clients or math.inf
    return max(1.0, min(most, decoding_s / seconds))


def _step(table: Any, batch: float, load: Load) -> Any:
    rows = max(1, min(round(batch), table.max_rows))
    keys = rows * (load.isl + load.osl / 2)
    return step_time(table, decode_seqs=rows, decode_kv_tokens=keys, head_rows=rows)


def _binds(platform: Platform, table: Any, batch: float, load: Load) -> str:
    step = _step(table, batch, load)
    memory_s = step.hbm_bytes / (platform.gpu.hbm_gbps * 1e9)
    share = memory_s / step.seconds
    if share >= FULL_SHARE:
        return f"HBM ({100 * share:.0f} % of its rate)"
    return f"latency of kernels, host and collectives (HBM at {100 * share:.0f} % of its rate)"


def _bill(
    platform: Platform, spec: ModelSpec, table: Any, figures: Figures, batch: float, load: Load
) -> list[str]:
    gpu, lines = platform.gpu, []
    if gpu.idle_w is not None and gpu.pj_per_byte is not None and gpu.pj_per_flop is not None:
        moved = _step(table, batch, load).hbm_bytes / max(1.0, round(batch)) * figures.tokens_s
        tokens = figures.tokens_s * (1.0 + load.isl / load.osl)
        flops = float(flops_per_token(spec, 0)) * tokens
        more_w = 1e-12 * (gpu.pj_per_byte * moved + gpu.pj_per_flop * flops)
        if gpu.power_w is not None:
            more_w = min(more_w, gpu.power_w - gpu.idle_w)
        joules = (gpu.idle_w + more_w) / figures.tokens_s * 1e6
        lines.append(_line("energy", f"{joules / 1e6:.2f} MJ", "a million output tokens"))
    if gpu.usd_per_hour is not None:
        usd = gpu.usd_per_hour / 3600 / figures.tokens_s * 1e6
        lines.append(_line("price", f"{usd:.2f} USD", "a million output tokens"))
    return lines
