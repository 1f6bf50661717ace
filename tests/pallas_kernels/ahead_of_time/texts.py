"""Compiled programs, one of each family, kept for tests without the compiler.

python -m tests.pallas_kernels.ahead_of_time.texts    # with the compiler on PYTHONPATH
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

from pallas_kernels.ahead_of_time import TARGETS, Compiler, prepare
from pallas_kernels.ahead_of_time.compiler import Part
from pallas_kernels.ahead_of_time.descriptors import Descriptor
from pallas_kernels.ops import programs

FOLDER = Path(__file__).with_name("kept")
KEPT = {
    "product": ("gemm", "64x64, cluster of 1, bfloat16 out"),
    "cluster": ("gemm", "64x64, cluster of 8, float32 out"),
    "attention": ("attention", "decode llama-3.2-1b batch 1 pages of 16 splits 15"),
    "rows": ("gather_rows", "64 rows of 32000x4096 int8"),
    "send": ("woven", "send float16 16 rows, 2 splits, 3 outstanding"),
}


def kept(name: str) -> Part:
    """Return a kept program; of its machine code, only the instructions that a rule counts."""
    head, _, ptx = gzip.decompress((FOLDER / f"{name}.gz").read_bytes()).decode().partition("\n")
    known = json.loads(head)
    known["maps"] = [
        Descriptor(**{k: tuple(v) if isinstance(v, list) else v for k, v in each.items()})
        for each in known["maps"]
    ]
    return ptx, tuple(known["maps"]), "CCTL.IVALL " * known["invalidated"]


def keep(name: str, ptx: str, table: tuple[Descriptor, ...], code: str) -> None:
    """Write a program's file: PTX without comments and places, descriptors, L1 invalidations."""
    lines = (
        line.partition("//")[0].strip() for line in ptx[ptx.index(".visible .entry") :].splitlines()
    )
    body = "\n".join(x for x in lines if x and not re.match(r"\.loc|\.file|\$L__tmp", x))
    body = body.partition("$L__func_end")[0] + "}\n"
    head = json.dumps({"maps": [asdict(d) for d in table], "invalidated": code.count("CCTL.IVALL")})
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.gz").write_bytes(gzip.compress(f"{head}\n{body}".encode(), mtime=0))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        compiler = Compiler(TARGETS["h200"], Path(folder))
        for name, (op, title) in KEPT.items():
            (program,) = (p for p in programs(op, 132) if p.name == title)
            (part,) = compiler.parts(program)
            keep(name, *part)


if __name__ == "__main__":
    main()
