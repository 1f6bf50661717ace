"""Scenarios of the referee."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

__all__ = ["BLOCK_TOKENS", "SCENARIOS", "Ran", "Requests", "Scenario", "draw", "write_trace"]

BLOCK_TOKENS: Final = 64  # tokens of a block, which has one hash in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload and a setup for all simulators.

    Attributes:
      chip: of `conf/hardware`; the model's weights are in HBM.
      tokens: most tokens of a step, decodes included.
      sequences: most sequences of a step.
      rate_rps: of Poisson arrivals.
      burst: concurrent arrivals.
      prompt: least and most tokens, drawn uniformly.
      output: as `prompt`.
      shared_tokens: prefix of prompts of one of ten groups.
      step_s: constant time of a step; None: see `steps`.
      steps: each simulator's, or ours in each.
      settings: further ones of `c2c simulate`.
    """

    name: str
    asks: str
    chip: str = "h100_sxm"
    model: str = "llama-3-8b"
    gpus: int = 1
    tokens: int = 2048
    sequences: int = 256
    rate_rps: float = 10.0
    burst: int = 1
    prompt: tuple[int, int] = (1024, 1024)
    output: tuple[int, int] = (128, 128)
    shared_tokens: int = 0
    step_s: float | None = None
    steps: Literal["own", "ours"] = "own"
    settings: tuple[str, ...] = ()
    requests: int = 2000


SCENARIOS: Final = (
    Scenario(name="light", asks="an H100 at a third of its capacity"),
    Scenario(name="busy", asks="the same near saturation", rate_rps=25.0),
    Scenario(name="overload", asks="the same above saturation", rate_rps=40.0),
    Scenario(name="chat", asks="short prompts, long answers", rate_rps=20.0,
             prompt=(50, 400), output=(100, 700)),
    Scenario(name="documents", asks="long prompts in chunks", rate_rps=2.0,
             prompt=(2000, 7000), output=(50, 150)),
    Scenario(name="bursts", asks="32 requests at once", rate_rps=15.0, burst=32),
    Scenario(name="small_budget", asks="512 tokens a step", rate_rps=15.0, tokens=512),
    Scenario(name="few_sequences", asks="16 sequences a step", rate_rps=10.0, sequences=16),
    Scenario(name="a100", asks="an A100 SXM", chip="a100_sxm", rate_rps=6.0),
    Scenario(name="l40s", asks="an L40S", chip="l40s", rate_rps=3.0),
    Scenario(name="b200", asks="a B200", chip="b200", rate_rps=40.0),
    Scenario(name="gb200", asks="a GB200", chip="gb200", rate_rps=40.0),
    Scenario(name="rtx_pro_6000", asks="an RTX PRO 6000", chip="rtx_pro_6000", rate_rps=6.0),
    Scenario(name="mixture", asks="Qwen3 30B-A3B", model="qwen3-30b-a3b", rate_rps=10.0),
    Scenario(name="prefixes", asks="ten groups of prompts that begin with the same 768 tokens",
             rate_rps=25.0, shared_tokens=768),
    Scenario(name="tensor", asks="a 70B over four H100", model="llama-3-70b", gpus=4, rate_rps=8.0),
    Scenario(name="equal_light", asks="20 ms a step, whatever is in it", step_s=0.02, tokens=512,
             rate_rps=10.0, prompt=(50, 1500), output=(10, 200)),
    Scenario(name="equal_overload", asks="the same above saturation", step_s=0.02, tokens=512,
             rate_rps=30.0, prompt=(50, 1500), output=(10, 200)),
    Scenario(name="equal_a100", asks="this project's step times on an A100 in each",
             chip="a100_sxm", steps="ours", tokens=512, sequences=128, rate_rps=6.0,
             prompt=(50, 1500), output=(10, 200)),
    Scenario(name="switching", asks="sixteen models stream from host memory on seven MIG slices",
             chip="gh200", rate_rps=2.0, settings=("catalog=dense16", "mig=7x12gb",
             "system=c2cserve_plus")),
    Scenario(name="failures", asks="two of four chips fail and return", chip="gh200", rate_rps=20.0,
             settings=("superchips=4", "system=c2cserve_plus", "mig=7x12gb",
                       "failures.events=[{at_s: 9, chip: 0, repair_s: 20}, "
                       "{at_s: 15, chip: 1, repair_s: 9}]")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a scenario, by arrival; arrays of n.

    Attributes:
      arrival_s: f64.
      prompt: i64, tokens.
      output: i64, tokens.
      group: of prompts with the same prefix.
    """

    arrival_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    group: np.ndarray


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a simulator on a scenario.

    Attributes:
      ttft_s: f64[n], from arrival; NaN: not served.
      end_s: f64[n], likewise, to the last token.
      cpu_s: of the command, like wall_s.
    """

    ttft_s: np.ndarray
    end_s: np.ndarray
    cpu_s: float
    wall_s: float
    version: str


def draw(scenario: Scenario, seed: int) -> Requests:
    """Draw a scenario's requests."""
    stream, n = np.random.default_rng((seed, len(scenario.name))), scenario.requests
    bursts = -(-n // scenario.burst)
    gaps = stream.exponential(scenario.burst / scenario.rate_rps, bursts)
    arrival_s = np.repeat(np.cumsum(gaps), scenario.burst)[:n]
    return Requests(
        np.round(arrival_s, 3),  # whole milliseconds, as in Mooncake's format
        stream.integers(scenario.prompt[0], scenario.prompt[1] + 1, n),
        stream.integers(scenario.output[0], scenario.output[1] + 1, n),
        stream.integers(0, 10, n),
    )


def write_trace(scenario: Scenario, requests: Requests, path: Path) -> None:
    """Write requests in the format of Mooncake's traces."""
    shared = scenario.shared_tokens // BLOCK_TOKENS
    fresh = 10 * shared
    with path.open("w", encoding="ascii") as file:
        columns = (requests.arrival_s, requests.prompt, requests.output, requests.group)
        for at_s, prompt, output, group in zip(*(c.tolist() for c in columns), strict=True):
            blocks = -(-prompt // BLOCK_TOKENS)
            tail_blocks = max(0, blocks - shared)
            hashes = [*range(group * shared, group * shared + blocks - tail_blocks)]
            hashes += range(fresh, fresh + tail_blocks)
            fresh += tail_blocks
            row = {
                "timestamp": round(1e3 * at_s),
                "input_length": prompt,
                "output_length": output,
                "hash_ids": hashes,
            }
            file.write(json.dumps(row) + "\n")
