"""Files of captures, which are analysed from different processes."""

from __future__ import annotations

from pathlib import Path

from c2c.errors import DataError
from c2c.systems.medusa.capture import Capture
from c2c.systems.medusa.columns import graphs_from, graphs_to, kernels_from, kernels_to
from c2c.systems.medusa.container import parts_of, read_container, write_container
from c2c.systems.program import AllocationId, Event

__all__ = ["read_capture", "write_capture"]


def write_capture(path: Path, capture: Capture) -> None:
    """Write a capture to a file, atomically."""
    attributes, blobs = graphs_to(capture.graphs)
    values = {
        "events": capture.events,
        "begin": capture.begin,
        "arenas": dict(capture.arenas),
        "told": dict(capture.told),
        "starts": capture.starts,
        "kernels": kernels_to(capture.kernels),
        "graphs": len(capture.graphs),
        "attributes": attributes,
        "contents": [[name, len(data)] for name, data in capture.contents.items()],
        "images": {key: len(image) for key, image in capture.images.items()},
    }
    parts = {
        "contents": b"".join(capture.contents.values()),
        "images": b"".join(capture.images.values()),
    }
    write_container(path, values, blobs | parts)


def read_capture(path: Path) -> Capture:
    """Return a file's capture.

    Raises:
      DataError: a cut or changed file, or no capture.
    """
    values, blobs = read_container(path)
    try:
        names = [AllocationId(*name) for name, _ in values["contents"]]
        sizes = {str(k): size for k, (_, size) in enumerate(values["contents"])}
        contents = parts_of(sizes, blobs["contents"]).values()
        return Capture(
            events=tuple(Event(e[0], AllocationId(*e[1]), *e[2:]) for e in values["events"]),
            begin=values["begin"],
            starts=tuple(values["starts"]),
            kernels=kernels_from(values["kernels"]),
            graphs=graphs_from(values["graphs"], values["attributes"], blobs),
            contents=dict(zip(names, contents, strict=True)),
            images=parts_of(values["images"], blobs["images"]),
            arenas=values["arenas"],
            told=values["told"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise DataError(str(path), f"content: not a capture ({problem})") from problem
