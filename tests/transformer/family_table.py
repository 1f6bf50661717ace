"""The table of docs/evidence/families.md, made by `python -m tests.transformer.family_table`.

Parameters and bytes are of the published configs in `tests/models/published.py` and `recent.py`;
errors of logits are of small random checkpoints of the family, against NumPy in float64.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from c2c.models import (
    ModelSpec,
    from_hf_config,
    kv_bytes_per_token,
    param_count,
    state_bytes,
    weight_bytes,
)
from tests.models.counted import CONFIGS

__all__ = ["rows"]

HEAD = (
    "| model | family | parameters | weights, bytes | KV, bytes a token | "
    "beyond its windows | state, bytes | largest error of a logit |"
)
# the small checkpoint of a family that the engine runs
SMALL = {
    "gemma2_9b": "gemma2", "gemma3_4b": "gemma3_text", "phi3_mini": "phi3", "phi4": "phi3",
    "olmo2_7b": "olmo2", "granite_8b": "granite", "glm4_9b": "glm4", "glm45_air": "glm4_moe",
    "deepseek_v3": "deepseek_v3", "kimi_k2": "kimi_k2", "minimax_m2": "minimax_m2",
    "llama4_maverick": "llama4_text",
}  # fmt: skip


def rows(error: Callable[[str], str]) -> list[str]:
    """Return the table's rows.

    Args:
      error: of a family's small checkpoint, as text.
    """
    return [_row(from_hf_config(config, name), error) for name, config in CONFIGS.items()]


def _row(spec: ModelSpec, error: Callable[[str], str]) -> str:
    numbers = (
        param_count(spec), weight_bytes(spec), kv_bytes_per_token(spec),
        kv_bytes_per_token(spec, spec.max_position), state_bytes(spec),
    )  # fmt: skip
    small = SMALL.get(spec.name)
    last = error(small) if small else "simulator only"
    cells = [spec.name, f"`{spec.family}`", *(f"{n:,}" for n in numbers), last]
    return f"| {' | '.join(cells)} |"


def _error(name: str) -> str:
    """Compute the largest error of a chunked prompt beyond the windows."""
    from c2c.transformer import load
    from c2c.transformer.running.generate import prompt_logits
    from tests.transformer.plain_model import plain_logits
    from tests.transformer.random_checkpoints import config_of, tensors_of, write

    config = config_of(name)
    tensors = tensors_of(config)
    ids = np.random.default_rng(1).integers(0, 96, 21).tolist()
    with tempfile.TemporaryDirectory() as folder:
        model = load(write(Path(folder), config, tensors))
        found = prompt_logits(model.params, ids, model.spec, model.linear, chunk=8)
    return f"{np.abs(found - plain_logits(config, tensors, ids)).max():.1e}"


if __name__ == "__main__":
    print(HEAD)
    print(f"|{' --- |' * HEAD.count(' |')}")
    print("\n".join(rows(_error)))
