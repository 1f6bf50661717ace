"""Artefact file of a start."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from c2c.errors import DataError
from c2c.systems.medusa.analysis import Analysed
from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.columns import graphs_from, graphs_to, kernels_from, kernels_to
from c2c.systems.medusa.container import parts_of, read_container, write_container
from c2c.systems.medusa.ir import Graph, KernelRef
from c2c.systems.program import AllocationId
from pallas_kernels.repository import RepositoryWarning

__all__ = [
    "Artefact",
    "Key",
    "Step",
    "artefact_path",
    "load_artefact",
    "make_artefact",
    "read_artefact",
    "write_artefact",
]


class Step(NamedTuple):
    """An allocation (`nbytes` above 0) or a free (0), by number."""

    thread: str
    allocation: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Conditions under which an artefact is valid."""

    gpu: str
    memory_bytes: int
    mig: str
    driver: int
    model: str  # key of its shape, not its name
    dtype: str
    batch_sizes: tuple[int, ...]
    max_tokens: int
    memory_fraction: float
    program: str  # key of the code that makes the launches

    def plain(self) -> dict[str, Any]:
        """Return the key as JSON values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"batch_sizes": list(self.batch_sizes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A materialised start.

    Attributes:
      allocations: of start and captures, in order; patches and steps index them.
      steps: allocations and frees in order.
      begin: number of the start's own steps.
      graphs: one for each restorable batch size.
      permanent: numbers of the captures' allocations, live at their end.
      contents: of permanent allocations, by number.
      refused: reasons for batch sizes without a graph.
      kv: values of the `KvRecord`; empty: not stored.
      arenas: begin of each pool's range in the captured process.
      addresses: of allocations; a process with equal ones patches nothing.
      told: names of told values.
    """

    key: Key
    allocations: tuple[AllocationId, ...]
    steps: tuple[Step, ...]
    begin: int
    kernels: tuple[KernelRef, ...]
    graphs: tuple[Graph, ...]
    permanent: tuple[int, ...]
    contents: Mapping[int, bytes]
    images: Mapping[str, bytes]
    refused: tuple[str, ...] = ()
    kv: Mapping[str, int] = field(default_factory=dict)
    arenas: Mapping[str, int] = field(default_factory=dict)
    addresses: tuple[int, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def content_bytes(self) -> int:
        """Bytes of all stored contents."""
        return sum(map(len, self.contents.values()))


def make_artefact(
    key: Key, capture: Capture, analysed: Analysed, kv: Mapping[str, int] | None = None
) -> Artefact:
    """Return the artefact of a capture and its analysis."""
    numbers = {name: k for k, name in enumerate(analysed.allocations)}
    steps = tuple(Step(e.thread, numbers[e.allocation], e.nbytes) for e in capture.events)
    return Artefact(
        key=key,
        allocations=analysed.allocations,
        steps=steps,
        begin=capture.begin,
        kernels=capture.kernels,
        graphs=analysed.graphs,
        permanent=tuple(numbers[name] for name in analysed.permanent),
        contents={numbers[name]: data for name, data in analysed.contents.items()},
        images=capture.images,
        refused=tuple(map(str, analysed.refusals)),
        kv=dict(kv or {}),
        arenas=capture.arenas,
        addresses=tuple(e.address for e in capture.events if not e.is_free),
        told=analysed.told,
    )


def artefact_path(folder: Path, key: Key) -> Path:
    """Return the path of a key's artefact, named by the key's hash."""
    text = json.dumps(key.plain(), sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.graphs"


def write_artefact(path: Path, artefact: Artefact) -> None:
    """Write an artefact to a file, atomically."""
    attributes, blobs = graphs_to(artefact.graphs)
    values = {
        "key": artefact.key.plain(),
        "allocations": artefact.allocations,
        "steps": artefact.steps,
        "begin": artefact.begin,
        "kernels": kernels_to(artefact.kernels),
        "graphs": len(artefact.graphs),
        "attributes": attributes,
        "permanent": artefact.permanent,
        "contents": {str(k): len(v) for k, v in artefact.contents.items()},
        "images": {k: len(v) for k, v in artefact.images.items()},
        "refused": artefact.refused,
        "kv": dict(artefact.kv),
        "arenas": dict(artefact.arenas),
        "addresses": artefact.addresses,
        "told": artefact.told,
    }
    parts = {
        "contents": b"".join(artefact.contents.values()),
        "images": b"".join(artefact.images.values()),
    }
    write_container(path, values, blobs | parts)


def read_artefact(path: Path, key: Key | None = None) -> Artefact:
    """Return a file's artefact.

    Args:
      key: required key; None: any.

    Raises:
      DataError: a cut, changed or other file.
    """
    values, blobs = read_container(path)
    try:
        result = _artefact(values, blobs)
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise DataError(str(path), f"content: not an artefact ({problem})") from problem
    if key is not None and result.key != key:
        fields, there = key.plain(), result.key.plain()
        name = next(k for k in fields if fields[k] != there[k])
        raise DataError(str(path), f"key.{name}: {there[name]!r}, expected {fields[name]!r}")
    return result


def load_artefact(folder: Path, key: Key) -> Artefact | None:
    """Return a key's artefact, or None if missing or, with a warning, unusable."""
    path = artefact_path(folder, key)
    if not path.exists():
        return None
    try:
        return read_artefact(path, key)
    except DataError as problem:
        warnings.warn(
            f"{problem} The graphs are captured, and the file replaced.",
            RepositoryWarning,
            stacklevel=2,
        )
        return None


def _artefact(values: dict[str, Any], blobs: Mapping[str, bytes]) -> Artefact:
    key = dict(values["key"])
    return Artefact(
        key=Key(**key | {"batch_sizes": tuple(key["batch_sizes"])}),
        allocations=tuple(AllocationId(*a) for a in values["allocations"]),
        steps=tuple(Step(*s) for s in values["steps"]),
        begin=values["begin"],
        kernels=kernels_from(values["kernels"]),
        graphs=graphs_from(values["graphs"], values["attributes"], blobs),
        permanent=tuple(values["permanent"]),
        contents={int(k): v for k, v in parts_of(values["contents"], blobs["contents"]).items()},
        images=parts_of(values["images"], blobs["images"]),
        refused=tuple(values["refused"]),
        kv=values["kv"],
        arenas=values["arenas"],
        addresses=tuple(values["addresses"]),
        told=tuple(values["told"]),
    )
