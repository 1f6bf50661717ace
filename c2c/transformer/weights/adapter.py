"""PEFT's LoRA folders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from c2c.errors import DataError
from c2c.models import ModelSpec, read_json_object
from c2c.transformer.layers.layout import Part, Stack, layout
from c2c.transformer.layers.params import Params
from c2c.transformer.weights.safetensors_file import SafetensorsCheckpoint

__all__ = ["CONFIG", "LowRank", "low_rank"]

CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_BEGIN: Final = "base_model.model."
# Fields of a config, and their only values that need nothing else than two matrices a module.
_PLAIN: Final[Mapping[str, tuple[Any, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "alpha_pattern": (None, {}),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "layer_replication": (None, []),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """An adapter's folder, its base's, and float32 matrices by name.

    `<projection>_lora_a` is [layers, rank, K], `<projection>_lora_b` [layers, N, rank].
    """

    path: Path
    base: Path
    config: Mapping[str, Any]

    def matrices(self, spec: ModelSpec) -> dict[str, np.ndarray]:
        """Return the matrices for the base's spec.

        Raises:
          DataError: a missing, foreign or unfitting tensor.
        """
        checkpoint = SafetensorsCheckpoint(self.path / _WEIGHTS)
        names = set(checkpoint.names)
        result: dict[str, np.ndarray] = {}
        for stack in layout(spec):
            if stack.projection and len(stack.shape) == 3 and stack.name != "head":
                result |= self._stack(stack, checkpoint, names)
        if names:
            raise DataError(
                str(self.path / _WEIGHTS), f"tensor {min(names)}: no matrix of an adapted module",
                "Attention and dense feed-forward projections of the base may have adapters.",
            )  # fmt: skip
        return result

    def adapted(self, params: Params, spec: ModelSpec) -> Params:
        """Return the base's parameters with the adapter's."""
        import jax

        on = params.final_norm.sharding
        arrays = {
            name: jax.device_put(matrix.astype(params.dtype), on)
            for name, matrix in self.matrices(spec).items()
        }
        return replace(params, layers={**params.layers, **arrays})

    def expected(self, params: Params, spec: ModelSpec) -> Params:
        """Return `adapted` as shapes and types."""
        import jax

        struct: Any = jax.ShapeDtypeStruct  # jax leaves it untyped
        on = params.final_norm.sharding
        arrays = {
            name: struct(matrix.shape, params.dtype, sharding=on)
            for name, matrix in self.matrices(spec).items()
        }
        return replace(params, layers={**params.layers, **arrays})

    def parameters(self, spec: ModelSpec) -> int:
        """Count values of the matrices."""
        return sum(matrix.size for matrix in self.matrices(spec).values())

    def _stack(
        self, stack: Stack, checkpoint: SafetensorsCheckpoint, tensors: set[str]
    ) -> dict[str, np.ndarray]:
        pairs = list(self._pairs(stack, checkpoint, tensors))
        if not pairs:
            return {}
        ranks = np.zeros(stack.shape[0], np.int64)
        for part, a, _ in pairs:
            ranks[part.at[0]] += len(a)
        layers, rows, columns = stack.shape
        down = np.zeros((layers, ranks.max(), columns), np.float32)
        up = np.zeros((layers, rows, ranks.max()), np.float32)
        used = np.zeros_like(ranks)
        for part, a, b in pairs:
            (index,) = part.at
            span = slice(used[index], used[index] + len(a))
            down[index, span] = a
            up[index, part.first : part.first + len(b), span] = b * self._scale(len(a))
            used[index] += len(a)
        return {f"{stack.name}_lora_a": down, f"{stack.name}_lora_b": up}

    def _pairs(
        self, stack: Stack, checkpoint: SafetensorsCheckpoint, tensors: set[str]
    ) -> Iterator[tuple[Part, np.ndarray, np.ndarray]]:
        for part in stack.parts:
            module = _BEGIN + part.tensor.removesuffix(".weight")
            names = [f"{module}.lora_{end}.weight" for end in "AB"]
            there = [name for name in names if name in tensors]
            if not there:
                continue
            if len(there) == 1:
                where = str(self.path / _WEIGHTS)
                raise DataError(where, f"tensor {there[0]} without the other one of its module")
            shapes = [tuple(checkpoint.shape(name)) for name in names]
            rank = shapes[0][0]
            sizes = [(rank, part.shape[1]), (part.shape[0], rank)]
            if shapes != sizes:
                raise DataError(
                    str(self.path / _WEIGHTS), f"{module}: matrices {shapes[0]} and {shapes[1]} "
                    f"instead of {sizes[0]} and {sizes[1]}", f"Is {self.base} its base?",
                )  # fmt: skip
            matrices = [np.zeros(shape, np.float32) for shape in shapes]
            for name, matrix in zip(names, matrices, strict=True):
                checkpoint.read(name, matrix)
                tensors.discard(name)
            yield part, matrices[0], matrices[1]

    def _scale(self, rank: int) -> float:
        alpha = float(self.config["lora_alpha"])
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


# A stack's modules share one product into the rank: their A are stacked, and their B are blocks of
# one matrix, with the scale in it. Layers with fewer ranks have zeros.
def low_rank(path: Path) -> LowRank:
    """Return a folder's adapter, beside its base's.

    Raises:
      DataError: a missing or unsupported field, or an absent base.
    """
    file = path / CONFIG
    config = read_json_object(file)
    for field, allowed in _PLAIN.items():
        value = config.get(field, allowed[-1] if len(allowed) > 1 else None)
        if value not in allowed:
            raise DataError(str(file), f"{field}={value!r}: expected {allowed[0]!r}")
    for field in ("r", "lora_alpha"):
        value = config.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise DataError(str(file), f"{field}={value!r}: expected a number above 0")
    name = config.get("base_model_name_or_path")
    base = path.resolve().parent / str(name or "").rstrip("/").rpartition("/")[2]
    if not name or not (base / "config.json").is_file():
        raise DataError(
            str(file), f"base_model_name_or_path={name!r}: expected a checkpoint's folder of that "
            f"name in {path.resolve().parent}",
        )  # fmt: skip
    return LowRank(path=path, base=base, config=config)
