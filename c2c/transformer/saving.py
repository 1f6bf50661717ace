"""Writer of models as checkpoint folders."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from c2c.atomic import write_json
from c2c.errors import SettingError
from c2c.models import ModelSpec, read_json_object
from c2c.transformer.layers.layout import Part, layout
from c2c.transformer.layers.linear import Reference
from c2c.transformer.layers.params import Params
from c2c.transformer.loading import describe
from c2c.transformer.model import Model
from c2c.transformer.weights.checkpoint import DTYPES
from pallas_kernels.host_memory import in_host_memory

__all__ = ["plain", "plain_params", "save_model"]

_CONFIG = "config.json"
_TEXTS = (".json", ".jinja", ".model", ".txt")  # tokenizer, chat template, generation settings


def plain(params: Params) -> Params:
    """Return parameters, concrete or traced.

    Raises:
      SettingError: they are quantised or in host memory.
    """
    for leaf in jax.tree.leaves(params):
        if leaf.dtype not in DTYPES.values() or in_host_memory(leaf):
            kind = "weights in host memory" if in_host_memory(leaf) else f"weights of {leaf.dtype}"
            raise SettingError("params", kind, "floats in device memory, loaded with quantize=None")
    return params


def plain_params(model: Model) -> Params:
    """Return floats in device memory, an array per layer."""
    if model.linear != Reference():
        raise SettingError("linear", model.linear, "'reference': weights in device memory")
    return plain(model.params)


def save_model(model: Model, like: Path | str, into: Path | str) -> None:
    """Write a checkpoint in Hugging Face's layout, `config.json` last.

    Args:
      model: loaded with `linear="reference"`, without `quantize`.
      like: original folder, for config, tokenizer and chat template.

    Raises:
      SettingError: quantised or host weights, an existing `into`, or another config in `like`.
      DataError: damaged files of `like`.
    """
    like, into, spec = Path(like), Path(into), model.spec
    params = plain_params(model)
    if not (like / _CONFIG).is_file():
        raise SettingError("like", str(like), f"a folder with the model's {_CONFIG}")
    base = describe(like).spec
    if replace(base, name=spec.name, dtype_bytes=spec.dtype_bytes) != spec:
        raise SettingError("like", str(like), f"the folder of the model, {spec.name}")
    config = {
        name: value
        for name, value in read_json_object(like / _CONFIG).items()
        if name not in ("quantization_config", "torch_dtype")  # describe the stored weights
    }
    try:
        into.mkdir(parents=True)
    except FileExistsError:
        raise SettingError("into", str(into), "a folder that does not exist yet") from None
    for file in sorted(like.iterdir()):
        if file.suffix in _TEXTS and file.name != _CONFIG and not file.name.endswith(".index.json"):
            shutil.copyfile(file, into / file.name)
    _write(jax.device_get(params), spec, into / "model.safetensors")
    write_json(into / _CONFIG, config | {"dtype": str(params.dtype)})


def _write(params: Params, spec: ModelSpec, path: Path) -> None:
    from safetensors.numpy import save_file

    stacks = layout(spec)
    tensors = {part.tensor: _tensor(params, s.name, part) for s in stacks for part in s.parts}
    save_file(tensors, path, metadata={"format": "pt"})
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _tensor(params: Params, stack: str, part: Part) -> np.ndarray:
    array: Any
    if stack == "embed":
        array = params.embed.data
    elif stack == "final_norm":
        array = params.final_norm
    else:
        array = params.projections.get(stack, params.layers.get(stack))
    for index in part.at:
        array = array[index]
    if part.transposed:
        return np.ascontiguousarray(np.swapaxes(array, 1, 2))
    cut: np.ndarray = array[part.first : part.first + part.shape[0]]
    return cut
