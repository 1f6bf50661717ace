"""The simulated hardware of a prepared setup: link, HBM, disk, activation times."""

from __future__ import annotations

import numpy as np

from c2c.models import weight_bytes
from c2c.policies import weights_in
from c2c.serving import RESOURCES, START_WHEN, Prepared
from c2c.simulator.backend import Machine
from c2c.simulator.resources import DRAWS
from c2c.simulator.works import Starts

__all__ = ["build_machine"]


def build_machine(prepared: Prepared) -> Machine:
    """Return the backend's constants.

    Activation of a model in host memory takes the switch time of C2CServe (nothing is copied), or
    for a system with resident weights its engine initialisation plus the copy over the link,
    which competes with whatever else uses the link.
    """
    setup, constants = prepared.setup, prepared.setup.constants
    where = weights_in(setup.system.load)
    streams = where != "hbm"
    deployments = setup.deployments
    weights = np.array([float(weight_bytes(d.spec)) for d in deployments])
    moe = [d.spec.experts > 0 for d in deployments]
    kinds = prepared.slice_kinds
    calibrated = constants.switch_s if streams else constants.sllm_init_s
    start_s = setup.system.load.start_s
    copied = np.zeros(len(weights)) if streams else weights
    shared = prepared.link_capacity_gbps
    cap = [
        prepared.tables[0][k].link_cap_gbps if where == "host" else min(s.link_cap_gbps, shared)
        for k, s in enumerate(kinds)
    ]
    return Machine(
        capacity=shared * 1e9,
        hbm=np.array([k.hbm_gbps * 1e9 for k in kinds]),
        link_cap=np.array(cap) * 1e9,
        load_s=np.array([calibrated(moe=m) if start_s is None else start_s for m in moe]),
        load_link_bytes=np.repeat(copied[:, None], len(kinds), axis=1),
        weight_bytes=weights,
        disk=setup.platform.host.disk_gbps * 1e9,
        # Every system starts its runtime from scratch then (C2CServe section 9.2.2), and activates
        # the model as at a switch.
        cold_init_s=constants.engine_init_s,
        turn_s=float(setup.system.turn_s),
        starts=_starts(prepared, weights, np.array(cap)),
    )


def _starts(prepared: Prepared, weights: np.ndarray, link_gbps: np.ndarray) -> Starts:
    setup = prepared.setup
    plan = setup.system.start
    names = [w.name for w in plan]
    specs = [d.spec.name for d in setup.deployments]
    alone_s = np.zeros((len(weights), len(link_gbps), len(plan)))
    moved = np.zeros_like(alone_s)
    link_bytes = np.zeros((len(weights), len(link_gbps), 2))
    on = np.full((len(plan), DRAWS), -1, np.int64)
    for w, work in enumerate(plan):
        rates = {"link": link_gbps, "disk": np.full(len(link_gbps), setup.platform.host.disk_gbps)}
        on[w, : len(work.over)] = [RESOURCES.index(name) for name in work.over]
        alone_s[:, :, w] = [[work.seconds_of(name)] for name in specs]
        if work.moves == "weights":
            slowest = np.min([rates[name] for name in work.over], axis=0) * 1e9
            moved[:, :, w] = weights[:, None]
            alone_s[:, :, w] += weights[:, None] / slowest[None, :]
            for is_cold in range(2):
                if "link" in work.over and work.when != ("cold", "held")[is_cold]:
                    link_bytes[:, :, is_cold] += weights[:, None]
    return Starts(
        alone_s=alone_s,
        moved=moved,
        link_bytes=link_bytes,
        on=on,
        rank=np.array([w.rank for w in plan], np.int64),
        after=np.array([sum(1 << names.index(a) for a in w.after) for w in plan], np.int64),
        when=np.array([START_WHEN.index(w.when) for w in plan], np.int64),
    )
