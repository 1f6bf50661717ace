"""What stands between one trace and two servers: the same weights, the same requests, the swaps."""

from __future__ import annotations

import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from c2c.errors import DataError
from c2c.models import from_hf_config
from c2c.transformer.gguf.file import GgufCheckpoint
from c2c.transformer.gguf.source import GgufSource
from c2c.transformer.weights.random_source import RandomSource
from experiments.bench.decode import write_checkpoint
from experiments.bench.servers.__main__ import main
from experiments.bench.servers.gguf_copy import ARCHITECTURES, write_gguf
from experiments.bench.servers.servers import Request, Swapper
from experiments.bench.servers.traffic import Mix, trace
from tests.transformer.random_checkpoints import config_of

# Streams each prompt's tokens again, after the number in the model's name; ends at "broken".
SERVER = """
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

given = json.loads(sys.argv[2])
assert "broken" not in given["model"]

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        for token in [int(given["model"][-1]), *body["prompt"]]:
            self.wfile.write(b"data: " + json.dumps({"tokens": [token]}).encode() + b"\\n\\n")

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("words of the library", flush=True)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


@pytest.fixture
def swapper(tmp_path: Path) -> Swapper:
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "python"
    python.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        exec {sys.executable} {tmp_path / "server.py"} "$@"
        """)
    )
    python.chmod(0o700)
    models = {name: Path(name) for name in ("model1", "model2", "broken")}
    return Swapper(python, models, tmp_path / "log", slots=2, context=64, threads=1)


def asked(model: str, *ids: int) -> Request:
    return Request(at_s=0.0, model=model, ids=ids, new=4)


@pytest.mark.parametrize("family", ARCHITECTURES)
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


def test_a_swapper_has_one_model_at_a_time_in_order_of_arrival(swapper: Swapper) -> None:
    swapper.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            order = ["model1", "model1", "model2", "model1"]
            found = list(pool.map(lambda name: swapper.ask(asked(name, 5, 7)), order))
        assert [answer.tokens for answer in found] == [(int(n[-1]), 5, 7) for n in order]
        assert all(0.0 < answer.first_s <= answer.last_s for answer in found)
        assert len(swapper.swaps_s) == 3
        with ThreadPoolExecutor(8) as pool:
            names = [f"model{1 + k % 2}" for k in range(16)]
            found = list(pool.map(lambda name: swapper.ask(asked(name, 9)), names))
        assert [answer.tokens for answer in found] == [(int(n[-1]), 9) for n in names]
        assert len(swapper.processes()) == 1
        with pytest.raises(DataError, match="did not load broken"):
            swapper.ask(asked("broken", 1))
    finally:
        swapper.stop()
    assert not swapper.processes()


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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("models=0", "models"),
        ("rate=0", "rate"),
        ("prompt=[9,4]", "prompt"),
        ("shapes=[mixtral-15m]", "shapes"),
        ("peer=nowhere/python", "make peer-server"),
    ],
)
def test_settings_that_cannot_work_are_named(
    wrong: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([wrong]) == 2
    assert said in capsys.readouterr().err
