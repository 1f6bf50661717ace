"""Public measurements from outside the reproduced papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from omegaconf import OmegaConf

from c2c.config import RunSetup, build, load, simulate
from c2c.models import load_spec, weight_bytes
from c2c.serving import prepare
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = [
    "active_models",
    "compute",
    "deepseek_token_s",
    "load_s",
    "mixtral_token_s",
    "plain_s",
    "store_s",
]

# Seconds to load a checkpoint on a server with eight H100s and NVMe drives of 29.4 GB/s in total
# (ServerlessLLM's documentation of its checkpoint store, snapshot of March 2026).
SMALL, LARGE = "llama-3-8b", "qwen3-32b"
STORE_S: Final = {SMALL: 0.678, LARGE: 3.216}
FROM_MEMORY_S = 1.253  # ServerlessLLM, LARGE
DRIVES_GBPS = 29.4
READERS = 4  # threads of the store; each reads one part of the checkpoint
# safetensors, and the share of 30 loads of the smaller checkpoint that took 2.7 to 2.9 s instead of
# 4.3 to 6.3 s in the raw measurements: these hit the page cache, mostly as the last written copies.
PLAIN_S: Final = {SMALL: 4.437, LARGE: 20.592}
PLAIN_FROM_MEMORY_S = 12.466  # LARGE
PLAIN_FOUND = 5 / 30
# MoE-Infinity's README (March 2026): seconds a token on an RTX A5000 of 24 GB.
MIXTRAL_S, DEEPSEEK_S = 0.735, 0.155
# Active models of 100 at 0.037 requests/s each that take 16.79 s (secondary sources on Aegaeon).
ACTIVE: Final = (100, 0.037, 16.79, 46.55)
# The host's work that fits DeepSeek: for each expert that runs (conf/system/moe_infinity.yaml),
# or for each that is fetched. Mixtral does not tell them apart, as its copies hide both.
HOST_S: Final = 0.000935
FETCH_S: Final = 0.0034
_CHUNK: Final = ("system.chunk.tokens=128", "system.profile.chunks=[128]")


@figure("anchors", title="Public measurements beside the simulator's",
        draw=".drawing.baselines.draw_anchors", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return each measurement, the simulator's value, and their ratio."""
    rows: list[dict[str, Any]] = []

    def row(name: str, kind: str, published: float, ours: float, unit: str) -> None:
        rows.append(
            {"what": name, "kind": kind, "published": published, "ours": ours, "unit": unit,
             "ratio": ours / published}
        )  # fmt: skip

    for model, published_s in STORE_S.items():
        row(f"ServerlessLLM, NVMe: {model}", "predicted", published_s, store_s(model), "s")
        row(f"ServerlessLLM, NVMe, pipelined copy: {model}", "bound", published_s,
            load_s(model, DRIVES_GBPS), "s")  # fmt: skip
    row(f"ServerlessLLM, host memory: {LARGE}", "predicted", FROM_MEMORY_S, load_s(LARGE), "s")
    row(f"safetensors, NVMe: {LARGE}", "fitted", PLAIN_S[LARGE], plain_s(LARGE, 0.0), "s")
    row(f"safetensors, NVMe: {SMALL}", "predicted", PLAIN_S[SMALL], plain_s(SMALL, PLAIN_FOUND),
        "s")  # fmt: skip
    row("MoE-Infinity, Mixtral on A5000, a token", "predicted", MIXTRAL_S, mixtral_token_s(), "s")
    row("MoE-Infinity, DeepSeek-V2-Lite on A5000, a token", "fitted (host's work an expert)",
        DEEPSEEK_S, deepseek_token_s(HOST_S), "s")  # fmt: skip
    row("DeepSeek-V2-Lite, host's work for fetches", "fitted (host's work a fetch)",
        DEEPSEEK_S, deepseek_token_s(FETCH_S, "fetch"), "s")  # fmt: skip
    row("DeepSeek-V2-Lite without host's work", "bound", DEEPSEEK_S, deepseek_token_s(0.0), "s")
    models, rate, seconds, published = ACTIVE
    row("Aegaeon: active models of 100", "predicted", published,
        active_models(models, rate, seconds, context.seeds[0]), "models")  # fmt: skip
    return Computed(
        tables={"anchors": pa.Table.from_pylist(rows)},
        results=(),
        caption=(

            "The simulator's value over published measurements that are not of the papers compared "
            "here; names say which are fitted. The A5000 has PCIe, link variant "
            f"'{context.link_variant}'."

        ),
        assumptions=(

            "Fitted values are fitted on the larger model.",
            "A bound is the value without one of the costs.",

        ),
        report=(
            ("measurement", "kind of ours", "published", "ours", "ratio"),
            *(
                (r["what"], r["kind"], f"{r['published']:.3g} {r['unit']}", f"{r['ours']:.3g}",
                 f"{r['ratio']:.2f}")
                for r in rows
            ),
        ),
    )  # fmt: skip


