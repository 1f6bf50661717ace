"""Verdicts on a GPU's rows."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from experiments.lab.gpu.cases import DECODE_ROWS, MIXES, SMOKE, TALL_ROWS, Mix, Row
from experiments.lab.gpu.rows import Rows
from pallas_kernels.gemm import Gemm, choose, machine_for, plans, predict

SHARE: Final = 0.80
"""Least share of a read rate, and of the largest limit, that passes."""
CHOICE: Final = 1.03
"""Largest time of `hybrid_gemm(x, w)` over that of the faster of its two ways."""
EITHER: Final = ("kernel", "chosen", "ring")
"""Kinds of cases in which W crosses the link by SMs or by copy engine."""
NEAR: Final = 0.10
"""Largest relative distance of a measured gain of mixing from the predicted one that passes."""
SEEN: Final = 1.02
"""Least gain of mixing that counts as faster."""
STEPS: Final = (
    "probe",
    "smoke",
    "decode",
    "mix",
    "tall",
    "attention",
    "woven",
    "step",
    "correctness",
)
NAME: Final = "rows.jsonl"
"""File of a device's rows in its folder of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim, its status (pass, fail, unmeasured) and values."""

    aim: str
    status: str
    measured: str


def read(folder: Path) -> list[Row]:
    """Return the rows in a device's folder of results."""
    return Rows(folder / NAME).all


def findings(rows: Iterable[Row]) -> list[Finding]:
    """Judge every claim by these rows, without dry runs."""
    real = [row for row in rows if not row.get("dry_run")]
    return [judge(real) for judge in _JUDGES]


def _judged(aim: str, passes: bool, measured: str) -> Finding:
    return Finding(aim=aim, status="pass" if passes else "fail", measured=measured)


def _unmeasured(aim: str, why: str) -> Finding:
    return Finding(aim=aim, status="unmeasured", measured=why)


def _of(rows: Sequence[Row], stage: str, **columns: Any) -> list[Row]:
    return [
        row for row in rows
        if row["stage"] == stage and row["status"] == "ok"
        and all(row.get(name) == value for name, value in columns.items())
    ]  # fmt: skip


def sm_rate(rows: Sequence[Row]) -> float | None:
    """Return SMs' best rate of pinned memory in GB/s, or None."""
    rates = [
        row["gbps"] for row in _of(rows, "probe", pages="runtime") if row["of"] != "copy_engine"
    ]
    return max(rates, default=None)


def copy_rate(rows: Sequence[Row]) -> float | None:
    """Return the copy engine's rate in GB/s."""
    probes = _of(rows, "probe", of="copy_engine", pages="runtime")
    probes = probes or _of(rows, "decode", what="bound", of="copy_engine")
    return max((row["gbps"] for row in probes), default=None)


def bound(rows: Sequence[Row], unit: str, column: str) -> float | None:
    """Return the measured rate of "hbm" or "tensor_cores", None without."""
    matches = _of(rows, "decode", what="bound", of=unit)
    return float(matches[0][column]) if matches else None


def decode_rates(rows: Sequence[Row], whats: Sequence[str] = ("kernel",)) -> dict[int, Row]:
    """Return the fastest whole-GPU row by rows up to 64."""
    best: dict[int, Row] = {}
    for row in _of(rows, "decode"):
        if row["what"] in whats and "sms" not in row and "promotion" not in row:
            m = row["m"]
            if m not in best or row["time_s"] < best[m]["time_s"]:
                best[m] = row
    return best


def _decode(
    unit: str, rate: Callable[[Sequence[Row]], float | None]
) -> Callable[[Sequence[Row]], Finding]:
    aim = f"decode: the kernel reads W at {SHARE:.0%} of {unit}"

    def judge(rows: Sequence[Row]) -> Finding:
        limit, best = rate(rows), decode_rates(rows)
        if limit is None or not best:
            return _unmeasured(aim, f"no rate of {unit}" if best else "no rows")
        shares = {m: row["weight_bytes"] / row["time_s"] / 1e9 / limit for m, row in best.items()}
        text = ", ".join(f"M {m}: {shares[m]:.2f}" for m in sorted(shares))
        missing = [m for m in DECODE_ROWS if m not in shares]
        if missing:
            return _unmeasured(aim, f"{text}; no row with M {', '.join(map(str, missing))}")
        median = statistics.median(shares.values())
        worst = min(shares.values())
        return _judged(aim, worst >= SHARE, f"{median:.2f} of {limit:.1f} GB/s ({text})")

    return judge


