"""Verdict on a load, and the bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from c2c.metrics.columns import codes_of, numbers_of
from c2c.metrics.growth import FEWEST, Growth, growth_of
from c2c.metrics.records import Records
from c2c.metrics.resources import DETAIL_COLUMNS, Room, models_of, shares_of

__all__ = ["BINDS", "Look", "judge", "looks_at"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FILLING = 0.2  # first share of the growth: batches fill, so fewer finish than arrive
FULL = 0.9
_COLUMNS = ("model", "arrival_s", "first_token_s", "finished_s", "output_tokens", "ttft_slo_s",
            "tpot_slo_s")  # fmt: skip
PARTS, STEADY = 20, 0.75
MOST = 1_000_000  # requests examined for the bottleneck
SEVERAL = 1.5  # mean engines at the same time on a slice
MOSTLY = 0.5

# Values of `binds`, and their text.
BINDS = {
    "idle_slices": "idle slices beside the queue: a busy model gets no more slices",
    "promises": "the link: slices are idle, but decodes were promised its bandwidth",
    "link": "the link",
    "kv": "KV cache capacity",
    "batch": "batch size (max_batch)",
    "hbm": "HBM bandwidth",
    "slices": "slices held by other models",
    "starts": "starts of models, while slices are free",
    "turns": "turns: engines that share a slice wait for each other",
    "compute": "compute of the slices",
    "failures": "failed requests",
}
LACKED_TIME = "deadline"  # a failure for this reason is like a late request: resources were short


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    arrival_s: Floats
    first_s: Floats
    ended_s: Floats  # failed: when it arrived
    finished_s: Floats
    model: Ints
    late: Bools  # missed TTFT
    slow: Bools  # missed TPOT
    failed: Bools

    @property
    def missed(self) -> Bools:
        return self.late | self.slow | self.failed

    @property
    def begun_s(self) -> Floats:
        return np.where(np.isfinite(self.first_s), self.first_s, self.ended_s)

    @property
    def span(self) -> tuple[float, float]:
        return float(self.arrival_s.min()), float(self.arrival_s.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    reasons: dict[str, int]
    misses: int


def judge(
    records: pa.Table | Records,
    room: Room,
    attainment: float = 0.99,
    looks: Iterable[Look] | None = None,
) -> dict[str, Any] | None:
    """Return the worst part's verdict on a load as plain data; None without a load.

    Args:
      attainment: goal, share of requests on both targets.
      looks: of `looks_at`; None: called here.

    Returns:
      `state`: served, missed or overload; `met`: share on both targets; `wanted`: the goal;
      `binds`: key in `BINDS`, None if served; `text`: one or two lines. If not served, also
      `models`, `since_s`, `until_s` and the shares of `shares_of`. For an overload `offered_rps`,
      `served_rps`, `sustainable_rps`, `waiting` (without a first token) and `in_service`. For
      missed targets `late`, `slow` and `failed` (shares), `failures` (counts by reason) and
      `steady`. For several parts also `parts`, their number, and `as_bad`, the number as bad as the
      worst.
    """
    run_records = Records((records,)) if isinstance(records, pa.Table) else records
    only = _run(run_records, room, 0) if len(run_records.parts) == 1 else None
    if only is not None:
        looks = [_look(only, room, attainment)]
    looks = list(looks_at(run_records, room, attainment) if looks is None else looks)
    count = sum(look.requests for look in looks)
    if not count:
        return None
    met = 1.0 - sum(look.missed for look in looks) / count
    facts = {"met": met, "wanted": attainment}
    worst = max(range(len(looks)), key=lambda k: (looks[k].rank, looks[k].amount, -k))
    rank = looks[worst].rank
    is_short = 2 * sum(look.unfinished for look in looks) > count
    queues = "too short to show a growing queue" if is_short else "queues stable"
    if len(looks) > 1:
        facts |= {"parts": len(looks), "as_bad": sum(look.rank >= rank for look in looks)}
    if rank == _SERVED or (rank == _MISSED and met >= attainment):
        text = f"served: {_percent(met)} of requests met both targets; {queues}"
        return {"state": "served", **facts, "binds": None, "text": [text]}
    run = _run(run_records, room, worst) if only is None else only
    most = max(1, MOST * len(run.arrival_s) // count)  # this part's; all parts are read
    if rank == _OVERLOAD:
        grown = _grown(run, room)
        assert grown is not None
        return {"state": "overload", **facts, **_overload(run, room, run_records, most, *grown)}
    return {"state": "missed", **facts, **_misses(run, room, run_records, most, attainment, queues)}


_SERVED, _MISSED, _OVERLOAD = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Badness of a part: rank, waiting or missing requests, and unfinished ones."""

    rank: int
    amount: int
    requests: int
    missed: int
    unfinished: int