def load_s(model: str, disk_gbps: float | None = None) -> float:
    """Return the seconds of a start with pipelined disk and link."""
    start = "over: [link]" if disk_gbps is None else "over: [disk, link]"
    return _started_s(model, f"[{{name: load, moves: weights, {start}}}]", disk_gbps or 1.0)


def store_s(model: str) -> float:
    """Return a start's seconds by ServerlessLLM's checkpoint store, from disk.

    Source: ServerlessLLM's store (`Model::ToHost`, `Model::DispatchToGpu`), March 2026.
    """
    first = 1.0 / READERS
    return _started_s(
        model,
        "[{name: read, moves: weights, over: [disk], when: cold},"
        f" {{name: first, moves: weights, share: {first}, when: cold}},"
        f" {{name: rest, moves: weights, share: {1.0 - first}, after: [read, first], when: cold}},"
        " {name: copy, moves: weights, when: held}]",
        DRIVES_GBPS,
    )


def plain_s(model: str, memory_share: float) -> float:
    """Return safetensors' mean seconds of a load, fitted on `LARGE`."""
    size = float(weight_bytes(load_spec(LARGE))) / 1e9
    disk_s, memory_s = (
        load_s(model, size / seconds) for seconds in (PLAIN_S[LARGE], PLAIN_FROM_MEMORY_S)
    )
    return (1.0 - memory_share) * disk_s + memory_share * memory_s


def _started_s(model: str, start: str, disk_gbps: float) -> float:
    # Seconds from the arrival of a request to its first step.
    settings = load(
        [
            "hardware=h100_sxm", "system=serverlessllm", "mig=1x80gb", "weights_start=disk",
            "system.check_slo=false", "workload=deterministic", "workload.requests=1",
            f"system.start={start}", f"hardware.host.disk_gbps={disk_gbps}", *_CHUNK,
        ]
    )  # fmt: skip
    OmegaConf.update(settings, "catalog", {"models": [{"spec": model}]}, merge=False)
    (request,) = simulate(build(settings), compiled=False).requests.to_pylist()
    return float(request["started_s"] - request["arrival_s"])


def _on_a5000(*overrides: str) -> RunSetup:
    settings = load(
        [
            "hardware=rtx_a5000", "system=moe_infinity_code", "system.check_slo=false",
            "system.expert_cache.share=1", "workload=deterministic", "workload.requests=2",
            "workload.rate_rps=0.001", "workload.prompt_tokens=8", "workload.output_tokens=40",
            *_CHUNK, *overrides,
        ]
    )  # fmt: skip
    OmegaConf.update(settings, "catalog", {"models": [{"spec": "mixtral-8x7b"}]}, merge=False)
    return build(settings)


def _token_s(setup: RunSetup) -> float:
    last = simulate(setup, compiled=False).requests.to_pylist()[-1]
    return float((last["finished_s"] - last["first_token_s"]) / (last["output_tokens"] - 1))


def mixtral_token_s(*overrides: str) -> float:
    """Return Mixtral's seconds a token on an A5000, experts uniform."""
    return _token_s(_on_a5000(*overrides))


def deepseek_token_s(host_s: float, works_for: str = "use") -> float:
    """Return DeepSeek-V2-Lite's seconds a token of experts on an A5000."""
    setup = _on_a5000(
        f"system.expert_cache.host_s={host_s}", f"system.expert_cache.host_per={works_for}",
        "system.expert_cache.share=0.99",
    )  # fmt: skip
    spec = replace(
        load_spec("mixtral-8x7b"), name="deepseek-v2-lite's experts", layers=26, hidden=2048,
        heads=16, kv_heads=16, intermediate=1408, moe_intermediate=1408, experts=64,
        experts_per_token=6, vocab=102400,
    )  # fmt: skip
    (one,) = setup.serving.deployments
    serving = replace(setup.serving, deployments=(replace(one, spec=spec),))
    return _token_s(replace(setup, prepared=prepare(serving)))


def active_models(models: int, rate_rps: float, seconds: float, seed: int) -> float:
    """Return the mean models with an open request."""
    generator = np.random.default_rng(seed)
    end_s = 20_000.0
    total = 0.0
    for _ in range(models):
        n = generator.poisson(rate_rps * end_s)
        starts = np.sort(generator.uniform(0.0, end_s, n))
        until = np.maximum.accumulate(starts + seconds)
        # each request adds the time that earlier ones do not cover
        before = np.concatenate([[0.0], until[:-1]])
        total += float(np.minimum(seconds, until - np.maximum(before, starts)).sum())
    return total / end_s
