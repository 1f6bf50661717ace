"""Functional transformer whose weights may stay in host memory."""

from c2c.transformer.executables import Executables
from c2c.transformer.layers.cache import Cache, cached_heads, new_cache
from c2c.transformer.layers.forward import forward
from c2c.transformer.layers.linear import Hybrid, Linear, Reference, Staged
from c2c.transformer.layers.params import Params, Placement
from c2c.transformer.loading import Described, describe, load
from c2c.transformer.model import Model, Warmed
from c2c.transformer.running.batch import Drawn, Request, Served, serve
from c2c.transformer.running.executor import Executor, OnDevice
from c2c.transformer.running.generate import Bucket, Wanted, buckets_of, buckets_up_to
from c2c.transformer.running.kv_pool import (
    KvPool,
    Lease,
    block_elements,
    superblock_elements,
    superblocks_for,
)
from c2c.transformer.running.runner import Result, Resumable, Runner, Step
from c2c.transformer.running.sampling import Sampling, SamplingRows, sample, sampling_rows
from c2c.transformer.running.shapes import Shapes, pieces
from c2c.transformer.saving import save_model
from c2c.transformer.weights.checkpoint import load_params, random_params
from c2c.transformer.weights.formats import Quantization

__all__ = [
    "Bucket",
    "Cache",
    "Described",
    "Drawn",
    "Executables",
    "Executor",
    "Hybrid",
    "KvPool",
    "Lease",
    "Linear",
    "Model",
    "OnDevice",
    "Params",
    "Placement",
    "Quantization",
    "Reference",
    "Request",
    "Result",
    "Resumable",
    "Runner",
    "Sampling",
    "SamplingRows",
    "Served",
    "Shapes",
    "Staged",
    "Step",
    "Wanted",
    "Warmed",
    "block_elements",
    "buckets_of",
    "buckets_up_to",
    "cached_heads",
    "describe",
    "forward",
    "load",
    "load_params",
    "new_cache",
    "pieces",
    "random_params",
    "sample",
    "sampling_rows",
    "save_model",
    "serve",
    "superblock_elements",
    "superblocks_for",
]
