"""Plan of one call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Row = dict[str, Any]
"""One measurement: columns by name."""

LIMIT_S: Final = 30.0
LONG_S: Final = 45.0
PAPER: Final = (4096, 16384)
"""K and N of C2CServe's Fig. 4."""
DECODE_ROWS: Final = (16, 64, 1)
TALL_ROWS: Final = (512, 2048, 10240)
LAYOUTS: Final = ("nk", "kn", "tiles")  # the transformer's first
FEW_SMS: Final = (32, 16)
Mix = tuple[int, int, int, int, int, float]
"""K, N, M, cluster, SMs and alpha of a cell."""
MIXES: Final[tuple[Mix, ...]] = (
    (8192, 8192, 8192, 8, 28, 0.375),
    (4096, 16384, 8192, 4, 8, 0.5625),
    (14336, 4096, 8192, 4, 56, 0.5625),
)
"""Cells in which the model predicts most of mixing: 1.54 times in the third at a GH200's 327 GB/s;
over PCIe nothing, there or in any other cell that was searched."""

SMOKE: Final = (
    "test_xla",
    "test_jax_own_kernel",
    "test_device_memory[1.0]",
    "test_host_memory[1.0]",
    "test_host_memory[0.0]",
    "test_both_dataflows",
)
TESTS: Final = "tests/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A measurement or test in a child process with time limit."""

    stage: str
    spec: Mapping[str, Any]
    limit_s: float = LIMIT_S
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Stage and spec as text, the same for equal cases.

        >>> Case(stage="a", spec={"m": 8, "k": 1}).key == Case(stage="a", spec={"k": 1, "m": 8}).key
        True
        """
        return json.dumps([self.stage, dict(self.spec)], sort_keys=True)

    @property
    def group(self) -> tuple[str, str]:
        """Stage and kind; of tests the function."""
        name = self.spec.get("what") or str(self.spec.get("test", "")).partition("[")[0]
        return self.stage, str(name)


class Unmeasurable(Exception):
    """An impossible case; the message says what is missing."""


def plan(*, tiny: bool = False, tests: Sequence[str] = ()) -> list[Case]:
    """Return the cases of a call in order."""
    smoke = [f"{TESTS}/test_smoke.py::{name}" for name in SMOKE]
    return [
        Case(stage="probe", spec={"what": "link"}, limit_s=LONG_S),
        *(Case(stage="smoke", spec={"test": name}) for name in smoke),
        *(Case(stage="decode", spec=spec) for spec in _decode(tiny)),
        *_promotion(tiny),
        *(Case(stage="mix", spec=spec) for spec in _mixes(tiny)),
        *(Case(stage="tall", spec=spec) for spec in _tall(tiny)),
        *(Case(stage="attention", spec=spec) for spec in _attention(tiny)),
        *(Case(stage="woven", spec=spec) for spec in _woven(tiny)),
        *(Case(stage="step", spec=spec, limit_s=LONG_S) for spec in _steps(tiny)),
        *(Case(stage="correctness", spec={"test": name}, limit_s=LONG_S) for name in tests),
    ]


def gemm(kind: str, m: int, tiny: bool, **more: Any) -> dict[str, Any]:
    """Return the spec of a product of the paper."""
    k, n = (256, 512) if tiny else PAPER
    size = {"what": kind, "k": k, "n": n, "m": min(m, 96) if tiny else m, "layout": "nk"}
    return size | more


def _decode(tiny: bool) -> Iterator[dict[str, Any]]:
    yield {"what": "bound", "of": "copy_engine"}
    yield {"what": "bound", "of": "hbm"}
    yield {"what": "bound", "of": "tensor_cores"}
    for m in DECODE_ROWS:
        for alpha in (1.0, 0.0):
            yield gemm("kernel", m, tiny, alpha=alpha)
        yield gemm("chosen", m, tiny)
    for variant in ("ring", "serial", "resident"):
        yield gemm(variant, 16, tiny)
    for layout in LAYOUTS[1:]:
        for alpha in (1.0, 0.0):
            yield gemm("kernel", 64, tiny, alpha=alpha, layout=layout)
    for sms in (4, 2) if tiny else FEW_SMS:
        for alpha in (1.0, 0.0):
            yield gemm("kernel", 64, tiny, alpha=alpha, sms=sms)
    for variant in ("ring", "serial"):
        yield gemm(variant, 64, tiny)
    for layout in LAYOUTS[1:]:
        yield gemm("kernel", 1, tiny, alpha=1.0, layout=layout)


def _promotion(tiny: bool) -> Iterator[Case]:
    for layout in LAYOUTS[:2]:
        spec = gemm("kernel", 64, tiny, alpha=1.0, layout=layout, promotion=3)
        yield Case(stage="decode", spec=spec, env={"L2_PROMOTION": "3"})


def _mixes(tiny: bool) -> Iterator[dict[str, Any]]:
    for k, n, m, cluster, sms, best in MIXES[:1] if tiny else MIXES:
        size = gemm("kernel", m, tiny, cluster=2 if tiny else cluster, sms=4 if tiny else sms)
        size |= {} if tiny else {"k": k, "n": n}
        for alpha in (0.0, best, 1.0):
            yield size | {"alpha": alpha}
    for alpha in (0.0, 0.5, 1.0):  # the paper's figure: no gain is predicted here
        yield gemm("kernel", 512, tiny, alpha=alpha, cluster=1)


def _tall(tiny: bool) -> Iterator[dict[str, Any]]:
    for m in TALL_ROWS[:1] if tiny else TALL_ROWS:
        for variant in ("chosen", "best", "ring", "resident"):
            yield gemm(variant, m, tiny)


def _attention(tiny: bool) -> Iterator[dict[str, Any]]:
    heads = (
        {"q_heads": 4, "kv_heads": 2, "head": 64}
        if tiny
        else {"q_heads": 32, "kv_heads": 8, "head": 128}
    )
    long = 128 if tiny else 4096
    yield heads | {"what": "decode", "batch": 2 if tiny else 16, "length": long}
    for variant in ("prefill", "prefill_xla") if tiny else ("prefill", "prefill_cudnn"):
        yield heads | {"what": variant, "batch": 1, "length": long}


def _woven(tiny: bool) -> Iterator[dict[str, Any]]:
    size = {"tokens": 70, "rows": 2} if tiny else {"tokens": 1024, "rows": 64}
    for variant in ("task", "empty_poll", "alone"):
        yield size | {"what": variant}


def _steps(tiny: bool) -> Iterator[dict[str, Any]]:
    for linear in ("hybrid", "staged"):
        yield {
            "what": "step",
            "linear": linear,
            "rows": 2 if tiny else 16,
            "context": 64 if tiny else 1024,
        }
