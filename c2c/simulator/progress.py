"""Progress of the requests that have not ended."""

from __future__ import annotations

import numpy as np

from c2c.serving.tables.state import ENDS_AT, NOBODY, SLOT, Serving

__all__ = ["PROGRESS_DTYPE", "progress"]

PROGRESS_DTYPE = np.dtype(
    [
        ("id", "i8"),
        ("begun_s", "f8"),  # when its first step began
        ("reused", "i8"),  # prompt tokens that it found in the prefix cache
        ("tokens", "i8"),  # generated so far
    ]
)


def progress(s: Serving) -> np.ndarray:
    """Return the open requests with a begun step, `PROGRESS_DTYPE`."""
    request = s.request
    tokens = request.carried + request.made
    for i in np.flatnonzero(s.instance.n_decode):
        inst = s.instance[i]
        decodes = s.decoding[i, : inst.n_decode]
        slots = decodes[:, SLOT]
        tokens[slots] += request.output[slots] - (decodes[:, ENDS_AT] - inst.decode_clock)
    is_begun = (tokens > 0) | (request.step_tokens > 0) | (request.prefilled > request.reused)
    rows = np.flatnonzero(is_begun & (request.id != NOBODY))
    table = np.empty(len(rows), PROGRESS_DTYPE)
    table["id"], table["begun_s"] = request.id[rows], request.started_s[rows]
    table["reused"], table["tokens"] = request.reused[rows], tokens[rows]
    return table
