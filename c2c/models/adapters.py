"""Low-rank adapters (LoRA)."""

from dataclasses import dataclass
from typing import NamedTuple

from c2c.errors import SettingError
from c2c.models.spec import ModelSpec
from c2c.models.weights import gemms
from c2c.ranges import Count, check_fields

__all__ = ["ADAPTER_ELEMENT_BYTES", "Adapted", "Adapter", "adaptable", "adapted", "adapter_bytes"]

ADAPTER_ELEMENT_BYTES = 2  # bf16, whatever the base's format
_NEVER = ("gate", "shared_expert_gate")  # routers


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Rank of an adapter, and names of its modules such as "q_proj"; (): all.

    Source: arXiv:2106.09685, section 4.1: x A B is added to a product x W; A is [k, r], B is [r,
    n].
    """

    rank: Count
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "catalog.adapter")


class Adapted(NamedTuple):
    """GEMM with adapted modules: depth, columns, number of layers."""

    k: int
    columns: tuple[int, ...]
    layers: int


def adaptable(spec: ModelSpec) -> tuple[str, ...]:
    """Return the adaptable modules: dense ones but routers."""
    names = [m.rpartition(".")[2] for g in gemms(spec) if g.kind == "dense" for m, _ in g.parts]
    return tuple(name for name in dict.fromkeys(names) if name not in _NEVER)


def adapted(spec: ModelSpec, adapter: Adapter, field: str = "modules") -> tuple[Adapted, ...]:
    """Return the GEMMs with adapted modules.

    Raises:
      SettingError: a module that the model lacks, or a rank above its width.
    """
    may = adaptable(spec)
    for name in adapter.modules:
        if name not in may:
            raise SettingError(field, name, f"modules among {', '.join(may)}")
    modules = adapter.modules or may
    matrices = []
    for g in gemms(spec):
        parts = [n for m, n in g.parts if g.kind == "dense" and m.rpartition(".")[2] in modules]
        if parts:
            matrices.append(Adapted(g.k, tuple(parts), g.count))
    least = min(min(one.k, *one.columns) for one in matrices)
    if adapter.rank > least:
        raise SettingError(
            field.replace("modules", "rank"), adapter.rank, f"at most {least}, the narrowest module"
        )
    return tuple(matrices)


def adapter_bytes(spec: ModelSpec, adapter: Adapter) -> int:
    """Return the bytes of an adapter's matrices."""
    wide = sum(sum(one.k + n for n in one.columns) * one.layers for one in adapted(spec, adapter))
    return ADAPTER_ELEMENT_BYTES * adapter.rank * wide
