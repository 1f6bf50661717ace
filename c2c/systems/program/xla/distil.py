"""Distillation of XLA's dumps to the parts that `read_dump` needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from c2c.atomic import write_text
from c2c.errors import DataError

__all__ = ["ASSIGNMENT", "HLO", "THUNKS", "distil"]

HLO, ASSIGNMENT, THUNKS = "hlo.txt", "assignment.txt", "thunks.txt"

_RAW = {
    HLO: "gpu_after_optimizations.txt",
    ASSIGNMENT: "gpu_after_optimizations-buffer-assignment.txt",
    THUNKS: "thunk_sequence.txt",
}
_ENTRY = re.compile(rb"\.visible\s+\.entry\s+([\w$.]+)")
_NOISE = re.compile(r", (?:sharding|frontend_attributes|backend_config)=\{.*$|, metadata=\{[^}]*\}")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls)=%([\w.\-]+)")


def distil(raw: Path, folder: Path) -> None:
    """Write a distilled folder: kernels' PTX, `hlo.txt`, `assignment.txt`, `thunks.txt`."""
    texts = {name: _only(raw, end).read_text("utf-8") for name, end in _RAW.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / HLO, _hlo(texts[HLO]))
    write_text(folder / ASSIGNMENT, "".join(f"{line}\n" for line in _assignment(texts[ASSIGNMENT])))
    write_text(folder / THUNKS, texts[THUNKS])
    for path in raw.glob("*.ptx"):
        image = path.read_bytes()
        if names := _ENTRY.findall(image):
            write_text(folder / f"{names[0].decode()}.ptx", image.decode())


def _only(folder: Path, end: str) -> Path:
    files = sorted(folder.glob(f"*{end}"))
    if len(files) != 1:
        raise DataError(str(folder), f"has {len(files)} files *{end}, not one")
    return files[0]


def _hlo(text: str) -> str:
    head, *lines = text.splitlines()
    blocks: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in lines:
        if begins := re.match(r"^(ENTRY )?%([\w.\-]+) \(", line):
            name = begins[2]
            entry = name if begins[1] else entry
            blocks[name] = [line]
        elif name:
            blocks[name].append(_line(line))
            name = "" if line == "}" else name
    names, open_ = set[str](), [entry]
    while open_:
        name = open_.pop()
        if name in names or name not in blocks:
            continue
        names.add(name)
        open_ += [
            called
            for line in blocks[name]
            if " fusion(" not in line
            for called in _CALLED.findall(line)
        ]
    head = _NOISE.sub("", re.sub(r", entry_computation_layout=\{.*$", "", head))
    texts = ["\n".join(block) for name, block in blocks.items() if name in names]
    return "\n\n".join([head, *texts, ""])


def _line(line: str) -> str:
    named = re.search(r'deduplicated_name="([^"]+)"', line)
    short = _NOISE.sub("", line)
    return f"{short}, deduplicated_name={named[1]}" if named else short


def _assignment(text: str) -> Iterator[str]:
    is_kept = False
    for line in text.splitlines():
        if line.startswith(("Total", "Used values", "HloLiveRange")):
            return
        if line.startswith("allocation "):
            is_kept = "thread-local" not in line
        if is_kept or line.startswith("BufferAssignment"):
            yield re.sub(r"\): \(.*$", ")", line)
