"""MEDUSA: graphs and KV sizes captured on one start, stored, and restored on every later one."""

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
from c2c.systems.medusa.classify import CLASSIFIERS, Classifier
from c2c.systems.medusa.ir import Graph, KernelRef, Node, Patch, count_nodes
from c2c.systems.medusa.owners import first_match
from c2c.systems.medusa.replay import TRIGGER_POOL
from c2c.systems.medusa.restore import Restored, restore
from c2c.systems.medusa.validation import (
    Difference,
    Regions,
    Side,
    first_difference,
    observe,
    sides,
    validate,
)

__all__ = [
    "CLASSIFIERS",
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
    "Node",
    "Patch",
    "Refusal",
    "Regions",
    "Restored",
    "Side",
    "analyse",
    "artefact_path",
    "count_nodes",
    "first_difference",
    "first_match",
    "load_artefact",
    "make_artefact",
    "observe",
    "read_artefact",
    "restore",
    "sides",
    "validate",
    "write_artefact",
]
