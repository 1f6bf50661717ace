"""Records and phases as tables of `c2c.metrics`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from c2c.metrics import PHASE_KINDS, phase_table, record_table
from c2c.policies import weights_in
from c2c.serving import (
    FAIL_CANCELLED,
    FAIL_CONTEXT,
    FAIL_DEADLINE,
    FAIL_DEVICE,
    FAIL_KV,
    FAIL_MEMORY,
    FAIL_NONE,
    Prepared,
)

__all__ = ["FAILURES", "phases_table", "requests_table"]

FAILURES = {
    FAIL_NONE: "",
    FAIL_CONTEXT: "context_exceeds_model",
    FAIL_KV: "kv_exceeds_slice",
    FAIL_CANCELLED: "cancelled",
    FAIL_DEADLINE: "deadline",
    FAIL_DEVICE: "device_lost",
    FAIL_MEMORY: "weights_exceed_slice",
}

_COPIED = (
    "id",
    "model",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "instance",
    "slice",
    "chip",
    "start_kind",
    "chunks",
    "alpha_mean",
    "link_bytes",
    "hbm_bytes",
    "cached_hbm_tokens",
    "cached_host_tokens",
)
_TIMES = ("admitted_s", "started_s", "first_token_s", "finished_s")


def requests_table(prepared: Prepared, records: Any) -> pa.Table:
    """Return records as a table of `RECORD_SCHEMA`; failed requests' other times are NaN."""
    failed = records["failure"] != FAIL_NONE
    columns = {name: np.ascontiguousarray(records[name]) for name in _COPIED}
    for name in _TIMES:
        columns[name] = np.where(failed, np.nan, records[name])
    deployments = prepared.setup.deployments
    ttft = np.array([d.ttft_slo_s for d in deployments])
    tpot = np.array([d.tpot_slo_s for d in deployments])
    columns["ttft_slo_s"], columns["tpot_slo_s"] = ttft[columns["model"]], tpot[columns["model"]]
    columns["status"] = failed.astype(np.int32)
    columns["reason"] = np.ascontiguousarray(records["failure"])
    names = {"model": [d.name for d in deployments], "reason": list(FAILURES.values())}
    return record_table(columns, names)


def phases_table(prepared: Prepared, timeline: Any) -> pa.Table:
    """Return phases (`TIMELINE_DTYPE`) as a table of `PHASE_SCHEMA`, in order."""
    loads = timeline["is_load"] != 0
    prefills, decodes = timeline["prefill_tokens"] > 0, timeline["decode_seqs"] > 0
    # Streamed weights are switched to, not loaded; cold starts of either kind read the disk.
    start = "switch" if weights_in(prepared.setup.system.load) != "hbm" else "load"
    kind = np.where(prefills & decodes, PHASE_KINDS.index("mixed"), PHASE_KINDS.index("decode"))
    kind = np.where(prefills & ~decodes, PHASE_KINDS.index("prefill"), kind)
    kind = np.where(loads, PHASE_KINDS.index(start), kind)
    columns = {
        name: np.ascontiguousarray(timeline[name])
        for name in ("chip", "instance", "model", "start_s", "end_s", "steps", "alpha", "link_gbps")
    }
    columns["kind"] = kind
    columns["tokens"] = np.where(
        loads, 0, timeline["prefill_tokens"] + timeline["decode_seqs"] * timeline["steps"]
    )
    columns["seqs"] = np.where(loads, 0, timeline["decode_seqs"] + prefills)
    return phase_table(columns, {"model": [d.name for d in prepared.setup.deployments]})
