"""Models of a folder, and their names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from c2c.engine import find_models
from c2c.errors import SettingError
from tests.transformer.random_checkpoints import config_of

CONFIG = json.dumps(config_of("llama"))


def checkpoint(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(CONFIG)
    return path


def cached(folder: Path, *commits: str, main: str | None = None) -> Path:
    """A repository in Hugging Face's cache: snapshots link to blobs, the last one is the newest."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "1234").write_text(CONFIG)
    for age, commit in enumerate(commits):
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to("../../blobs/1234")
        os.utime(snapshot, (age, age))
    if main is not None:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(main)
    return folder


def found(catalog: Path) -> tuple[dict[str, Path], list[str]]:
    notes: list[str] = []
    entries = find_models(catalog, notes.append)
    return {entry.name: entry.path for entry in entries}, notes


def test_a_cache_of_hugging_face_has_models_by_organisation(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    one = cached(hub / "models--org--one", "aaa", "bbb", main="aaa\n")
    two = cached(hub / "models--org--a--b", "ccc", "ddd")
    cached(hub / "models--plain", "eee", main="gone")
    (hub / "models--org--half" / "snapshots" / "fff").mkdir(parents=True)
    (hub / "datasets--org--x" / "snapshots" / "ggg").mkdir(parents=True)
    (hub / ".locks" / "models--org--one").mkdir(parents=True)
    (hub / "version.txt").write_text("1")
    models, notes = found(hub)
    assert models == {
        "org/a--b": two / "snapshots" / "ddd",
        "org/one": one / "snapshots" / "aaa",
        "plain": hub / "models--plain" / "snapshots" / "eee",
    }
    assert len(notes) == 1
    assert "models--org--half" in notes[0]
    assert "datasets--org--x" in notes[0]
    for whole in (tmp_path, hub):  # the cache's own folder has it one level deeper
        assert found(whole)[0].keys() == models.keys()
    for own in (one, one / "snapshots", one / "snapshots" / "aaa"):
        assert found(own) == ({"org/one": one / "snapshots" / "aaa"}, [])


def test_a_gguf_file_of_a_cache_has_the_repositorys_name(tmp_path: Path) -> None:
    snapshot = cached(tmp_path / "models--org--one-GGUF", "aaa") / "snapshots" / "aaa"
    (snapshot / "config.json").unlink()
    (snapshot / "Q8.gguf").symlink_to("../../blobs/1234")
    assert found(tmp_path)[0] == {"org/one-GGUF": snapshot / "Q8.gguf"}


def test_folders_of_organisations_are_part_of_the_name(tmp_path: Path) -> None:
    expected = {
        "one": checkpoint(tmp_path / "one"),
        "org/one": checkpoint(tmp_path / "org" / "one"),
        "org/two": checkpoint(tmp_path / "org" / "two"),
    }
    (tmp_path / "org" / "notes").mkdir()
    (tmp_path / "notes" / "of").mkdir(parents=True)
    checkpoint(tmp_path / "too" / "deep" / "one")
    models, notes = found(tmp_path)
    assert models == expected
    assert notes == ["no usable checkpoint in notes, org/notes, too"]


def test_many_folders_without_a_checkpoint_are_one_line(tmp_path: Path) -> None:
    checkpoint(tmp_path / "one")
    for k in range(30):
        (tmp_path / f"x{k:02}").mkdir()
    _, notes = found(tmp_path)
    assert notes[0].endswith("x06, x07 and 22 more")


def test_names_are_one_models_and_can_be_written(tmp_path: Path) -> None:
    checkpoint(tmp_path / "org" / "one")
    checkpoint(tmp_path / os.fsdecode(b"latin\xe9"))
    assert found(tmp_path)[0].keys() == {"org/one"}
    assert "latin\\udce9" in found(tmp_path)[1][0]
    cached(tmp_path / "models--org--one", "aaa")
    with pytest.raises(SettingError, match="are both org/one"):
        find_models(tmp_path)
    for name in ("models--org--one", "org"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(SettingError, match="a folder with checkpoints"):
        find_models(tmp_path)


def test_a_link_is_named_as_it_is_called(tmp_path: Path) -> None:
    checkpoint(tmp_path / "models" / "v3")
    (tmp_path / "models" / "current").symlink_to("v3")
    assert found(tmp_path / "models" / "current")[0].keys() == {"current"}
    assert found(tmp_path / "models")[0].keys() == {"current", "v3"}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "out").symlink_to("../models/v3")
    with pytest.raises(SettingError, match="it leads to"):
        find_models(tmp_path / "elsewhere")
