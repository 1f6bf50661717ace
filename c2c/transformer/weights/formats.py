"""Weight formats: floats, or low-bit integers with scales."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from c2c.errors import SettingError
from c2c.transformer.layers.layout import Stack
from pallas_kernels.quantized_gemm import KINDS, SCALE_DTYPES, Kind

__all__ = ["Format", "Quantization", "Quantize", "format_of", "is_exact", "quantization_by_name"]

Quantize = Literal["int8", "fp8", "int4", "stored"]

_HEAD_OF_INT4: Kind = "int8"
_STORED_GROUP = 32
# What a GGUF file holds: (bits, whether there are minima, type that is exact for the scales). Q6_K
# has groups of 16 and is rounded anew, in 8 bits and groups of 32.
_STORED = {
    "Q4_0": (4, False, "float16"),
    "Q4_1": (4, True, "float16"),
    "Q4_K": (4, True, "float32"),
    "Q8_0": (8, False, "float16"),
    "Q6_K": (8, False, "float32"),
}
_ROUNDED = ("Q6_K",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Quantisation of projections at load time.

    With 4 bits, head and tied embedding have 8; an untied embedding keeps floats.

    Attributes:
      kind: "int8", "float8_e4m3fn", "int4"; or "stored", a GGUF file's integers.
      group: weights along K with one scale, a multiple of 32 ("stored": 32); None: a scale a row.
      scale_dtype: one of `SCALE_DTYPES`; "stored" has the narrowest exact one.
    """

    kind: Kind | Literal["stored"]
    group: int | None = None
    scale_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "stored"):
            raise SettingError("quantize.kind", self.kind, f"one of {', '.join(KINDS)}, stored")
        group = self.group
        if group is not None and (type(group) is not int or group < 1 or group % _STORED_GROUP):
            raise SettingError("quantize.group", group, "None or a multiple of 32")
        if self.scale_dtype not in SCALE_DTYPES:
            expected = f"one of {', '.join(SCALE_DTYPES)}"
            raise SettingError("quantize.scale_dtype", self.scale_dtype, expected)
        if self.kind == "stored" and group not in (None, _STORED_GROUP):
            raise SettingError("quantize.group", group, "None, since the file's groups are kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Storage format of one stack.

    Attributes:
      group: weights along K with one scale; None: a scale a row.
      offsets: whether groups have float32 offsets.
      stored: whether integers are copied.
    """

    kind: Kind | None = None
    group: int | None = None
    scale_dtype: str = "float32"
    offsets: bool = False
    stored: bool = False


class Stored(Protocol):
    """Source that knows the quantisation of tensors."""

    def stored(self, name: str) -> str | None:
        """Return a tensor's format; None for floats."""


def quantization_by_name(name: str | None) -> Quantization | None:
    """Return the quantisation "int8", "fp8" (scale a row), "int4" (groups) or "stored"."""
    choices = {
        "int8": Quantization(kind="int8"),
        "fp8": Quantization(kind="float8_e4m3fn"),
        "int4": Quantization(kind="int4", group=_STORED_GROUP, scale_dtype="bfloat16"),
        "stored": Quantization(kind="stored"),
    }
    if name is None:
        return None
    if name not in choices:
        raise SettingError("quantize", name, f"None or one of {', '.join(get_args(Quantize))}")
    return choices[name]


def format_of(
    stack: Stack, source: Stored, quantization: Quantization | None, *, tied: bool
) -> Format:
    """Return a stack's storage format."""
    if quantization is None or not (stack.projection or stack.name == "embed"):
        return Format()
    if quantization.kind == "stored":
        return _as_stored({source.stored(part.tensor) for part in stack.parts})
    if stack.name == "embed" and not tied:
        return Format()
    kind = quantization.kind
    if kind == "int4" and stack.name in ("embed", "head"):
        kind = _HEAD_OF_INT4
    return Format(kind=kind, group=quantization.group, scale_dtype=quantization.scale_dtype)


def is_exact(stored: str | None) -> bool:
    """True if a source's integers are kept."""
    return stored in _STORED and stored not in _ROUNDED


def _as_stored(names: Iterable[str | None]) -> Format:
    kinds = set(names)
    if not kinds <= _STORED.keys():
        return Format()
    bits, offsets, scales = zip(*(_STORED[name] for name in kinds if name), strict=True)
    return Format(
        kind="int4" if max(bits) == 4 else "int8",
        group=_STORED_GROUP,
        scale_dtype="float16" if set(scales) == {"float16"} else "float32",
        offsets=any(offsets),
        stored=True,
    )