def _choice(rows: Sequence[Row]) -> Finding:
    aim = f"choice: hybrid_gemm(x, w) takes at most {CHOICE} times the faster of kernel and ring"
    ratios: dict[int, float] = {}
    for m in (16, 64, *TALL_ROWS):
        stage = "decode" if m <= max(DECODE_ROWS) else "tall"
        chosen = _of(rows, stage, what="chosen", m=m)
        ways = _of(rows, stage, what="ring", m=m) + _of(rows, stage, what="serial", m=m)
        kernels = _of(rows, stage, what="best", m=m) + [
            row
            for row in _of(rows, stage, what="kernel", m=m)
            if "sms" not in row and "promotion" not in row and row["layout"] == "nk"
        ]
        if chosen and ways and kernels:
            fastest = min(row["time_s"] for row in (*ways, *kernels))
            ratios[m] = chosen[0]["time_s"] / fastest
    if not ratios:
        return _unmeasured(aim, "no rows")
    text = ", ".join(f"M {m}: {ratio:.2f}" for m, ratio in ratios.items())
    return _judged(aim, max(ratios.values()) <= CHOICE, text)


def predicted_s(
    mix: Mix, *, link_gbps: float, hbm_gbps: float, bf16_tflops: float
) -> tuple[float, float, float]:
    """Return predicted seconds of a cell of `MIXES` at alpha 0, its own and 1."""
    k, n, m, cluster, sms, alpha = mix
    machine = replace(
        machine_for(measured=False),
        link_gbps=link_gbps, hbm_gbps=hbm_gbps, bf16_tflops=bf16_tflops,
    )  # fmt: skip
    gemm = Gemm(m=m, k=k, n=n, w_layout="nk")
    config = choose(gemm, machine, cluster=cluster)
    asym, mixed, sym = predict(
        gemm, config, plans(gemm, config, (0.0, alpha, 1.0), sms), machine
    ).time_s
    return float(asym), float(mixed), float(sym)


def _mixes(rows: Sequence[Row]) -> Finding:
    aim = f"mixing: gains over the better pure dataflow what the model predicts, to {NEAR:.0%}"
    link, hbm = sm_rate(rows), bound(rows, "hbm", "gbps")
    cores = bound(rows, "tensor_cores", "tflops")
    if link is None or hbm is None or cores is None:
        return _unmeasured(aim, "no rates of link, device memory and tensor cores")
    texts, holds, faster = [], [], 0
    for mix in MIXES:
        k, n, m, cluster, sms, alpha = mix
        size = {"k": k, "n": n, "m": m, "cluster": cluster, "sms": sms}
        time_of = {row["alpha"]: row["time_s"] for row in _of(rows, "mix", **size)}
        if not {0.0, alpha, 1.0} <= set(time_of):
            return _unmeasured(aim, f"no rows of K {k}, N {n}, M {m}")
        asym, mixed, sym = predicted_s(mix, link_gbps=link, hbm_gbps=hbm, bf16_tflops=cores)
        expected, gain = min(asym, sym) / mixed, min(time_of[0.0], time_of[1.0]) / time_of[alpha]
        texts.append(f"{gain:.2f} (predicted {expected:.2f})")
        holds.append(abs(gain - expected) <= NEAR * expected)
        faster += gain > SEEN
    text = f"{', '.join(texts)}; faster than both in {faster} of {len(MIXES)} cells"
    return _judged(aim, all(holds), text)


def _tall(rows: Sequence[Row]) -> Finding:
    aim = f"M from {min(TALL_ROWS)}: hybrid_gemm(x, w) at {SHARE:.0%} of the largest limit"
    link, hbm = copy_rate(rows), bound(rows, "hbm", "gbps")
    cores = bound(rows, "tensor_cores", "tflops")
    if link is None or hbm is None or cores is None:
        return _unmeasured(aim, "no rates of link, device memory and tensor cores")
    shares: dict[int, float] = {}
    for row in _of(rows, "tall", what="chosen"):
        limits = (
            row["weight_bytes"] / (link * 1e9),
            row["activation_bytes"] / (hbm * 1e9),
            row["flops"] / (cores * 1e12),
        )
        shares[row["m"]] = max(limits) / row["time_s"]
    if not shares:
        return _unmeasured(aim, "no rows")
    text = ", ".join(f"M {m}: {share:.2f}" for m, share in sorted(shares.items()))
    return _judged(aim, min(shares.values()) >= SHARE, text)


