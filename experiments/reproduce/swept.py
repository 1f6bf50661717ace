"""Summary of `c2c reproduce -m`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from c2c.runs import atomic_file

__all__ = ["print_sweep"]


def print_sweep(points: Sequence[tuple[Sequence[str], Path]]) -> None:
    """Print a line a figure and point; write all points' tables."""
    digest = hashlib.sha256(repr(sorted(p.name for _, p in points)).encode()).hexdigest()[:8]
    out = points[0][1].parent / f"sweep_{digest}"
    out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[pa.Table]] = {}
    for overrides, folder in points:
        settings = dict(one.lstrip("+").partition("=")[::2] for one in overrides)
        point = " ".join(f"{key.removeprefix('experiment.')}={v}" for key, v in settings.items())
        for file in sorted(folder.glob("*/figure.json")):
            name = file.parent.name
            print(f"{point}  {name}: {json.loads(file.read_text('utf-8'))['finding']}")
            for path in sorted(file.parent.glob("*.parquet")):
                table = pq.read_table(path)
                for key, value in reversed(settings.items()):
                    table = table.add_column(0, key, pa.array([value] * table.num_rows))
                tables.setdefault(f"{name}.{path.stem}", []).append(table)
    for name, parts in tables.items():
        with atomic_file(out / f"{name}.parquet") as target:
            pq.write_table(pa.concat_tables(parts, promote_options="permissive"), target)
    print(f"tables of all points: {out}")
