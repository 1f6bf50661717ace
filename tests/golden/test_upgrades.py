"""Folders of earlier versions are read, those of later ones are refused by their version."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from c2c.errors import DataError
from c2c.runs import RunDir, collect
from c2c.systems.medusa import read_artefact
from c2c.systems.medusa.container import VERSION
from experiments.command import in_one_line
from pallas_kernels.repository import Repository
from tests.golden.upgrades.make import HERE, program
from tests.systems.medusa.cases import made

VERSIONS = sorted(folder.name for folder in HERE.iterdir() if folder.name.isdigit())


@pytest.fixture(params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a version wrote, this user's own as a store has to be."""
    folder = shutil.copytree(HERE / request.param, tmp_path / "written")
    for path in (folder / "executables", *(folder / "executables").iterdir()):
        path.chmod(0o700)
    return folder


def test_a_run_is_collected(written: Path) -> None:
    (row,) = collect(written / "run").to_pylist()
    requests = pq.read_table(written / "run/requests.parquet")
    ttft_s = pc.subtract(requests["first_token_s"], requests["arrival_s"]).to_numpy()
    assert (row["status"], row["requests"]) == ("complete", len(requests))
    assert row["ttft_p50_s"] == pytest.approx(np.median(ttft_s), rel=1e-6)


def _changed(done: Path, number: object) -> None:
    done.write_text(json.dumps(json.loads(done.read_text()) | {"format": number}))


def _reopen(folder: Path) -> object:
    return RunDir.open(folder, {"a": 1}, overwrite=True)


@pytest.mark.parametrize("use", [collect, _reopen])
@pytest.mark.parametrize("number", [2, "x\n" * 99, None])
def test_a_run_of_another_version_is_refused_and_stays(
    written: Path, use: Callable[[Path], object], number: object
) -> None:
    folder = written / "run"
    _changed(folder / "DONE", number)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DataError) as error:
        use(folder)
    said = in_one_line(error.value)
    assert said is not None
    assert f"a run folder of format {number}"[:30].split("\n")[0] in said
    assert said.endswith("this version reads format 1.")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_from_before_formats_had_numbers_is_of_the_first(written: Path) -> None:
    done = json.loads((written / "run/DONE").read_text())
    del done["format"]
    (written / "run/DONE").write_text(json.dumps(done))
    assert collect(written / "run")["status"].to_pylist() == ["complete"]


def test_an_artefact_is_read_or_refused_by_its_version(written: Path) -> None:
    path = written / "artefact.medusa"
    assert read_artefact(path) == made().artefact
    raw = bytearray(path.read_bytes())
    raw[10:12] = struct.pack("<H", VERSION + 1)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"version: {VERSION + 1}, this code reads {VERSION}"):
        read_artefact(path)


@pytest.mark.filterwarnings("ignore::pallas_kernels.repository.RepositoryWarning")
def test_a_store_is_read_or_made_anew(written: Path) -> None:
    store = Repository(written / "executables")
    (file,) = store.folder.glob("golden-*.json")  # another jax or processor adds one of its own
    (entry,) = store.entries()
    assert entry.identity.op == "golden"
    run = store.get(program(), jax.devices()[0])  # loaded by the same jax, else compiled anew
    assert np.asarray(run(jax.numpy.ones(4, "float32"))).tolist() == [-1.0] * 4
    _changed(file, 99)
    assert entry not in store.entries()  # of another format
