"""CoCoServe: replication and migration of layers while a model serves."""

from c2c.systems.cocoserve.costs import (
    Held,
    OperationCosts,
    check_room,
    fitted_claims,
    memory_of,
    moved_bytes,
    operation_bytes,
    operation_costs,
    operation_s,
    static_host_s,
)
from c2c.systems.cocoserve.exact import exact
from c2c.systems.cocoserve.fastest import fastest
from c2c.systems.cocoserve.layout import SYSTEM, Scaling, placement_of, scaled_layout
from c2c.systems.cocoserve.modules import Module, kv_bytes, layer_bytes, module_of, modules, sizes
from c2c.systems.cocoserve.operations import Operation, operations_between
from c2c.systems.cocoserve.placement import Part, Placement, even_rows
from c2c.systems.cocoserve.planner import by_runs, room_of, scale_up
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
from c2c.systems.cocoserve.step import Devices, StepTime, devices_of, step_time

__all__ = [
    "SYSTEM",
    "Devices",
    "Estimate",
    "Held",
    "Module",
    "Operation",
    "OperationCosts",
    "Part",
    "Placement",
    "Scaling",
    "StepTime",
    "by_runs",
    "changes",
    "check_room",
    "counted_speedup",
    "devices_of",
    "even_rows",
    "exact",
    "fastest",
    "fitted_claims",
    "gamma_of",
    "headroom",
    "kv_bytes",
    "layer_bytes",
    "memory_of",
    "module_of",
    "modules",
    "moved_bytes",
    "operation_bytes",
    "operation_costs",
    "operation_s",
    "operations_between",
    "placement_of",
    "printed_speedup",
    "room_of",
    "scale_up",
    "scaled_layout",
    "sizes",
    "split_speedup",
    "static_host_s",
    "step_time",
    "transitions",
]
