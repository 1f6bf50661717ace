"""ServeGen's clients: rates, gaps and lengths as requests.

Source: ServeGen, arXiv:2505.09999; its folders hold `chunk-<client>-trace.csv` (start, rate, cv,
pattern and its two parameters) and `chunk-<client>-dataset.json` (histograms of tokens by start).
"""

from __future__ import annotations

import csv
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from c2c.errors import DataError, SettingError
from c2c.workloads.blocks import RequestBlock, concatenate
from c2c.workloads.records import json_records
from c2c.workloads.streams import stream_of

__all__ = ["Clients", "read_clients"]

_TRACE: Final = re.compile(r"chunk-(\d+)-trace\.csv")
_LENGTHS: Final = ("input_tokens", "output_tokens")

# Gaps of any mean, by a pattern's first parameter; the rate is the file's.
_GAPS: Final[Mapping[str, Callable[[np.random.Generator, float, int], NDArray[np.float64]]]] = {
    "Gamma": lambda rng, shape, count: rng.standard_gamma(shape, count),
    "Weibull": lambda rng, shape, count: rng.weibull(shape, count),
}

type _Histogram = tuple[NDArray[np.int32], NDArray[np.float64]]  # tokens, cumulated probabilities


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    rate_rps: float
    pattern: str
    shape: float


@dataclass(frozen=True, slots=True)
class _Client:
    number: int
    windows: tuple[_Window, ...]
    lengths: tuple[tuple[float, tuple[_Histogram, _Histogram]], ...]  # by start


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Clients of a folder.

    Attributes:
      starts_s: starts of all windows, and the end of the last.
      silent: windows without requests, for lack of lengths.
    """

    name: str
    clients: tuple[_Client, ...]
    starts_s: tuple[float, ...]
    silent: int

    def blocks(
        self, factor: float, seed: int, begin_s: float, end_s: float
    ) -> Iterator[RequestBlock]:
        """Yield the requests of each window in a time span, in order.

        A window has rate * factor * length requests, rounded at random. Prompt and output are
        independent draws, not ServeGen's one quantile.
        """
        for window, (start, end) in enumerate(pairwise(self.starts_s)):
            if end <= begin_s or start >= end_s:
                continue
            parts = [
                part for client in self.clients
                if (part := _requests(client, window, end - start, factor, seed)) is not None
            ]  # fmt: skip
            if parts:
                block = concatenate(parts)
                yield block.take(np.argsort(block.arrival_s, kind="stable"))


def read_clients(path: Path) -> Clients:
    """Read a folder's clients.

    Raises:
      SettingError: no folder of clients.
      DataError: a damaged file, lengths of images or an unknown pattern.
    """
    files = {int(m[1]): f for f in sorted(path.glob("*")) if (m := _TRACE.fullmatch(f.name))}
    if not files:
        allowed = "a folder with chunk-<client>-trace.csv and chunk-<client>-dataset.json"
        raise SettingError("workload.path", str(path), allowed)
    clients = [
        _Client(number, _windows(file), _lengths(path / f"chunk-{number}-dataset.json"))
        for number, file in sorted(files.items())
    ]
    starts = [window.start_s for window in clients[0].windows]
    for client in clients:
        if [window.start_s for window in client.windows] != starts:
            raise DataError(str(files[client.number]), "its times differ from the first client's")
    if len(starts) < 2:
        raise DataError(str(path), f"{len(starts)} times: expected at least two")
    silent = sum(
        window.rate_rps > 0 and _lengths_at(client, window.start_s) is None
        for client in clients for window in client.windows
    )  # fmt: skip
    end = 2 * starts[-1] - starts[-2]
    return Clients(name=path.name, clients=tuple(clients), starts_s=(*starts, end), silent=silent)


def _windows(file: Path) -> tuple[_Window, ...]:
    windows: list[_Window] = []
    with file.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            try:
                start, rate, _, pattern, shape, _ = row
                window = _Window(float(start), float(rate), pattern, float(shape))
            except ValueError:
                raise DataError(
                    str(file), f"line {number}: expected start, rate, cv, pattern, two parameters"
                ) from None
            is_used = window.rate_rps > 0
            if is_used and pattern not in _GAPS:
                processes = ", ".join(_GAPS)
                raise DataError(
                    str(file), f"line {number}: pattern {pattern!r}: expected {processes}"
                )
            late = not windows or window.start_s > windows[-1].start_s
            if not (window.rate_rps >= 0 and math.isfinite(window.rate_rps) and late) or (
                is_used and not 0 < window.shape < math.inf
            ):
                raise DataError(
                    str(file), f"line {number}: expected ascending times, rates and shapes above 0"
                )
            windows.append(window)
    return tuple(windows)


def _lengths(file: Path) -> tuple[tuple[float, tuple[_Histogram, _Histogram]], ...]:
    if not file.is_file():
        raise DataError(str(file), "missing: it has the lengths of this client")
    result = []
    for start, fields in (next(json_records(file), None) or {}).items():
        try:
            texts = [fields[name] for name in _LENGTHS]
            both = [_histogram(text) for text in texts]
            start_s = float(start)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(
                str(file), f"{start}: expected histograms of {' and '.join(_LENGTHS)}"
            ) from None
        if both[0] is not None and both[1] is not None:
            result.append((start_s, (both[0], both[1])))
    return tuple(sorted(result, key=lambda one: one[0]))


def _histogram(text: str) -> _Histogram | None:
    if not (inner := text.strip().strip("{}").strip()):
        return None
    pairs = np.array(inner.replace(":", ",").split(","), np.float64).reshape(-1, 2)
    pairs = pairs[(pairs[:, 0] >= 1) & (pairs[:, 1] > 0)]
    if not len(pairs):
        return None
    cumulated = np.cumsum(pairs[:, 1])
    return pairs[:, 0].astype(np.int32), cumulated / cumulated[-1]


def _lengths_at(client: _Client, start_s: float) -> tuple[_Histogram, _Histogram] | None:
    row = bisect_right(client.lengths, start_s, key=lambda one: one[0])
    return client.lengths[row - 1][1] if row else None


def _requests(
    client: _Client, index: int, length_s: float, factor: float, seed: int
) -> RequestBlock | None:
    window = client.windows[index]
    lengths = _lengths_at(client, window.start_s)
    if lengths is None or not window.rate_rps:
        return None
    rng = stream_of(seed, "servegen", client.number, index)
    count = int(window.rate_rps * factor * length_s + rng.random())
    gaps = _GAPS[window.pattern](rng, window.shape, count + 1)
    if not count:
        return None
    until = np.cumsum(gaps)
    arrival_s = window.start_s + until[:-1] / until[-1] * length_s
    prompt, output = (
        tokens[
            np.searchsorted(cumulated, rng.random(count), side="right").clip(max=len(tokens) - 1)
        ]
        for tokens, cumulated in lengths
    )
    return RequestBlock(
        arrival_s=arrival_s, model=np.zeros(count, np.int32), prompt_tokens=prompt,
        output_tokens=output,
    )  # fmt: skip
