"""Request records, metrics, timeline."""

from c2c.metrics.columns import codes_of, values_of
from c2c.metrics.latency import (
    PERCENTILES,
    attainment,
    e2e_s,
    goodput_rps,
    meets_tpot,
    meets_ttft,
    percentiles,
    span_s,
    tpot_s,
    ttft_s,
)
from c2c.metrics.pictures import Axis, Line, chart, latency_charts, latency_table
from c2c.metrics.records import Records
from c2c.metrics.resources import Room
from c2c.metrics.schema import (
    PHASE_KINDS,
    PHASE_SCHEMA,
    RECORD_SCHEMA,
    START_KINDS,
    STATUSES,
    phase_table,
    record_table,
)
from c2c.metrics.summary import (
    SUMMARY_COLUMNS,
    summarise,
    summarised_chips,
    summarised_parts,
    utilisation,
)
from c2c.metrics.timeline import write_timeline
from c2c.metrics.verdict import BINDS, judge, looks_at

__all__ = [
    "BINDS",
    "PERCENTILES",
    "PHASE_KINDS",
    "PHASE_SCHEMA",
    "RECORD_SCHEMA",
    "START_KINDS",
    "STATUSES",
    "SUMMARY_COLUMNS",
    "Axis",
    "Line",
    "Records",
    "Room",
    "attainment",
    "chart",
    "codes_of",
    "e2e_s",
    "goodput_rps",
    "judge",
    "latency_charts",
    "latency_table",
    "looks_at",
    "meets_tpot",
    "meets_ttft",
    "percentiles",
    "phase_table",
    "record_table",
    "span_s",
    "summarise",
    "summarised_chips",
    "summarised_parts",
    "tpot_s",
    "ttft_s",
    "utilisation",
    "values_of",
    "write_timeline",
]
