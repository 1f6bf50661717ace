"""This engine beside llama.cpp's server: equal bits, traces, a stand-in for the peer."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from c2c.errors import DataError, SettingError
from c2c.models import from_hf_config
from c2c.transformer import load
from c2c.transformer.gguf.file import GgufCheckpoint
from c2c.transformer.gguf.source import GgufSource
from c2c.transformer.weights.random_source import RandomSource
from experiments.lab.bench import checkpoints
from experiments.lab.bench import llama_cpp as command
from experiments.lab.bench.checkpoints import write_checkpoint
from experiments.lab.bench.live import Answer, Mix, Request, trace
from experiments.lab.bench.llama_cpp import LlamaCpp, write_gguf
from tests.transformer.random_checkpoints import config_of

# Stand for a server: stream each prompt's tokens again, after the number in the model's name.
# It does not come up for "broken".
HTTP = """
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

def serve(model, port, event):
    assert "broken" not in model

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert body["stream"] and body["temperature"] == 0 and body["ignore_eos"]
            self.send_response(200)
            self.end_headers()
            for token in [int(model[-1]), *body["prompt"]]:
                self.wfile.write(b"data: " + json.dumps(event(token)).encode() + b"\\n\\n")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
"""
XLLAMACPP = """
import http_server

class ggml_type:
    GGML_TYPE_F32 = "float32"

class llama_flash_attn_type:
    LLAMA_FLASH_ATTN_TYPE_DISABLED = "off"

class CommonParams:
    def __init__(self):
        self.model, self.cpuparams = type("Model", (), {})(), type("Threads", (), {})()

class Server:
    def __init__(self, params):
        assert params.n_ctx == params.n_parallel * 256
        assert params.cache_type_k == params.cache_type_v == "float32"
        assert params.flash_attn_type == "off"
        port = http_server.serve(params.model.path, 0, lambda token: {"tokens": [token]})
        print("words of the library", flush=True)
        self.listening_address = f"http://127.0.0.1:{port}"
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with a stand-in for the peer's package."""
    (tmp_path / "lib").mkdir()
    for name, text in {"http_server.py": HTTP, "xllamacpp.py": XLLAMACPP}.items():
        (tmp_path / "lib" / name).write_text(text)
    path = tmp_path / "python"
    path.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        PYTHONPATH={tmp_path / "lib"} exec {sys.executable} "$@"
        """)
    )
    path.chmod(0o700)
    return path


def peer(python: Path, *models: str) -> LlamaCpp:
    files = {name: Path(name) for name in models}
    log = python.parent / "log"
    return LlamaCpp(str(python), files, log, slots=2, context=64, threads=1)


@pytest.mark.parametrize("name", checkpoints.SHAPES)
def test_models_are_written_as_checkpoints(name: str, tmp_path: Path) -> None:
    model = load(checkpoints.write_model(name, tmp_path / "model", seed=0))
    assert model.spec.family == checkpoints.SHAPES[name]["model_type"]
    assert model.params.dtype == "float32"
    with pytest.raises(SettingError, match="name='unknown'"):
        checkpoints.write_model("unknown", tmp_path / "third", seed=0)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_both_servers_get_the_same_bits(family: str, tied: bool, tmp_path: Path) -> None:
    config = config_of(family) | {
        "tie_word_embeddings": tied, "vocab_size": 300, "max_position_embeddings": 64,
    }  # fmt: skip
    source = RandomSource(from_hf_config(config, "m"), np.random.default_rng(0))
    folder = write_checkpoint(config, source, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    copy = GgufCheckpoint(write_gguf(folder, tmp_path / "m.gguf"))
    copied = GgufSource(copy)
    assert set(copied.names) == set(tensors)
    for name, values in tensors.items():
        found = np.empty_like(values)
        copied.read(name, found)
        np.testing.assert_array_equal(found, values, err_msg=name)
    was, is_ = (from_hf_config(dict(c), "m") for c in (config, copy.config))
    for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "norm_eps", "rope_theta"):
        assert getattr(is_, field) == pytest.approx(getattr(was, field)), field


def test_each_model_has_a_process_that_answers(python: Path) -> None:
    server = peer(python, "model1", "model2")
    server.start()
    try:
        assert len(server.processes()) == 2
        assert server.cpu_s() > 0.0
        names = [f"model{1 + k % 2}" for k in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(
                    lambda name: server.ask(Request(at_s=0.0, model=name, ids=(9, 7), new=4)), names
                )
            )
        assert [answer.tokens for answer in answers] == [(int(n[-1]), 9, 7) for n in names]
        assert all(0.0 < answer.first_s <= answer.last_s for answer in answers)
    finally:
        server.stop()
    assert not server.processes()


def test_a_model_that_does_not_load_is_named(python: Path) -> None:
    with pytest.raises(DataError, match="did not load broken"):
        peer(python, "broken").start()


def test_a_trace_is_its_settings_and_has_every_kind_of_request() -> None:
    names = ("model0", "model1", "model2")
    mix = Mix(models=names, zipf=1.0, prompt=(4, 9), new=(2, 5), vocab=300)
    requests = trace(mix, 400, 2.0, 0)
    assert requests == trace(mix, 400, 2.0, 0) != trace(mix, 400, 2.0, 1)
    assert [r.at_s for r in requests] == sorted(r.at_s for r in requests)
    assert requests[-1].at_s == pytest.approx(200.0, rel=0.2)
    counts = [sum(r.model == name for r in requests) for name in names]
    assert counts[0] > counts[1] > counts[2] > 0
    assert {len(r.ids) for r in requests} == set(range(4, 10))
    assert {r.new for r in requests} == set(range(2, 6))
    assert max(max(r.ids) for r in requests) < 300
    assert all(r.at_s == 0.0 for r in trace(mix, 5, float("inf"), 0))


class Quoting:
    """Stands for this engine: says what llama.cpp's does, but not of every prompt."""

    name = "engine"

    def __init__(self, *_: object) -> None:
        """Take what the engine takes."""

    def start(self) -> None:
        """Come up."""

    def ask(self, request: Request) -> Answer:
        """Answer."""
        wrong = len(request.ids) > 2
        tokens = (int(request.model[-1]) + wrong, *request.ids)
        return Answer(first_s=1.0, last_s=2.0, tokens=tokens)

    def processes(self) -> Sequence[int]:
        """Return none."""
        return ()

    def cpu_s(self) -> float:
        """Return none."""
        return 0.0

    def stop(self) -> None:
        """Go away."""


