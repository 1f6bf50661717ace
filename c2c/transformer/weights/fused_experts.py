"""Checkpoints of transformers 5, a tensor for a layer's experts."""

from __future__ import annotations

import re

from c2c.transformer.layers.layout import NAMES
from c2c.transformer.weights.safetensors_file import SafetensorsCheckpoint

__all__ = ["split_experts"]

_FUSED = re.compile(
    r"(model\.layers\.\d+)\.mlp\.(experts\.gate_up_proj|experts\.down_proj|gate\.weight)"
)


def split_experts(checkpoint: SafetensorsCheckpoint, family: str) -> None:
    """Give each expert's matrices their published names."""
    named = NAMES[family].experts
    if named is None or len(named[1]) == 2:
        return
    folder, (gate, up, down) = named
    for name in checkpoint.names:
        match = _FUSED.fullmatch(name)
        if match is None:
            continue
        path, shape = f"{match[1]}.{folder}", checkpoint.shape(name)
        if match[2] == "gate.weight":
            checkpoint.divide(name, {f"{path}.{match[2]}": shape})
            continue
        if len(shape) != 3:
            continue
        count, rows, columns = shape
        matrices = (down,) if match[2].endswith("down_proj") else (gate, up)
        part_shape = rows // len(matrices), columns
        if part_shape[0] * len(matrices) == rows:
            parts = (f"{path}.experts.{i}.{name}.weight" for i in range(count) for name in matrices)
            checkpoint.divide(name, dict.fromkeys(parts, part_shape))
