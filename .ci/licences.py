"""Write docs/licences.md anew: the licence of every locked package, as its own metadata states it.

.venv/bin/python .ci/licences.py
"""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"
# Classifiers and free text by the SPDX name that they stand for.
SPDX = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def licence_of(package: str) -> str:
    """Return the SPDX expression of an installed package, or its classifiers, or its own words.

    Raises:
      PackageNotFoundError: it is not installed.
      ValueError: its metadata states no licence.
    """
    told = metadata(package)
    classes = told.get_all("Classifier") or []
    named = [c.rpartition(" :: ")[2] for c in classes if c.startswith("License ::")]
    stated = [told.get("License-Expression"), " OR ".join(SPDX.get(n, n) for n in named)]
    free = (told.get("License") or "").split("\n")[0]
    found = next((text for text in (*stated, SPDX.get(free, free)) if text), None)
    if found is None:
        raise ValueError(f"{package}: its metadata states no licence")
    return found


def locked() -> list[str]:
    """Return the names of the locked packages."""
    lines = (ROOT / ".ci/constraints/main.txt").read_text("utf-8").splitlines()
    return [m.group() for line in lines if (m := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line))]


def page() -> str:
    """Return the page: licences, and the packages under each."""
    by_licence: dict[str, list[str]] = {}
    for package in locked():
        by_licence.setdefault(licence_of(package), []).append(package)
    ordered = sorted(by_licence.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    rows = [f"| {licence} | {', '.join(packages)} |" for licence, packages in ordered]
    return (
        "# Licences of the dependencies\n\n"
        "c2c is under Apache-2.0. `make env` installs the packages of\n"
        "`.ci/constraints/main.txt`, each under the licence that its metadata states.\n"
        "`.venv/bin/python .ci/licences.py` writes this page.\n"
        "\n"
        "| licence | packages |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