def looks_at(
    records: Records,
    room: Room,
    attainment: float,
    mapper: Callable[..., Iterable[Look]] = map,
) -> Iterable[Look]:
    """Return each part's badness for `judge`; nothing for a single one.

    Args:
      mapper: a process pool's map starts at once.
    """
    if len(records.parts) == 1:  # `judge` reads it anyway
        return ()
    return mapper(partial(_look_at, records, room, attainment), range(len(records.parts)))


def _look_at(records: Records, room: Room, attainment: float, part: int) -> Look:
    return _look(_run(records, room, part), room, attainment)


def _look(run: _Run, room: Room, attainment: float) -> Look:
    count, missed = len(run.arrival_s), int(np.count_nonzero(run.missed))
    rank, amount = _SERVED, 0
    if count and (grown := _grown(run, room)) is not None:
        rank, amount = _OVERLOAD, grown[0].waiting
    elif count and missed > (1.0 - attainment) * count:
        rank, amount = _MISSED, missed
    unfinished = int(np.count_nonzero(run.ended_s > run.span[1])) if count else 0
    return Look(
        rank=rank, amount=amount, requests=count, missed=missed, unfinished=unfinished
    )  # fmt: skip


def _run(records: Records, room: Room, part: int) -> _Run:
    return _read(records.read(part, _COLUMNS), room)


def _read(records: pa.Table, room: Room) -> _Run:
    arrival, first, finished = (
        numbers_of(records, c) for c in ("arrival_s", "first_token_s", "finished_s")
    )
    gaps = np.maximum(numbers_of(records, "output_tokens") - 1.0, 1.0)
    failed = ~np.isfinite(finished)
    return _Run(
        arrival_s=arrival,
        first_s=first,
        ended_s=np.where(failed, arrival, finished),
        finished_s=finished,
        model=models_of(records, room),
        late=~failed & ~(first - arrival <= numbers_of(records, "ttft_slo_s")),
        slow=(finished - first) / gaps > numbers_of(records, "tpot_slo_s"),
        failed=failed,
    )


# The queue is the requests that arrived and have no first token yet; if that one does not grow,
# those that are not finished. Its growth (`growth_of`) starts after the last time it held at most a
# tenth of what waits at the last arrival. An overload is a growth over at least a quarter of the
# time between first and last arrival, of a queue that was well below its end half-way, beyond
# chance (20 requests, and twice the square root of the growth's arrivals), whose last arrivals
# mostly missed a target.
def _grown(run: _Run, room: Room) -> tuple[Growth, dict[str, Growth]] | None:
    span = run.span
    if np.count_nonzero(run.ended_s > span[1]) < FEWEST:
        return None
    late = run.late | run.failed
    waiting = np.count_nonzero(run.begun_s > span[1])
    for exit_s, missed in ((run.begun_s, late), (run.ended_s, late | run.slow)):
        whole = growth_of(run.arrival_s, exit_s, missed, span)
        behind: dict[str, Growth] = {}
        for m in np.flatnonzero(np.bincount(run.model[exit_s > span[1]]) >= FEWEST):
            rows = np.flatnonzero(run.model == m)
            growth = growth_of(run.arrival_s[rows], exit_s[rows], missed[rows], span)
            if growth is not None:
                behind[room.models[m]] = growth
        most = whole or max(behind.values(), key=lambda g: g.waiting, default=None)
        # Without a queue for the first token, unfinished requests may just be long ones.
        if most and (exit_s is not run.ended_s or waiting >= FEWEST or _steady_rps(exit_s, most)):
            return most, behind
    return None


