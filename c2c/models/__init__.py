"""Model shapes: parameters, GEMMs, bytes and FLOPs."""

from c2c.models.adapters import Adapter, adapted, adapter_bytes
from c2c.models.catalog import Deployment, catalogs, host_bytes, is_shipped, load_catalog
from c2c.models.families import FAMILIES
from c2c.models.huggingface import from_hf_config
from c2c.models.json_file import json_object, read_json_object, read_text
from c2c.models.load import catalog_names, load_spec, name_of, spec_files
from c2c.models.mixers import Mixer, mixers
from c2c.models.precision import PRECISIONS, at_precision
from c2c.models.quantisation import read_config
from c2c.models.ranks import rank_of
from c2c.models.spec import Latent, LinearAttention, ModelSpec, RopeScaling, WeightFormat
from c2c.models.weights import (
    CacheShape,
    Gemm,
    cache_shape,
    check_plain_layers,
    expected_active_experts,
    flops_per_token,
    gemm_bytes,
    gemms,
    kv_bytes,
    kv_bytes_per_token,
    param_count,
    read_shape,
    state_bytes,
    streamed_bytes,
    weight_bytes,
)

__all__ = [
    "FAMILIES",
    "PRECISIONS",
    "Adapter",
    "CacheShape",
    "Deployment",
    "Gemm",
    "Latent",
    "LinearAttention",
    "Mixer",
    "ModelSpec",
    "RopeScaling",
    "WeightFormat",
    "adapted",
    "adapter_bytes",
    "at_precision",
    "cache_shape",
    "catalog_names",
    "catalogs",
    "check_plain_layers",
    "expected_active_experts",
    "flops_per_token",
    "from_hf_config",
    "gemm_bytes",
    "gemms",
    "host_bytes",
    "is_shipped",
    "json_object",
    "kv_bytes",
    "kv_bytes_per_token",
    "load_catalog",
    "load_spec",
    "mixers",
    "name_of",
    "param_count",
    "rank_of",
    "read_config",
    "read_json_object",
    "read_shape",
    "read_text",
    "spec_files",
    "state_bytes",
    "streamed_bytes",
    "weight_bytes",
]
