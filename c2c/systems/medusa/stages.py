"""Seconds of each stage of an engine's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from c2c.errors import SettingError
from c2c.hardware.conf import read_fields, read_yaml
from c2c.models import ModelSpec, load_spec, weight_bytes
from c2c.ranges import AboveZero, Count, In, check_fields

__all__ = [
    "NODES_A_LAYER",
    "NODES_OUTSIDE",
    "MeasuredStart",
    "Stages",
    "graph_nodes",
    "launch_s",
    "launched_extra_s",
    "load_measured_start",
    "loaded_bytes",
    "stages_of",
]

# Kernels of a decode step of vLLM: 11 a layer (norm, qkv, rotary, cache write, attention, output,
# norm, gate and up, activation, down, and an add or a reduction), 2 outside of the layers.
NODES_A_LAYER: Final = 11
NODES_OUTSIDE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStages:
    """Measured stages of a further model, independent of size."""

    tokenizer_s: AboveZero
    kv_profiled_s: AboveZero


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStart:
    """Measured stages of one model's start on one GPU, see `conf/starts`."""

    name: str
    chip: str  # file of conf/hardware
    model: str
    hbm_gbps: AboveZero
    batch_sizes: Count
    structure_s: AboveZero
    weights_s: AboveZero
    tokenizer_s: AboveZero
    kv_profiled_s: AboveZero
    captured_s: AboveZero
    kv_restored_s: AboveZero
    restored_s: AboveZero
    weights_delay_s: AboveZero
    runtime_share: Annotated[float, In("(0, 1)", "a share")]
    beside_weights_s: AboveZero
    models: Mapping[str, OwnStages] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, f"starts.{self.name}")
        if self.beside_weights_s > self.restored_s:
            raise SettingError(
                f"starts.{self.name}.beside_weights_s",
                self.beside_weights_s,
                f"at most restored_s ({self.restored_s})",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """Seconds of each stage of a model's start.

    Attributes:
      weights_delay_s: extra seconds beside the KV cache's profiling.
      restored_s: first layer's warm-up and capture, and all graphs' restoration.
      beside_weights_s: part of `restored_s` with the first layer's weights alone.
      host_s: of each node, warm-up and capture together.
    """

    nodes: int
    structure_s: float
    weights_s: float
    tokenizer_s: float
    kv_profiled_s: float
    captured_s: float
    kv_restored_s: float
    restored_s: float
    weights_delay_s: float
    beside_weights_s: float
    host_s: float
    runtime_s: float
    first_token_s: float


def load_measured_start(name: str = "a100_40_vllm") -> MeasuredStart:
    """Load a file of `conf/starts`.

    Raises:
      SettingError: no such file, or a bad value.
    """
    where, data = f"starts.{name}", read_yaml("starts", name)
    models = data.pop("models", {})
    if not isinstance(models, Mapping):
        raise SettingError(f"{where}.models", models, "a mapping from models to their stages")
    others = {
        load_spec(model).name: read_fields(OwnStages, stages, f"{where}.models.{model}")
        for model, stages in models.items()
    }
    return replace(read_fields(MeasuredStart, data, where), models=others)


def loaded_bytes(spec: ModelSpec) -> int:
    """Return vLLM's loaded bytes; a tied matrix counts twice."""
    tied = spec.vocab * spec.hidden * spec.dtype_bytes if spec.tie_embeddings else 0
    return weight_bytes(spec) + tied


def graph_nodes(spec: ModelSpec, batch_sizes: int = 35) -> int:
    """Count nodes in the graphs of all batch sizes."""
    return batch_sizes * (NODES_A_LAYER * spec.layers + NODES_OUTSIDE)


def stages_of(spec: ModelSpec, measured: MeasuredStart) -> Stages:
    """Return a model's stages on the measured GPU."""
    one, stages = load_spec(measured.model), measured.models.get(spec.name, measured)
    hbm = measured.hbm_gbps * 1e9
    reads_s = measured.batch_sizes * loaded_bytes(one) / hbm
    host_s = (measured.captured_s - reads_s) / graph_nodes(one, measured.batch_sizes)
    rebuilt_s = measured.restored_s - measured.captured_s / one.layers
    rebuild_s = rebuilt_s / graph_nodes(one, measured.batch_sizes)
    loading_s = sum(
        (
            measured.structure_s,
            measured.weights_s,
            measured.tokenizer_s,
            measured.kv_profiled_s,
            measured.captured_s,
        )
    )
    nodes = graph_nodes(spec, measured.batch_sizes)
    reads = measured.batch_sizes * loaded_bytes(spec) / hbm
    captured_s = reads + nodes * host_s
    restored_s = captured_s / spec.layers + nodes * rebuild_s
    # a prompt is computed without a graph: one pass of the host over the launches
    first_token_s = _first_token_s(spec, host_s, hbm)
    whole_s = (loading_s + _first_token_s(one, host_s, hbm)) / (1 - measured.runtime_share)
    return Stages(
        nodes=nodes,
        structure_s=measured.structure_s,
        weights_s=measured.weights_s * loaded_bytes(spec) / loaded_bytes(one),
        tokenizer_s=stages.tokenizer_s,
        kv_profiled_s=stages.kv_profiled_s,
        captured_s=captured_s,
        kv_restored_s=measured.kv_restored_s,
        restored_s=restored_s,
        weights_delay_s=measured.weights_delay_s,
        beside_weights_s=restored_s * measured.beside_weights_s / measured.restored_s,
        host_s=host_s,
        runtime_s=whole_s * measured.runtime_share,
        first_token_s=first_token_s,
    )


def launch_s(spec: ModelSpec, measured: MeasuredStart) -> float:
    """Return the host seconds to launch a step's kernels one by one."""
    return (NODES_A_LAYER * spec.layers + NODES_OUTSIDE) * stages_of(spec, measured).host_s / 2


def launched_extra_s(spec: ModelSpec, measured: MeasuredStart) -> float:
    """Return a decode step's extra seconds without a graph."""
    return max(0.0, launch_s(spec, measured) - loaded_bytes(spec) / (measured.hbm_gbps * 1e9))


def _first_token_s(spec: ModelSpec, host_s: float, hbm: float) -> float:
    return (NODES_A_LAYER * spec.layers + NODES_OUTSIDE) * host_s / 2 + loaded_bytes(spec) / hbm
