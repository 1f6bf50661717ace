"""Section `engine`: the runner of the live engine, without the processes around it.

Two different models share one KV pool and take turns. Checks: every text equals that of its model
alone, with and without a step ahead, and nothing is compiled after warm-up. Measures the cost of a
turn to the other model. Needs the runner alone, neither Hydra nor a web server.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from c2c.models import from_hf_config
from c2c.transformer import (
    KvPool,
    OnDevice,
    Runner,
    Sampling,
    Shapes,
    Step,
    block_elements,
    superblock_elements,
)
from c2c.transformer.executables import Executables
from c2c.transformer.linear import linear_by_name
from c2c.transformer.weights.checkpoint import DTYPES, random_params
from experiments.gpu.cases import Case, Context, Row, Scale
from experiments.gpu.files import scratch

ROWS, BUDGET, NEW = 4, 64, 24
PROMPTS = (5, 70, 130, 33, 64, 17)
_SIZES: Mapping[Scale, Mapping[str, int]] = {
    "full": {"hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 2816,
             "num_attention_heads": 16, "head_dim": 64, "vocab_size": 32000},
    "quick": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1408,
              "num_attention_heads": 8, "head_dim": 64, "vocab_size": 8000},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
             "num_attention_heads": 4, "head_dim": 16, "vocab_size": 96},
}  # fmt: skip
_UNLIKE = (("llama", 2), ("qwen3", 4))  # family, KV heads
_ALIKE = (("llama", 2), ("llama", 2))  # half as much to compile
_LINEARS: Mapping[Scale, tuple[tuple[str, str], ...]] = {
    "full": (("reference", "bfloat16"), ("hybrid", "bfloat16")),
    "quick": (("hybrid", "bfloat16"),),
    "tiny": (("reference", "float32"),),
}


def cases(scale: Scale) -> list[Case]:
    """List the checks and the timing, by linear strategy."""
    found = []
    for linear, dtype in _LINEARS[scale]:
        same = {"linear": linear, "dtype": dtype}
        found += [
            Case(spec={"what": "texts", "ahead": ahead, **same}, limit_s=120.0, most_s=400.0)
            for ahead in (0, 1)
        ]
        found.append(Case(spec={"what": "turns", **same}, limit_s=120.0, most_s=400.0))
    return found


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Check texts, or time turns.

    Raises:
      AssertionError: texts differ, or something was compiled after warm-up.
    """
    runners, executables = _runners(spec["linear"], spec["dtype"], context.scale)
    before = executables.compiled
    if spec["what"] == "turns":
        rows = _turns(runners, context)
    else:
        rows = _texts(runners, int(spec["ahead"]), context.seed)
    compiled = executables.compiled - before
    if compiled:
        raise AssertionError(f"{compiled} executables were compiled after warm-up")
    return rows


