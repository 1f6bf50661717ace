"""Models as shapes: parameters, GEMMs, bytes and FLOPs, from a Hugging Face config.json."""

from c2c.models.catalog import Deployment, catalogs, load_catalog
from c2c.models.huggingface import FAMILIES, from_hf_config
from c2c.models.json_file import json_object, read_json_object, read_text
from c2c.models.load import catalog_names, load_spec
from c2c.models.spec import ModelSpec, RopeScaling
from c2c.models.weights import (
    Gemm,
    expected_active_experts,
    flops_per_token,
    gemms,
    kv_bytes_per_token,
    param_count,
    streamed_bytes,
    weight_bytes,
)

__all__ = [
    "FAMILIES",
    "Deployment",
    "Gemm",
    "ModelSpec",
    "RopeScaling",
    "catalog_names",
    "catalogs",
    "expected_active_experts",
    "flops_per_token",
    "from_hf_config",
    "gemms",
    "json_object",
    "kv_bytes_per_token",
    "load_catalog",
    "load_spec",
    "param_count",
    "read_json_object",
    "read_text",
    "streamed_bytes",
    "weight_bytes",
]