def run_beside(
    python: Path, monkeypatch: pytest.MonkeyPatch, engine: type, *, requests: int
) -> tuple[int, Path]:
    """Run two turns of such an engine and the peer's stand-in; return status and folder."""
    monkeypatch.setattr(command, "Engine", engine)
    monkeypatch.setattr(command, "write_models", lambda *_: {f"model{k}": Path() for k in (0, 1)})
    monkeypatch.setattr(command, "write_gguf", lambda _, to: to.with_suffix(""))
    out = python.parent / "out"
    settings = [
        "models=2", f"requests={requests}", "rate=200", "prompt=[2,3]", "new=[4,4]", "repeats=2",
        f"out={out}", f"peer={python}",
    ]  # fmt: skip
    return command.main(settings), out


def test_servers_take_turns_and_texts_are_compared(
    python: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = run_beside(python, monkeypatch, Quoting, requests=12)
    assert status == 0
    rows = json.loads((out / "servers.json").read_text())["rows"]
    assert [row["server"] for row in rows] == ["engine", "llama.cpp"] * 2
    (same,) = {row["equal"] for row in rows[1::2]}
    assert 0 < same < 12
    assert all(row["equal"] == 12 for row in rows[::2])
    assert all(row["memory_mb"] > 5.0 and row["cpu_s"] >= 0.0 for row in rows[1::2])
    table = capsys.readouterr().out
    assert f"{same}/12" in table
    assert "12/12" in table


def test_measurements_stay_if_a_later_turn_fails(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Once(Quoting):
        starts = 0

        def start(self) -> None:
            Once.starts += 1
            if Once.starts > 1:
                raise DataError("engine", "the second start failed")

    status, out = run_beside(python, monkeypatch, Once, requests=4)
    assert status != 0
    rows = json.loads((out / "servers.json").read_text())["rows"]
    assert [row["server"] for row in rows] == ["engine", "llama.cpp"]
    assert not (out / "DONE").exists()
