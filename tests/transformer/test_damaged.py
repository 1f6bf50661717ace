"""Files that nobody should trust: each ends in one line that names file and field."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from c2c.errors import DataError
from c2c.transformer import load
from c2c.transformer.gguf.file import GgufCheckpoint
from c2c.transformer.text.eos import eos_ids
from tests.transformer.random_checkpoints import config_of, tensors_of, write

CONFIG = config_of("llama")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sound"), CONFIG, tensors_of(CONFIG))


@pytest.fixture
def refused(folder: Path, tmp_path: Path) -> Callable[..., None]:
    """Write some files beside sound weights; `load` must name the file and say this."""

    def check(said: str, **files: Any) -> None:
        for file in folder.iterdir():
            if not (tmp_path / file.name).exists():
                os.link(file, tmp_path / file.name)
        for name, content in files.items():
            path = tmp_path / f"{name}.json"
            path.unlink(missing_ok=True)
            path.write_bytes(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )
        with pytest.raises(DataError, match=said) as error:
            load(tmp_path, executables=None)
        assert error.value.source == str(tmp_path / f"{next(iter(files))}.json")

    return check


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": []}, r"dtype=\[\]"),
        ({"dtype": {"a": []}}, r"dtype=\{"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: expected at most 4096"),
        ({"model_type": "falcon"}, "expected one of .*olmo2, phi3, qwen2, qwen2_5_vl, qwen3, "),
        ({"model_type": []}, r"model_type=\[\]: expected one of"),
        ({"rope_parameters": []}, "rope_theta|rope_parameters"),
        ({"eos_token_id": "two"}, "eos_token_id is 'two'"),
        ({"eos_token_id": [1, None]}, r"eos_token_id is \[1, None\]"),
    ],
)
def test_a_config_that_cannot_be(
    changes: dict[str, Any], said: str, refused: Callable[..., None]
) -> None:
    if "rope_parameters" in changes:  # an empty list is no rotary settings at all
        changes = {"rope_parameters": ["yarn"]}
    refused(said, config=CONFIG | changes)


def test_more_layers_than_tensors_are_not_laid_out(folder: Path, tmp_path: Path) -> None:
    write(tmp_path, CONFIG | {"num_hidden_layers": 4000}, tensors_of(CONFIG))
    with pytest.raises(DataError, match="too few for the 4000 layers"):
        load(tmp_path, executables=None)


def test_json_that_cannot_be_read(refused: Callable[..., None]) -> None:
    refused("nested too deeply", config=b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    refused("not UTF-8", config=b'{"model_type": "\xff"}')
    refused("not JSON", config=b"{")
    refused("expected a JSON object", config=[1])


def test_eos_tokens_are_read_from_either_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert eos_ids(tmp_path) == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert eos_ids(tmp_path) == (1, 2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": true}')
    with pytest.raises(DataError, match=r"generation_config.json: eos_token_id is True"):
        eos_ids(tmp_path)


def test_a_directory_in_place_of_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    (tmp_path / "generation_config.json").symlink_to("generation_config.json")  # a loop
    load(tmp_path, executables=None)  # is no file, so nobody reads it
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(DataError, match=r"no model.safetensors"):
        load(tmp_path, executables=None)


def test_a_sparse_array_of_a_gguf_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    key, count = b"tokenizer.ggml.scores", 700_000_000  # float32: 2.8 GB of holes
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key)
        file.write(struct.pack("<IIQ", 9, 6, count))
        file.truncate(file.tell() + 4 * count)
    with pytest.raises(DataError, match=r"sparse.gguf.*scores.*is an array of 700000000"):
        GgufCheckpoint(path)


def test_weights_are_widened_to_what_a_cpu_computes_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, CONFIG | {"dtype": "bfloat16"}, tensors_of(CONFIG))
    assert load(tmp_path, executables=None).params.dtype == "float32"
    monkeypatch.setattr("c2c.transformer.loading.memory_bytes", lambda: 1000)  # no room for that
    assert load(tmp_path, executables=None).params.dtype == "bfloat16"