def _correct(rows: Sequence[Row]) -> Finding:
    aim = "correct: every smoke test and every test of tests/gpu that ran"
    tests = [row for row in rows if row["stage"] in ("smoke", "correctness")]
    counts = Counter(row.get("lost") or row["status"] for row in tests)
    ran = len(tests) - counts["skipped"]
    if not ran:
        return _unmeasured(aim, "no rows")
    smoke = sum(row["stage"] == "smoke" for row in tests)
    text = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    return _judged(aim, counts["ok"] == ran and smoke == len(SMOKE), text)


_JUDGES: Final = (
    _decode("what SMs can read", sm_rate),
    _decode("the copy engine", copy_rate),
    _choice,
    _mixes,
    _tall,
    _correct,
)


def verdict(rows: Sequence[Row]) -> str:
    """Return the three claims in one line."""
    by_sms, by_copies, choice, mix, *_ = findings(rows)

    def short(one: Finding) -> str:
        value = one.measured.split(" ")[0]
        return "pass" if one.status == "pass" else value if one.status == "fail" else one.status

    return (
        f"decode: kernel {by_sms.status}, copy engine {short(by_copies)}; choice {choice.status}; "
        f"mixing {mix.status}"
    )


def summary(rows: Sequence[Row], runs: Sequence[Mapping[str, Any]], dead: str = "") -> str:
    """Return the page of a device."""
    name = runs[-1].get("device", "no device") if runs else "no device"
    lines = [f"# {name}", ""]
    if any(row.get("dry_run") for row in rows):
        lines += ["A dry run on a CPU at tiny sizes: it checks programs and measures no speed.", ""]
    lines += [f"- {key}: {value}" for key, value in (runs[-1].items() if runs else ())]
    lines += ["", verdict(rows), ""] + ([f"Ended early: {dead}", ""] if dead else [])
    lines += ["| claim | verdict | measured |", "| --- | --- | --- |"]
    lines += [f"| {one.aim} | {one.status} | {one.measured} |" for one in findings(rows)]
    lines += [
        "",
        "| stage | " + " | ".join(_OUTCOMES) + " |",
        "| --- " * (len(_OUTCOMES) + 1) + "|",
    ]
    for stage in STEPS:
        cases = {
            row["case"]: row.get("lost") or row["status"] for row in rows if row["stage"] == stage
        }
        counts = Counter(cases.values())
        lines.append(
            f"| {stage} | " + " | ".join(str(counts[outcome]) for outcome in _OUTCOMES) + " |"
        )
    lines += ["", *_rates(rows), "", *_times(rows)]
    lost = [row for row in rows if row["status"] != "ok"]
    lines += [
        "",
        *(
            f"- {row.get('lost') or row['status']}: {row['case']}: {row.get('reason', '')}"
            for row in lost
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


_OUTCOMES: Final = ("ok", "failed", "hung", "crashed", "skipped")


def _rates(rows: Sequence[Row]) -> list[str]:
    probes = _of(rows, "probe")
    if not probes:
        return ["No rates of the link: the probe has not run."]
    head = ["| read by | layout | promotion | SMs | pages | GB/s |", "| --- " * 6 + "|"]
    return head + [
        f"| {r['of']} | {r.get('layout', '')} | {r.get('promotion', '')} | {r.get('sms', '')} | "
        f"{r['pages']} | {r['gbps']:.1f} |"
        for r in probes
    ]


def _times(rows: Sequence[Row]) -> list[str]:
    timed = [row for row in rows if row["status"] == "ok" and "time_s" in row]
    if not timed:
        return []
    head = ["| case | ms | spread | predicted ms | GB/s of W |", "| --- " * 5 + "|"]
    for row in timed:
        rate = row["weight_bytes"] / row["time_s"] / 1e9 if row.get("weight_bytes") else None
        spec = row["case"].partition(", ")[2].rstrip("]").replace('"', "").strip("{}")
        head.append(
            f"| {row['stage']}: {spec} | {row['time_s'] * 1e3:.3f} | {row['spread']:.2f} | "
            f"{format(row['predicted_s'] * 1e3, '.3f') if 'predicted_s' in row else ''} | "
            f"{'' if rate is None else format(rate, '.1f')} |"
        )
    return head
