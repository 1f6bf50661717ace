"""Systems that lay a model out over several devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from c2c.config.mechanisms import is_by_mechanism, mechanisms_of, with_parts
from c2c.engine import EngineSettings
from c2c.engine.catalog import Entry
from c2c.engine.fleet import as_workers_have_it, deployments_of
from c2c.engine.variants import has_lane_workers
from c2c.errors import SettingError
from c2c.hardware import node_from_mapping
from c2c.systems.mechanism import Context

__all__ = ["laid_out"]


def laid_out(
    settings: Mapping[str, Any], entries: Sequence[Entry], engine: EngineSettings
) -> EngineSettings:
    """Return an engine's settings with its system's layout and workers."""
    choice, node = settings["system"].get("layout"), settings.get("node")
    if not is_by_mechanism(choice):
        if node:
            raise SettingError("node", node.get("name"), "none, as system.layout uses no node")
        return engine
    if not node:
        raise SettingError("node", None, "a node for system.layout, such as cpu_x4")
    run = {"system": {"start": None, **settings["system"]}, "code": []}
    over, mechanisms = node_from_mapping(node), mechanisms_of(run)
    workers = {mechanism.worker for mechanism in mechanisms}
    if "" in workers or len(workers) > 1:
        name = choice if isinstance(choice, str) else choice.get("mechanism")
        raise SettingError("system.layout", name, "a layout of live workers, such as cocoserve's")
    options = engine.options
    slo_s = (settings["ttft_slo_s"], settings["tpot_slo_s"])
    context = Context(
        system=as_workers_have_it(engine.system, options),
        platform=over.platforms[0],
        node=over,
        deployments=deployments_of([e for e in entries if not e.failed], options, slo_s),
        constants=engine.constants,
        run=run,
    )
    system, _ = with_parts(mechanisms, context)
    assert system.layout is not None  # a mechanism set it
    layout, worker = system.layout, workers.pop()
    if has_lane_workers(layout):  # a standby would not know its lane
        return replace(engine, system=system, worker=worker, has_spare=False)
    options = replace(options, devices=len(layout.memories) or 1)
    return replace(engine, system=system, options=options, worker=worker)
