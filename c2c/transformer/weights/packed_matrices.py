"""Packed matrices of checkpoints: 8-bit floats and integers, int4, NVFP4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from c2c.models import WeightFormat

__all__ = ["BESIDE", "IS_READ", "Packing", "is_read", "packing"]

IS_READ = (
    "fp8, awq, gptq, or ModelOpt's and compressed-tensors' FP8, NVFP4 and symmetric INT8 and INT4"
)
# tensors beside a matrix, without `.weight`; scales of activations and caches are not used
BESIDE = (
    "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_shape",
    "input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale", "output_scale",
)  # fmt: skip
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
# floats of the sixteen codes; two codes a byte, the low half first
_CODES: Mapping[str, np.ndarray] = {
    "U8": np.concatenate([_E2M1, -_E2M1]),
    "I32": np.arange(-8, 8, dtype=np.float32),
}
_CODE_BYTES = {"U8": 2, "I32": 8}  # codes of a stored element


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Scales of a packed matrix [N, K], with rows and columns."""

    stored: str  # type in the file
    scales: np.ndarray  # float32
    block: tuple[int, int]
    columns: int

    def widen(self, values: np.ndarray, first: int) -> np.ndarray:
        """Return stored rows as float32, from index `first`."""
        if self.stored in _CODES:
            halves = np.ascontiguousarray(values).view(np.uint8)
            codes = np.stack([halves & 0xF, halves >> 4], axis=-1).reshape(len(values), -1)
            wide = _CODES[self.stored][codes[:, : self.columns]]
        else:
            wide = values.astype(np.float32)
        rows = (first + np.arange(len(values))) // self.block[0]
        scales = np.repeat(self.scales[rows], self.block[1], axis=1)
        return np.asarray(wide * scales[:, : self.columns], np.float32)


def is_read(form: WeightFormat) -> bool:
    """Return whether a format's matrices are read."""
    forms = [form, *(other.form for other in form.others if other.form is not None)]
    return all(
        one.kind in ("fp8", "awq", "gptq")
        or (
            one.kind in ("modelopt", "compressed-tensors")
            and not (one.has_zeros or one.input_bytes)
            # blocks of 32 in one byte are of other types
            and (one.scale_bytes > 1 or one.block == (1, 16))
        )
        for one in forms
    )


# Values are widened as the reference does: the code times its scale in float32, then rounded once.
def packing(
    stored: str,
    shape: tuple[int, ...],
    block: tuple[int, int],
    beside: Mapping[str, tuple[int, ...]],
    read: Callable[[str], np.ndarray],
) -> tuple[Packing, tuple[int, ...]] | str:
    """Return a matrix's packing and shape, or expected scales."""
    if len(shape) != 2:
        return "a matrix"
    n, k = shape[0], shape[1] * _CODE_BYTES.get(stored, 1)
    name = next((s for s in ("weight_scale_inv", "weight_scale") if s in beside), None)
    if name is None:
        return "weight_scale, or weight_scale_inv of blocks"
    sizes = beside[name]
    if stored in _CODES:
        if len(sizes) != 2 or sizes[0] != n or not sizes[1] or k % sizes[1]:
            return f"{name} [{n}, groups]"
        block = 1, k // sizes[1]
    elif min(block) > 1:
        grid = tuple(-(-extent // size) for extent, size in zip((n, k), block, strict=True))
        if sizes != grid:
            return f"{name}, F32 {list(grid)}"
    elif sizes in ((), (1,), (1, 1)):
        block = n, k
    elif sizes in ((n,), (n, 1)):
        block = 1, k
    else:
        return f"{name} of one value, [{n}] or [{n}, 1]"
    scales = read(name).reshape(-(-n // block[0]), -(-k // block[1]))
    if stored == "U8":
        if "weight_scale_2" in beside:
            scales = scales * read("weight_scale_2").reshape(())
        elif "weight_global_scale" in beside:
            scales = scales / read("weight_global_scale").reshape(())
        else:
            return "weight_scale_2 or weight_global_scale"
    return Packing(stored=stored, scales=scales, block=block, columns=k), (n, k)
