"""Kernels that compute on a GPU: their PTX says the same to every device, and it assembles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from c2c.errors import DataError
from c2c.systems.program import (
    Access,
    Entry,
    ParameterDeclaration,
    body_of,
    entries_of,
    write_image,
)
from experiments.papers.medusa.synthetic import Shape, random_program

ASSEMBLER = Path(__file__).parents[3] / ".venv-aot" / "nvidia" / "cu13" / "bin" / "ptxas"


def images() -> list[bytes]:
    found = (random_program(Shape(seed=k, is_for_gpu=True)) for k in range(6))
    return list({kernel.image for program in found for kernel in program.kernels})


def test_a_body_changes_nothing_that_is_read_from_an_image() -> None:
    for image in images():
        assert entries_of(write_image(entries_of(image))) == entries_of(image)
        assert b"ld.u32" in image or b"st.u32" in image


def test_what_cannot_be_computed_with_is_refused() -> None:
    entry = Entry("k", (ParameterDeclaration(128, 64),), (Access(0, 0, "map", "r", 8),), False)
    with pytest.raises(DataError, match="cannot compute with"):
        write_image([entry], body_of)


@pytest.mark.slow
def test_the_images_assemble(tmp_path: Path) -> None:
    assembler = str(ASSEMBLER) if ASSEMBLER.exists() else shutil.which("ptxas")
    if assembler is None:
        pytest.skip("ptxas is missing: make aot")
    for k, image in enumerate(images()):
        source = tmp_path / f"{k}.ptx"
        source.write_bytes(image)
        line = [assembler, "-arch=sm_90", "-o", str(tmp_path / f"{k}.cubin"), str(source)]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
