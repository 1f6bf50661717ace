"""A functional transformer whose weights may stay in host memory."""

from c2c.transformer.batch import Drawn, Request
from c2c.transformer.cache import Cache, new_cache
from c2c.transformer.checkpoint import load_params, random_params
from c2c.transformer.executables import Executables
from c2c.transformer.formats import Quantization
from c2c.transformer.forward import forward
from c2c.transformer.generate import Bucket, buckets_of, buckets_up_to
from c2c.transformer.linear import Hybrid, Linear, Reference, Staged
from c2c.transformer.model import Model, Warmed, load
from c2c.transformer.params import Params, Placement
from c2c.transformer.sampling import Sampling, SamplingRows, sample, sampling_rows

__all__ = [
    "Bucket",
    "Cache",
    "Drawn",
    "Executables",
    "Hybrid",
    "Linear",
    "Model",
    "Params",
    "Placement",
    "Quantization",
    "Reference",
    "Request",
    "Sampling",
    "SamplingRows",
    "Staged",
    "Warmed",
    "buckets_of",
    "buckets_up_to",
    "forward",
    "load",
    "load_params",
    "new_cache",
    "random_params",
    "sample",
    "sampling_rows",
]
