"""CoCoServe: layers that are copied and moved between devices while a model serves."""

from c2c.systems.cocoserve.exact import exact
from c2c.systems.cocoserve.operations import Operation, operations_between
from c2c.systems.cocoserve.placement import Part, Placement, even_rows
from c2c.systems.cocoserve.planner import by_runs, room_of, scale_up
from c2c.systems.cocoserve.scale_down import Relief, scale_down
from c2c.systems.cocoserve.speedup import (
    Estimate,
    changes,
    counted_speedup,
    gamma_of,
    headroom,
    printed_speedup,
    split_speedup,
    transitions,
)

__all__ = [
    "Estimate",
    "Operation",
    "Part",
    "Placement",
    "Relief",
    "by_runs",
    "changes",
    "counted_speedup",
    "even_rows",
    "exact",
    "gamma_of",
    "headroom",
    "operations_between",
    "printed_speedup",
    "room_of",
    "scale_down",
    "scale_up",
    "split_speedup",
    "transitions",
]
