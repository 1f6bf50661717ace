"""Byte counts and times of GEMMs and engine steps."""

from c2c.cost.attention import (
    attention_pairs,
    cache_pairs,
    cache_places,
    chunk_kv_tokens,
    chunk_places,
    decode_kv_tokens,
)
from c2c.cost.attention_time import (
    cache_read_s,
    decode_attention_s,
    pair_s,
    prefill_attention_s,
)
from c2c.cost.constants import (
    Constants,
    Source,
    calibration_for,
    calibration_names,
    in_sample_claims,
    load_constants,
    read_constants,
)
from c2c.cost.contention import max_min, max_min_rates
from c2c.cost.engines import Engine, engine_names, load_engine
from c2c.cost.gemm_time import gemm_time, kernel_link_gbps
from c2c.cost.host import HostTime
from c2c.cost.kernels import KERNELS, Kernel, kernel_of, kernels
from c2c.cost.own_times import StepTimes, step_times, timed
from c2c.cost.profile import ChunkProfile, chunk_profile
from c2c.cost.ranks import all_reduce_s, ranks_table
from c2c.cost.resident import (
    EXPERT_ROWS,
    ResidentTime,
    expert_layer_time,
    resident_gemm_time,
    routed_time,
    throttled_s,
)
from c2c.cost.routing import ExpertLoad, Routing, expert_load
from c2c.cost.speculation import speculated, tokens_a_pass
from c2c.cost.step import (
    DEFAULT_ALPHAS,
    StepCost,
    StepTable,
    at_best_alpha,
    elementwise_bytes_per_token,
    launched,
    step_table,
    step_time,
)
from c2c.cost.tiles import KernelTiles, Tiles
from c2c.cost.traffic import (
    Traffic,
    asym_accumulation_steps,
    gemm_traffic,
    onchip_bytes,
    split_columns,
)
from pallas_kernels.gemm import Prediction

__all__ = [
    "DEFAULT_ALPHAS",
    "EXPERT_ROWS",
    "KERNELS",
    "ChunkProfile",
    "Constants",
    "Engine",
    "ExpertLoad",
    "HostTime",
    "Kernel",
    "KernelTiles",
    "Prediction",
    "ResidentTime",
    "Routing",
    "Source",
    "StepCost",
    "StepTable",
    "StepTimes",
    "Tiles",
    "Traffic",
    "all_reduce_s",
    "asym_accumulation_steps",
    "at_best_alpha",
    "attention_pairs",
    "cache_pairs",
    "cache_places",
    "cache_read_s",
    "calibration_for",
    "calibration_names",
    "chunk_kv_tokens",
    "chunk_places",
    "chunk_profile",
    "decode_attention_s",
    "decode_kv_tokens",
    "elementwise_bytes_per_token",
    "engine_names",
    "expert_layer_time",
    "expert_load",
    "gemm_time",
    "gemm_traffic",
    "in_sample_claims",
    "kernel_link_gbps",
    "kernel_of",
    "kernels",
    "launched",
    "load_constants",
    "load_engine",
    "max_min",
    "max_min_rates",
    "onchip_bytes",
    "pair_s",
    "prefill_attention_s",
    "ranks_table",
    "read_constants",
    "resident_gemm_time",
    "routed_time",
    "speculated",
    "split_columns",
    "step_table",
    "step_time",
    "step_times",
    "throttled_s",
    "timed",
    "tokens_a_pass",
]