# Offered is the rate of arrivals during the growth, served that of requests that end from its start
# until the last one ends, sustainable that of ends during the growth.
def _overload(
    run: _Run,
    room: Room,
    records: Records,
    most: int,
    window: Growth,
    behind: dict[str, Growth],
) -> dict[str, Any]:
    models = np.array([room.models.index(name) for name in behind or room.models])
    concerned = np.isin(run.model, models)
    since, until = window.since_s, window.until_s
    last = np.sort(run.arrival_s[(run.arrival_s >= since) & (run.arrival_s <= until)])[-most:]
    stretch = (float(last[0]) if len(last) == most else since, until)
    table = records.during(DETAIL_COLUMNS, *stretch)
    shares = shares_of(table, room, stretch, np.isin(models_of(table, room), models))
    inside = concerned & (run.arrival_s >= since) & (run.arrival_s <= until)
    ends = run.finished_s[concerned & (run.finished_s > since)]
    verdict = {
        "models": sorted(behind) or "all together",
        "since_s": since,
        "until_s": until,
        "offered_rps": float(np.count_nonzero(inside) / (until - since)),
        "served_rps": len(ends) / (float(ends.max(initial=until)) - since),
        "sustainable_rps": _steady_rps(ends, window),
        "waiting": int(np.count_nonzero(concerned & (run.begun_s > until))),
        "in_service": int(
            np.count_nonzero(concerned & (run.begun_s <= until) & (run.ended_s > until))
        ),
        "binds": _idle(shares) or _full(shares) or _waiting(shares),
        **shares,
    }
    rate = (
        f"{verdict['served_rps']:.3g} served until the last one ended"
        if verdict["sustainable_rps"] is None
        else f"about {verdict['sustainable_rps']:.3g} sustainable"
    )
    first = (
        f"overload: {verdict['offered_rps']:.3g} requests/s{_named(behind, room, ' of ')} offered, "
        f"{rate}; {verdict['waiting']:,} waited and {verdict['in_service']:,} were in service at "
        f"the last arrival, the queue grew from {since:,.0f} s on, for {until - since:,.0f} s"
    )
    return verdict | {"text": [first, _why(verdict)]}


# The first fifth is left out, in which batches fill. The rate is unknown where requests take about
# as long as the growth, or models wait for slices.
def _steady_rps(ends: Floats, window: Growth) -> float | None:
    since = window.since_s + FILLING * (window.until_s - window.since_s)
    halves, _ = np.histogram(ends, bins=np.linspace(since, window.until_s, 3))
    if halves.sum() < FEWEST or halves.max() > 2 * halves.min():
        return None
    return float(halves.sum() / (window.until_s - since))


# Misses are steady if three quarters of the run's twentieths (by arrival) have more than allowed;
# else they came in bursts. The bottleneck is that of the whole load, or of the worst twentieth.
def _misses(
    run: _Run, room: Room, records: Records, most: int, attainment: float, queues: str
) -> dict[str, Any]:
    missed = run.missed
    order = np.lexsort((run.model, run.arrival_s))
    parts = np.array_split(order, min(PARTS, len(order)))
    shares_missed = np.array([np.mean(missed[part]) for part in parts])
    steady = bool(np.mean(shares_missed > 1.0 - attainment) >= STEADY)
    part = order if steady else parts[int(shares_missed.argmax())]
    until = float(max(run.arrival_s[part].max(), run.ended_s[part].max()))
    since = float(run.arrival_s[part].min())
    if steady:  # the time after the last arrival is no part of the load
        until = max(float(run.arrival_s.max()), np.nextafter(since, np.inf))
    concerned = missed & (run.arrival_s >= since) & (run.arrival_s <= until)
    used, failures = _used_by_late(run, room, records, most, (since, until), concerned)
    late, slow, failed = (float(np.mean(x)) for x in (run.late, run.slow, run.failed))
    is_late = np.count_nonzero(run.late[concerned]) >= np.count_nonzero(run.slow[concerned])
    sent = np.bincount(run.model, minlength=len(room.models))
    with np.errstate(invalid="ignore"):  # a model without requests: 0 / 0
        share = np.bincount(run.model, weights=missed, minlength=len(room.models)) / sent
    by_model = [room.models[m] for m in np.flatnonzero(share > 1.0 - attainment)]
    verdict = {
        "models": by_model,
        "since_s": since,
        "until_s": until,
        "late": late,
        "slow": slow,
        "failed": failed,
        "steady": steady,
        "binds": _failing(failures) or _full(used) or (_late(used) if is_late else _slow(used)),
        "failures": failures.reasons,
        **used,
    }
    how = [(late, "TTFT missed by"), (slow, "TPOT missed by"), (failed, "failed:")]
    reasons = "; ".join(f"{name} {_percent(share)}" for share, name in how if share)
    when = "all the time" if steady else f"in bursts, the worst from {since:,.0f} to {until:,.0f} s"
    first = (
        f"targets missed {when}{_named(by_model, room, ', by ')}: {_percent(np.mean(~missed))} of "
        f"requests met both (goal {_percent(attainment)}); {reasons}; {queues}"
    )
    return verdict | {"text": [first, _why(verdict)]}


