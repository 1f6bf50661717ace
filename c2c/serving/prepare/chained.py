"""Step costs of models whose step is a chain of works, as the tables of those of one work."""

from __future__ import annotations

import numpy as np

from c2c.cost import StepTable
from c2c.hardware import Slice
from c2c.models import ModelSpec, kv_bytes_per_token
from c2c.serving.prepare.lanes import StepLayout

__all__ = ["chained_table"]


def chained_table(layout: StepLayout, spec: ModelSpec, place: Slice, tokens: int) -> StepTable:
    """Return what a step takes alone, as long as the first variant's works together.

    It is what decisions are taken by; how long a step is beside others, works say. Bytes of devices
    and of links between them are in the works' seconds, so none are counted here.

    Args:
      layout: of the node.
      spec: the model.
      place: a kind of lane.
      tokens: of the largest step.
    """
    chain = layout.chains_of(place, spec.name)[0]
    none = np.zeros((tokens + 1, layout.variants))
    return StepTable(
        alphas=np.linspace(0.0, 1.0, layout.variants),
        body_s=none,
        body_link_bytes=none,
        body_hbm_bytes=none,
        head_s=none,
        head_link_bytes=none,
        head_hbm_bytes=none,
        step_overhead_s=0.0,
        kv_bytes_per_token=int(kv_bytes_per_token(spec)),
        kv_read_s_per_token=0.0,
        attn_s_per_pair=0.0,
        prefill_attention_s=chain.prefill.upto(tokens)[0].sum(0),
        decode_attention_s=chain.decode.upto(tokens)[0].sum(0),
        sliding_window=0,  # nothing here grows with the cache
        link_cap_gbps=place.link_cap_gbps,
    )
