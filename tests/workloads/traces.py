"""Traces that tests write, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from c2c.workloads import Workload, build_workload, concatenate

__all__ = ["CATALOG", "build", "columns", "json_lines", "stored"]

CATALOG = ("small", "large")


def stored(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    return stored(path, "".join(json.dumps(row) + "\n" for row in rows))


def build(path: Path, models: tuple[str, ...] = CATALOG, **said: Any) -> Workload:
    return build_workload({"kind": "trace", "path": str(path), **said}, models, 0)


def columns(workload: Workload) -> tuple[list[float], list[int], list[int], list[int]]:
    block = concatenate(workload.blocks())
    return (
        block.arrival_s.tolist(), block.model.tolist(), block.prompt_tokens.tolist(),
        block.output_tokens.tolist(),
    )  # fmt: skip
