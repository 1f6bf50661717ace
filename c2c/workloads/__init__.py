"""Requests: trace readers, synthetic generators, composition and trace statistics."""

from c2c.workloads.blocks import (
    MEASURED,
    OF_MODEL,
    WISHES,
    ClosedLoop,
    RequestBlock,
    Workload,
    concatenate,
)
from c2c.workloads.build import build_workload
from c2c.workloads.describe import describe, doubts
from c2c.workloads.files import workload_files
from c2c.workloads.routing import (
    EMBEDDING,
    GUIDE_SHIFT,
    Router,
    RouterTables,
    embed,
    router_tables,
    token_key,
    topic_of,
)
from c2c.workloads.settings import WorkloadConfig, shared_dir, workload_config
from c2c.workloads.statistics import TraceStatistics, trace_statistics
from c2c.workloads.turns import edges_of
from c2c.workloads.writer import write_trace

__all__ = [
    "EMBEDDING",
    "GUIDE_SHIFT",
    "MEASURED",
    "OF_MODEL",
    "WISHES",
    "ClosedLoop",
    "RequestBlock",
    "Router",
    "RouterTables",
    "TraceStatistics",
    "Workload",
    "WorkloadConfig",
    "build_workload",
    "concatenate",
    "describe",
    "doubts",
    "edges_of",
    "embed",
    "router_tables",
    "shared_dir",
    "token_key",
    "topic_of",
    "trace_statistics",
    "workload_config",
    "workload_files",
    "write_trace",
]
