"""Trace files as streams of requests, with bad rows counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from c2c.errors import DataError
from c2c.workloads.arrays import to_arrow
from c2c.workloads.blocks import WISHES, RequestBlock
from c2c.workloads.formats import TraceFile
from c2c.workloads.parsing import DATES, GOOD, KINDS, RawRows, kind_code, parse
from c2c.workloads.prefixes import Fit, Lists, block_keys

__all__ = ["RowRules", "TraceScan", "refuse_bad_rows", "scan", "stream"]

_SHOWN_ROWS = 3  # row numbers that an error lists for each kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """Rules against rows, beyond unreadable cells.

    Attributes:
      sort: whether rows are first sorted, in memory; if not, unordered ones are bad.
      duplicates_are_bad: whether equal rows are bad, or counted and kept.
      max_total_tokens: 0: no limit.
      keeps_origin: whether time 0 is the file's.
      per_second: units per second.
      block_tokens: tokens of a hash in `hash_ids`; 0: not read.
      keys_answers: hashes of whole blocks, continued over the answer.
      may_be_prefill: requests without output are good, with one token.
    """

    sort: bool = False
    duplicates_are_bad: bool = False
    with_lengths: bool = True
    max_total_tokens: int = 0
    keeps_origin: bool = False
    per_second: float = 1.0
    block_tokens: int = 0
    keys_answers: bool = False
    may_be_prefill: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScan:
    """Counts of one pass over a trace.

    Attributes:
      bad: kind -> rows; with `good` they add up to `rows`.
      first_rows: kind -> first such rows (from 1, without the header).
      duplicates: equal rows, bad or not.
      reordered: moved by sorting.
      requests_of: model id -> good rows, by first appearance.
      fit: of hashes and prompt lengths.
      orphan: first parent id without earlier request.
      measured: with a measured latency.
      prefills: without output.
    """

    rows: int
    good: int
    bad: dict[str, int]
    first_rows: dict[str, list[int]]
    duplicates: int
    reordered: int
    requests_of: dict[str, int]
    first_s: float
    last_s: float
    fit: Fit
    sessions: int
    orphan: str | None
    measured: int
    prefills: int


_NO_PARENT: Final = (None, "", "-1")  # parent ids of a conversation's first request


@dataclass(slots=True)
class _Sessions:
    of: dict[str, int] = field(default_factory=dict)  # id of a session, or of a request
    turns: list[int] = field(default_factory=list)  # number of each session's turns so far
    orphan: str | None = None  # first parent id that no earlier request has

    def add(
        self, names: list[str | None], parents: list[str | None] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        session, turn = np.full(len(names), -1), np.zeros(len(names), np.int32)
        for k, name in enumerate(names):
            if name is None:
                continue
            number = self.of.get(name if parents is None else parents[k] or "")
            if number is None:
                if parents is not None and self.orphan is None and parents[k] not in _NO_PARENT:
                    self.orphan = parents[k]
                number = len(self.turns)
                self.turns.append(0)
            self.of[name] = number
            self.turns[number] += 1
            session[k], turn[k] = number, self.turns[number]
        return session, turn


@dataclass(slots=True)
class _Tally:
    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first_rows: dict[str, list[int]] = field(default_factory=dict)
    duplicates: int = 0
    reordered: int = 0
    fit: Fit = field(default_factory=lambda: Fit(block_tokens=0))
    measured: int = 0
    prefills: int = 0
    sessions: _Sessions = field(default_factory=_Sessions)

    @classmethod
    def of(cls, rules: RowRules) -> Self:
        return cls(fit=Fit(block_tokens=rules.block_tokens))

    def add(self, verdict: NDArray[np.int8], numbers: NDArray[np.int64]) -> None:
        self.rows += verdict.size
        for code in np.unique(verdict[verdict != GOOD]).tolist():
            rows = np.flatnonzero(verdict == code)
            self.bad[KINDS[code]] += rows.size
            shown = self.first_rows.setdefault(KINDS[code], [])
            shown.extend(numbers[rows[: _SHOWN_ROWS - len(shown)]].tolist())

    def malformed(self) -> None:
        self.rows += 1
        self.bad["malformed_line"] += 1


def scan(trace: TraceFile, rules: RowRules) -> TraceScan:
    """Read a trace once, to judge and count rows.

    Raises:
      DataError: a corrupt file, or no good row.
    """
    tally = _Tally.of(rules)
    requests_of: dict[str, int] = {}
    first_s = last_s = 0.0
    good = 0
    for ids, block in _good_rows(trace, rules, tally):
        counts = np.bincount(block.model, minlength=len(ids))
        # By first appearance, so that the file's order breaks ties in popularity.
        codes, first_at = np.unique(block.model, return_index=True)
        for code in codes[np.argsort(first_at)].tolist():
            requests_of[ids[code]] = requests_of.get(ids[code], 0) + int(counts[code])
        first_s = float(block.arrival_s[0]) if not good else first_s
        last_s = float(block.arrival_s[-1])
        good += len(block)
    if not good:
        raise DataError(
            str(trace.path),
            f"no usable request in {tally.rows} rows{_listed(tally)}",
            " ".join(_time_hint(tally.bad)),
        )
    return TraceScan(
        rows=tally.rows,
        good=good,
        bad=dict(tally.bad),
        first_rows=tally.first_rows,
        duplicates=tally.duplicates,
        reordered=tally.reordered,
        requests_of=requests_of,
        first_s=first_s,
        last_s=last_s,
        fit=tally.fit,
        sessions=len(tally.sessions.turns),
        orphan=tally.sessions.orphan,
        measured=tally.measured,
        prefills=tally.prefills,
    )


def refuse_bad_rows(trace: TraceFile, scan: TraceScan) -> None:
    """Raise if the scan found a bad row."""
    if scan.bad:
        tally = _Tally(bad=Counter(scan.bad), first_rows=scan.first_rows)
        hints = ["workload.on_bad_row=skip drops them and records the counts."]
        if "unordered" in scan.bad:
            hints.append("workload.sort=true orders the rows by arrival.")
        if "duplicate" in scan.bad:
            hints.append("workload.on_duplicate=keep counts equal rows as separate requests.")
        if "zero_output_tokens" in scan.bad:
            hints.append("workload.on_zero_output=prefill simulates prompts without output.")
        hints.extend(_time_hint(scan.bad))
        if any(kind.endswith("_tokens") for kind in scan.bad):
            hints.append("workload.lengths=<source> replaces the trace's lengths.")
        bad = sum(scan.bad.values())
        raise DataError(
            str(trace.path), f"{bad} of {scan.rows} rows are bad{_listed(tally)}", " ".join(hints)
        )


def _time_hint(bad: Mapping[str, int]) -> list[str]:
    hints = []
    if "unreadable_arrival" in bad:
        hints.append(DATES)
    if "missing_arrival" in bad:
        hints.append("Turns with a delay instead of an arrival time are not supported.")
    return hints


def stream(trace: TraceFile, rules: RowRules, index_of: dict[str, int]) -> Iterator[RequestBlock]:
    """Yield good rows; `index_of` maps ids to `RequestBlock.model`."""
    for ids, block in _good_rows(trace, rules, _Tally.of(rules)):
        # Ids of bad rows have no index and are never looked up.
        lookup = np.array([index_of.get(name, -1) for name in ids], np.int32)
        yield replace(block, model=lookup[block.model])


def _good_rows(
    trace: TraceFile, rules: RowRules, tally: _Tally
) -> Iterator[tuple[tuple[str, ...], RequestBlock]]:
    latest: Any = None  # arrival of the last good row, in the file's own unit
    origin: Any = None
    equal_rows: set[str] = set()  # rows at `latest`, to recognise duplicates across batches
    for batch, numbers in _batches(trace, rules, tally):
        rows = _parse(trace, rules, batch)
        verdict = rows.verdict
        if origin is not None and rows.time.dtype != origin.dtype:
            verdict[verdict == GOOD] = kind_code("unreadable_arrival")
        _judge_order(rows, latest)
        good = np.flatnonzero(verdict == GOOD)
        if good.size:
            time = rows.time[good]
            if origin is None:
                origin = time[0]
            equal_rows = _judge_duplicates(
                batch, rows, good, latest, equal_rows, rules.duplicates_are_bad, tally
            )
            latest = time[-1]
        tally.add(verdict, numbers)
        good = np.flatnonzero(verdict == GOOD)
        if good.size:
            if rules.may_be_prefill:
                tally.prefills += int(np.count_nonzero(rows.output_tokens[good] == 0))
                rows = replace(rows, output_tokens=np.maximum(rows.output_tokens, 1))
            yield rows.ids, _with_more(_block(rows, good, origin, rules), rows, good, tally)


def _parse(trace: TraceFile, rules: RowRules, batch: pa.RecordBatch) -> RawRows:
    return parse(
        batch,
        trace.columns,
        label=trace.format.label,
        with_lengths=rules.with_lengths,
        max_total_tokens=rules.max_total_tokens,
        with_hashes=rules.block_tokens > 0,
        may_be_prefill=rules.may_be_prefill,
    )


def _batches(
    trace: TraceFile, rules: RowRules, tally: _Tally
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    if not rules.sort:
        done = 0
        for batch in trace.batches(tally.malformed):
            yield batch, np.arange(done + 1, done + 1 + batch.num_rows)
            done += batch.num_rows
        return
    batches = list(trace.batches(tally.malformed))
    if not batches:
        return
    parsed = [_parse(trace, rules, batch) for batch in batches]
    # A column is all numbers or all date-times; the first usable rows decide.
    usable = [p.time.dtype for p in parsed if (p.verdict == GOOD).any()]
    dtype = usable[0] if usable else parsed[0].time.dtype
    # Rows without a usable arrival sort first: their position does not matter, they only count.
    times = np.concatenate(
        [
            np.where((p.verdict == GOOD) & (p.time.dtype == dtype), p.time, -1).astype(dtype)
            for p in parsed
        ]
    )
    seen = np.maximum.accumulate(times)
    good = np.concatenate([p.verdict for p in parsed]) == GOOD
    tally.reordered += int(np.count_nonzero(good & (times < seen)))
    order = np.argsort(times, kind="stable")
    table = pa.Table.from_batches(batches).take(to_arrow(order))
    done = 0
    for batch in table.to_batches(max_chunksize=65_536):
        yield batch, order[done : done + batch.num_rows] + 1
        done += batch.num_rows


def _judge_order(rows: RawRows, latest: Any) -> None:
    good = np.flatnonzero(rows.verdict == GOOD)
    if good.size:
        time = rows.time[good]
        seen = np.maximum.accumulate(time)
        if latest is not None:
            seen = np.maximum(seen, latest)
        rows.verdict[good[time < seen]] = kind_code("unordered")


def _judge_duplicates(
    batch: pa.RecordBatch,
    rows: RawRows,
    good: NDArray[np.int64],
    latest: Any,
    earlier: set[str],
    are_bad: bool,
    tally: _Tally,
) -> set[str]:
    """Find rows equal to earlier ones of equal arrival; return those at the last arrival."""
    time = rows.time[good]
    same = np.empty(time.size, bool)
    same[0] = latest is not None and time[0] == latest
    same[1:] = time[1:] == time[:-1]
    run = np.cumsum(~same)
    # The last run may continue in the next batch, so its rows are remembered.
    compare = np.flatnonzero(same | np.append(same[1:], True) | (run == run[-1]))
    texts = [repr(row) for row in batch.take(to_arrow(good[compare])).to_pylist()]
    seen = set(earlier) if same[0] else set()
    current = run[compare[0]]
    for place, text in zip(compare.tolist(), texts, strict=True):
        if run[place] != current:
            current, seen = run[place], set()
        if text in seen:
            tally.duplicates += 1
            if are_bad:
                rows.verdict[good[place]] = kind_code("duplicate")
        seen.add(text)
    return seen


def _block(rows: RawRows, good: NDArray[np.int64], origin: Any, rules: RowRules) -> RequestBlock:
    time = rows.time[good]
    if time.dtype == np.int64:
        arrival_s = (time - origin).astype(np.float64) / 1e9
    else:
        arrival_s = (time if rules.keeps_origin else time - origin) / rules.per_second
    return RequestBlock(
        arrival_s=arrival_s,
        model=rows.model[good],
        prompt_tokens=rows.prompt_tokens[good],
        output_tokens=rows.output_tokens[good],
        keys_answers=rules.keys_answers,
    )


def _with_more(
    block: RequestBlock, rows: RawRows, good: NDArray[np.int64], tally: _Tally
) -> RequestBlock:
    if rows.session is not None:
        chosen = to_arrow(good)
        parents = None if rows.parent is None else rows.parent.take(chosen).to_pylist()
        session, turn = tally.sessions.add(rows.session.take(chosen).to_pylist(), parents)
        if rows.turn is not None:
            marks = np.clip(rows.turn[good], 0, 2**31 - 1).astype(np.int32)
            turn = np.where(marks > 0, marks, turn)
        block = replace(block, session=session, turn=turn)
    if rows.waits_for is not None:
        parents = rows.waits_for.take(good)
        turns = np.minimum(parents.values, 2**31 - 1).astype(np.int32)
        block = block.waiting(Lists(first=parents.first, values=turns))
    if rows.think_s is not None:
        block = replace(block, think_s=rows.think_s[good])
    if rows.calls_tool is not None:
        block = replace(block, calls_tool=rows.calls_tool[good])
    if rows.measured:
        measured = {name: values[good] for name, values in rows.measured.items()}
        marks = np.logical_or.reduce([~np.isnan(values) for values in measured.values()])
        tally.measured += int(np.count_nonzero(marks))
        unknown = np.full(len(block), np.nan)
        block = replace(
            block,
            measured_ttft_s=measured.get("measured_ttft_s", unknown),
            measured_tpot_s=measured.get("measured_tpot_s", unknown),
        )
    wishes: dict[str, Any] = {}
    for name, values in rows.wishes.items():
        unset = block.output_tokens if name == "max_output_tokens" else WISHES[name]
        column = np.where(np.isnan(values[good]), unset, values[good])
        wishes[name] = column if name.endswith("_s") else column.astype(np.int64)
    block = replace(block, **wishes)
    if rows.hashes is None:
        return block
    hashes, size = rows.hashes.take(good), tally.fit.block_tokens
    counts = np.diff(hashes.first)
    if block.keys_answers:
        counts = np.minimum(counts, block.prompt_tokens // size)
    tally.fit.add(counts, block.prompt_tokens)
    return block.hashed(Lists(first=hashes.first, values=block_keys(hashes, size)), size)


def _listed(tally: _Tally) -> str:
    if not tally.bad:
        return ""
    parts = []
    for kind in KINDS:
        if count := tally.bad.get(kind, 0):
            places = ", ".join(map(str, tally.first_rows.get(kind, [])))
            parts.append(
                f"{kind} {count}" + (f" (rows {places}{', ...' * (count > 3)})" if places else "")
            )
    return ": " + "; ".join(parts)