def _used_by_late(
    run: _Run,
    room: Room,
    records: Records,
    most: int,
    span: tuple[float, float],
    concerned: Bools,
) -> tuple[dict[str, float], _Failures]:
    since, until = span
    inside = np.sort(run.arrival_s[(run.arrival_s >= since) & (run.arrival_s <= until)])
    if len(inside) > most:
        pieces = inside[::most][: len(inside) // most + 1]
        edges = [*pieces, until]
        amounts, _ = np.histogram(run.arrival_s[concerned], bins=edges)
        worst = int(amounts.argmax())
        since, until = float(edges[worst]), float(edges[worst + 1])
    stretch = (since, max(until, float(np.nextafter(since, np.inf))))
    table = records.during(DETAIL_COLUMNS, *stretch)
    arrival = numbers_of(table, "arrival_s")
    came = (arrival >= stretch[0]) & (arrival <= stretch[1])
    read = _read(table, room)
    missed, failed = read.missed & came, read.failed & came
    codes, names = codes_of(table, "reason")
    counts = np.bincount(codes[failed], minlength=len(names))
    reasons = {name: int(count) for name, count in zip(names, counts, strict=True) if count}
    late = missed & ~failed if np.any(missed & ~failed) else missed
    misses = int(np.count_nonzero(missed))
    return shares_of(table, room, stretch, late), _Failures(reasons=reasons, misses=misses)


# The first cause that applies is reported. Missed targets: failures for another reason than lack of
# time. An overload: idle slices beside a queue, as no link rate was left to promise to an engine,
# the waiting models were still starting, or for another reason. Then a full resource; slices held
# by other models, or models that start; turns; compute.
def _failing(failures: _Failures) -> str:
    lasting = sum(n for reason, n in failures.reasons.items() if reason != LACKED_TIME)
    return "failures" if lasting > MOSTLY * failures.misses else ""


def _idle(shares: dict[str, float]) -> str:
    few = shares["idle_slices"] < max(1.0, 0.1 * shares["slices"])
    if few or shares["link"] >= FULL:
        return ""
    if shares["promised"] + shares["asked"] > 1.0:
        return "promises"
    return "starts" if shares["waited_for_a_slice"] >= MOSTLY else "idle_slices"


def _full(shares: dict[str, float]) -> str:
    return next((name for name in ("link", "kv", "batch", "hbm") if shares[name] >= FULL), "")


def _waiting(shares: dict[str, float]) -> str:
    if shares["waited_for_a_slice"] < MOSTLY:
        return _slow(shares)
    return "slices" if shares["occupied"] >= MOSTLY else "starts"


def _late(shares: dict[str, float]) -> str:
    if shares["waited"] < MOSTLY:
        return _slow(shares)
    is_start = shares["idle_slices"] >= 1.0 and shares["waited_for_a_slice"] >= MOSTLY
    return "starts" if is_start else _waiting(shares)


def _slow(shares: dict[str, float]) -> str:
    return "turns" if shares["engines"] >= SEVERAL else "compute"


def _named(models: Sequence[str] | dict[str, Growth], room: Room, before: str) -> str:
    late = sorted(models)
    if not late or len(late) == len(room.models):
        return ""
    return f"{before}{', '.join(late[:3])}{' and others' if len(late) > 3 else ''}"


def _why(verdict: dict[str, Any]) -> str:
    binds = BINDS[verdict["binds"]]
    if verdict["binds"] == "promises":
        promised, demand = 100 * verdict["promised"], 100 * verdict["asked"]
        binds += f", {promised:.4g} %, and one more engine asks {demand:.4g} %"
    if verdict["binds"] == "failures":
        binds += f", {', '.join(f'{name} {n:,}' for name, n in verdict['failures'].items())}"
    return (
        f"bottleneck: {binds} (busy: link {100 * verdict['link']:.0f} %, "
        f"HBM {100 * verdict['hbm']:.0f} %, KV {100 * verdict['kv']:.0f} %, batch "
        f"{100 * verdict['batch']:.0f} %, {verdict['engines']:.1f} engines on a busy slice, "
        f"{verdict['idle_slices']:.1f} of {verdict['slices']:.3g} slices idle)"
    )


def _percent(share: float | np.floating[Any]) -> str:
    return f"{100 * share:.4g} %"