@functools.cache
def _runners(linear: str, dtype: str, scale: Scale) -> tuple[tuple[Runner, ...], Executables]:
    """Return a warm runner for each model, and the executables that they share."""
    strategy = linear_by_name(linear)
    executables = Executables(scratch("engine"))
    specs = [
        from_hf_config(
            {"model_type": family, "num_key_value_heads": heads, "rms_norm_eps": 1e-6,
             "max_position_embeddings": 512, "rope_theta": 1e4, **_SIZES[scale]},
            family,
        )
        for family, heads in (_ALIKE if scale == "tiny" else _UNLIKE)
    ]  # fmt: skip
    shapes = Shapes(rows=(ROWS,), budgets=(BUDGET,), width=4)
    superblock = superblock_elements(specs)
    blocks = len(specs) * ROWS * shapes.width * max(map(block_elements, specs))
    pool = KvPool(
        -(-2 * blocks // superblock), superblock, dtype=DTYPES[dtype], executables=executables
    )
    made = []
    for number, spec in enumerate(specs):
        params = random_params(
            spec, np.random.default_rng(number), dtype=dtype, placement=strategy.placement
        )
        executor = OnDevice(params, spec, strategy, pool, executables=executables)
        runner = Runner(executor, shapes)
        runner.warm()
        made.append(runner)
    return tuple(made), executables


@dataclass(slots=True)
class _Client:
    """Client of a runner: each step has a chunk of one prompt and all rows that can decode."""

    runner: Runner
    prompts: Sequence[Sequence[int]]
    at_once: int
    ahead: int
    got: dict[int, list[int]] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    left: dict[int, int] = field(default_factory=dict)  # prompt tokens not yet computed
    owed: dict[int, int] = field(default_factory=dict)  # tokens whose draw is not yet started
    under_way: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.waiting.extend(range(len(self.prompts)))
        self.got = {k: [] for k in self.waiting}

    @property
    def is_over(self) -> bool:
        return not (self.waiting or self.left or self.under_way)

    def step(self) -> None:
        while self.waiting and len(self.left) < self.at_once:
            k = self.waiting.popleft()
            self.runner.submit(k, self.prompts[k], new=NEW, sampling=Sampling())
            self.left[k], self.owed[k] = len(self.prompts[k]), NEW
        filling = next((k for k, left in self.left.items() if left), None)
        fill = None if filling is None else (filling, min(BUDGET, self.left[filling]))
        decode = tuple(k for k, left in self.left.items() if not left and self.owed[k])
        if fill or decode:
            self.under_way.append(self.runner.start(Step(fill=fill, decode=decode)))
        for k in decode:
            self.owed[k] -= 1
        if fill is not None:
            self.left[fill[0]] -= fill[1]
            self.owed[fill[0]] -= not self.left[fill[0]]
        while len(self.under_way) > (self.ahead if fill or decode else 0):
            for k, token, ended in self.runner.finish(self.under_way.popleft()).tokens:
                self.got[k].append(token)
                if ended is not None:
                    del self.left[k], self.owed[k]


def _texts(runners: Sequence[Runner], ahead: int, seed: int) -> list[Row]:
    """Draw all texts in turns and each alone, in the same shapes; raise if they differ."""
    rng = np.random.default_rng(seed)
    asked = [
        [rng.integers(0, runner.spec.vocab, n).tolist() for n in PROMPTS] for runner in runners
    ]

    def drawn(at_once: int, ahead: int) -> list[dict[int, list[int]]]:
        clients = [
            _Client(runner, prompts, at_once, ahead)
            for runner, prompts in zip(runners, asked, strict=True)
        ]
        while not all(client.is_over for client in clients):
            for client in clients:
                if not client.is_over:
                    client.step()
        return [client.got for client in clients]

    alone, together = drawn(1, 0), drawn(ROWS, ahead)
    rows = []
    for runner, ours, theirs in zip(runners, together, alone, strict=True):
        equal = sum(ours[k] == theirs[k] for k in ours)
        rows.append({"model": runner.spec.name, "texts": len(ours), "equal": equal})
    if any(row["equal"] != row["texts"] for row in rows):
        raise AssertionError(f"texts differ from those of each model alone: {rows}")
    return rows


def _turns(runners: Sequence[Runner], context: Context) -> list[Row]:
    """Time decode steps of each model in a row, and of both in turns."""
    steps = 20 if context.scale == "tiny" else 60
    for runner in runners:
        runner.submit(0, [1, 2, 3], new=4 * steps, sampling=Sampling())
        runner.finish(runner.start(Step(fill=(0, 3))))

    def seconds(order: Sequence[Runner]) -> list[float]:
        found = []
        for runner in order:
            begun_s = time.perf_counter()
            runner.finish(runner.start(Step(decode=(0,))))
            found.append(time.perf_counter() - begun_s)
        return found

    one, other = runners
    in_a_row = statistics.median(seconds([one] * steps) + seconds([other] * steps))
    by_turns = statistics.median(seconds([one, other] * steps))
    for runner in runners:
        runner.cancel(0)
    return [{"step_ms": 1e3 * in_a_row, "turn_ms": 1e3 * (by_turns - in_a_row)}]
