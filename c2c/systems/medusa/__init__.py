"""MEDUSA: CUDA graphs and KV cache sizes, captured once, restored later."""

from c2c.systems.medusa.analysis import Analysed, Refusal, analyse
from c2c.systems.medusa.artefact import (
    Artefact,
    Key,
    artefact_path,
    load_artefact,
    make_artefact,
    read_artefact,
    write_artefact,
)
from c2c.systems.medusa.capture import Capture, CapturedGraphs
from c2c.systems.medusa.capture_file import read_capture, write_capture
from c2c.systems.medusa.classify import CLASSIFIERS, Classifier
from c2c.systems.medusa.ir import Graph, KernelRef, Node, Patch, count_nodes
from c2c.systems.medusa.kv import (
    KvRecord,
    kv_bytes_of,
    measured_kv,
    stored_kv_bytes,
)
from c2c.systems.medusa.owners import first_match
from c2c.systems.medusa.replay import TRIGGER_POOL
from c2c.systems.medusa.restore import OnDemand, Restored, restore
from c2c.systems.medusa.stages import (
    NODES_A_LAYER,
    NODES_OUTSIDE,
    MeasuredStart,
    Stages,
    graph_nodes,
    launch_s,
    launched_extra_s,
    load_measured_start,
    loaded_bytes,
    stages_of,
)
from c2c.systems.medusa.start import STARTS, Span, loading_s, plan_of, schedule, stage
from c2c.systems.medusa.templates import Templates, topology_of
from c2c.systems.medusa.validation import (
    Difference,
    Regions,
    Side,
    difference,
    first_difference,
    observe,
    sides,
    validate,
)
from c2c.systems.medusa.works import SYSTEM, NamedStart, start_works

__all__ = [
    "CLASSIFIERS",
    "NODES_A_LAYER",
    "NODES_OUTSIDE",
    "STARTS",
    "SYSTEM",
    "TRIGGER_POOL",
    "Analysed",
    "Artefact",
    "Capture",
    "CapturedGraphs",
    "Classifier",
    "Difference",
    "Graph",
    "KernelRef",
    "Key",
    "KvRecord",
    "MeasuredStart",
    "NamedStart",
    "Node",
    "OnDemand",
    "Patch",
    "Refusal",
    "Regions",
    "Restored",
    "Side",
    "Span",
    "Stages",
    "Templates",
    "analyse",
    "artefact_path",
    "count_nodes",
    "difference",
    "first_difference",
    "first_match",
    "graph_nodes",
    "kv_bytes_of",
    "launch_s",
    "launched_extra_s",
    "load_artefact",
    "load_measured_start",
    "loaded_bytes",
    "loading_s",
    "make_artefact",
    "measured_kv",
    "observe",
    "plan_of",
    "read_artefact",
    "read_capture",
    "restore",
    "schedule",
    "sides",
    "stage",
    "stages_of",
    "start_works",
    "stored_kv_bytes",
    "topology_of",
    "validate",
    "write_artefact",
    "write_capture",
]
