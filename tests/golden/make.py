"""Golden records, written anew by `python -m tests.golden.make [--check]` from the checkout."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.cases import CASES, records

FILE = Path(__file__).parent / "records.npz"


def kept() -> dict[str, Any]:
    """Return the golden records of each case."""
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def main(arguments: list[str]) -> int:
    """Write or check to the byte, which holds on one machine; return the exit status.

    The records stand for decisions taken on purpose: a commit that writes them anew says why.
    """
    made = {name: np.asarray(records(name, compiled=True)) for name in CASES}
    if "--check" in arguments:
        status = 0
        for name, golden in kept().items():
            differing = [
                f for f in golden.dtype.names if golden[f].tobytes() != made[name][f].tobytes()
            ]
            print(f"{name}: {'equal' if not differing else 'differs in ' + ', '.join(differing)}")
            status |= bool(differing)
        return status
    # A fixed date in the archive: equal records give equal bytes.
    with zipfile.ZipFile(FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, table in made.items():
            buffer = io.BytesIO()
            np.save(buffer, table)
            archive.writestr(
                zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
