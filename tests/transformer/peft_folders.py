"""Random LoRA folders as PEFT writes them, and their bases' merged tensors in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

__all__ = ["merged", "write_adapter"]


def write_adapter(
    folder: Path, base: str, tensors: Mapping[str, np.ndarray], modules: Sequence[str],
    *, seed: int = 0, rank: int = 4, alpha: float = 8.0, **config: Any,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Write an adapter of all layers' modules; return its tensors. B is not zero, as if trained."""
    g = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for name in tensors:
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in modules and ".experts." not in module:
            n, k = tensors[name].shape
            own = rank + (rank if module.endswith("v_proj") else 0)  # PEFT's rank_pattern
            at = f"base_model.model.{module}"
            result[f"{at}.lora_A.weight"] = g.normal(0, k**-0.5, (own, k)).astype(np.float32)
            result[f"{at}.lora_B.weight"] = g.normal(0, own**-0.5, (n, own)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(result, folder / "adapter_model.safetensors")
    plain = {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none",
        "base_model_name_or_path": f"somebody/{base}", "target_modules": list(modules),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(plain | config))
    return result


def merged(
    tensors: Mapping[str, np.ndarray], adapter: Mapping[str, np.ndarray], alpha: float = 8.0,
    *, by_root: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return the base's tensors with the adapter's products added, in float64."""
    result = {name: values.astype(np.float64) for name, values in tensors.items()}
    for name, a in adapter.items():
        if name.endswith(".lora_A.weight"):
            b = adapter[name.replace("lora_A", "lora_B")]
            scale = alpha / (len(a) ** 0.5 if by_root else len(a))
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            result[target] += scale * b.astype(np.float64) @ a.astype(np.float64)
    return result
