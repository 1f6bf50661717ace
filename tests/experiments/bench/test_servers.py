"""The way from one trace to several servers: the same weights and requests, the swaps."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from c2c.engine import Options
from c2c.errors import DataError
from c2c.models import from_hf_config
from c2c.transformer.gguf.file import GgufCheckpoint
from c2c.transformer.gguf.source import GgufSource
from c2c.transformer.weights.random_source import RandomSource
from experiments.bench.decode import write_checkpoint
from experiments.bench.servers import __main__ as command
from experiments.bench.servers import vllm_cpu
from experiments.bench.servers.gguf_copy import ARCHITECTURES, write_gguf
from experiments.bench.servers.hf_transformers import Transformers
from experiments.bench.servers.llama_cpp import LlamaCpp
from experiments.bench.servers.servers import Answer, Request, Server
from experiments.bench.servers.swapper import Given
from experiments.bench.servers.traffic import Mix, trace
from experiments.bench.servers.vllm_cpu import Vllm
from experiments.children import tree
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of

# Stand for a server: stream each prompt's tokens again, after the number in the model's name.
# It does not come up for "broken", and for "gated" once a file of that name is there.
HTTP = """
import json, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

def serve(model, port, event):
    assert "broken" not in model
    while "gated" in model and not Path(model).exists():
        time.sleep(0.01)

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
VLLM = """
import http_server, sys, time

given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
given |= dict(zip(sys.argv[2::2], sys.argv[3::2]))
def event(token):
    return {"choices": [{"token_ids": [token]}]}
assert given["--max-model-len"] == "64" and int(given["--kv-cache-memory-bytes"]) % 256 == 0
while given["--model"].endswith("1") and time.process_time() < 0.5:
    pass  # so that it is seen in the account when it has ended
http_server.serve(given["--model"], int(given["--port"]), event)
time.sleep(600)
"""
TORCH = """
class Tensor(list):
    def flatten(self):
        return self

    def tolist(self):
        return list(self)

def tensor(rows):
    return Tensor(rows)

def ones_like(rows):
    return Tensor([[1] * len(row) for row in rows])

def set_num_threads(threads):
    assert threads == 1
"""
TRANSFORMERS = """
import torch

class logging:
    set_verbosity_error = disable_progress_bar = staticmethod(lambda: None)

class Model:
    here = []

    def __init__(self, folder):
        self.folder = folder
        Model.here.append(folder)

    def eval(self):
        return self

    def __del__(self):
        Model.here.remove(self.folder)

    def generate(self, ids, *, streamer, max_new_tokens, **given):
        assert given == {
            "attention_mask": [[1] * len(ids[0])], "do_sample": False, "repetition_penalty": 1.0,
            "eos_token_id": None, "pad_token_id": 0}
        streamer.put(ids)
        for token in [int(self.folder[-1]), len(Model.here), *ids[0]][:max_new_tokens]:
            streamer.put(torch.Tensor([token]))
        streamer.end()

class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(folder, dtype):
        assert dtype == "float32"
        if "broken" in folder:
            raise OSError("no such checkpoint")
        return Model(folder)
"""


@pytest.fixture
def given(tmp_path: Path) -> Given:
    """A Python that has stand-ins for all peers' packages, and models of theirs."""
    openai = tmp_path / "lib/vllm/entrypoints/openai"
    openai.mkdir(parents=True)
    for name, text in {
        "http_server.py": HTTP, "xllamacpp.py": XLLAMACPP, "torch.py": TORCH,
        "transformers.py": TRANSFORMERS, "vllm/entrypoints/openai/api_server.py": VLLM,
    }.items():  # fmt: skip
        (tmp_path / "lib" / name).write_text(text)
    python = tmp_path / "python"
    python.write_text(
        textwrap.dedent(f"""\
        #!/bin/sh
        PYTHONPATH={tmp_path / "lib"} exec {sys.executable} "$@"
        """)
    )
    python.chmod(0o700)
    names = ("model1", "model2", "model3", "broken", "gated4")
    return Given(
        python=python, models={name: tmp_path / name for name in names}, folder=tmp_path, slots=2,
        context=64, threads=1,
    )  # fmt: skip


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


def asked(model: str, *ids: int) -> Request:
    return Request(at_s=0.0, model=model, ids=ids, new=4)


def tokens_of(server: Server, models: Sequence[str], *ids: int) -> list[tuple[int, ...]]:
    """Ask for each, one after the other is answered."""
    found = [server.ask(asked(model, *ids)) for model in models]
    assert all(0.0 < answer.first_s <= answer.last_s for answer in found)
    return [answer.tokens for answer in found]


def test_a_swapper_has_one_model_at_a_time_in_order_of_arrival(given: Given) -> None:
    swapper = LlamaCpp(given)
    swapper.start()
    try:
        order = ["model1", "model1", "model2", "model1"]
        assert tokens_of(swapper, order, 5, 7) == [(int(name[-1]), 5, 7) for name in order]
        assert len(swapper.swaps_s) == 3
        with ThreadPoolExecutor(8) as pool:
            names = [f"model{1 + k % 2}" for k in range(8)]
            found = list(pool.map(lambda name: swapper.ask(asked(name, 9)), names))
        assert [answer.tokens for answer in found] == [(int(n[-1]), 9) for n in names]
        assert len(swapper.processes()) == 1
        with pytest.raises(DataError, match="did not load broken"):
            swapper.ask(asked("broken", 1))
    finally:
        swapper.stop()
    assert not swapper.processes()


def test_a_swapper_ends_what_was_asked_longest_ago_and_others_go_on(given: Given) -> None:
    swapper = LlamaCpp(replace(given, resident=2))
    swapper.start()
    try:
        tokens_of(swapper, ["model1", "model2", "model1"])
        assert len(swapper.swaps_s) == len(swapper.processes()) == 2
        with ThreadPoolExecutor(1) as pool:
            gated = pool.submit(swapper.ask, asked("gated4", 3))  # takes the place of model2
            while len(swapper.processes()) == 2:
                time.sleep(0.01)
            assert tokens_of(swapper, ["model1"], 8) == [(1, 8)]
            assert not gated.done()
            given.models["gated4"].touch()
            assert gated.result().tokens == (4, 3)
        assert tokens_of(swapper, ["gated4", "model1"]) == [(4,), (1,)]
        assert len(swapper.swaps_s) == 3
        with pytest.raises(DataError, match="did not load broken"):
            swapper.ask(asked("broken", 1))
        assert tokens_of(swapper, ["model2", "model1"]) == [(2,), (1,)]
    finally:
        swapper.stop()


@pytest.mark.parametrize("resident", [1, 2])
def test_transformers_loads_what_is_asked_for(resident: int, given: Given) -> None:
    server = Transformers(replace(given, resident=resident))
    server.start()
    try:
        order = ["model1", "model1", "model2", "model1", "model3", "model1", "model2"]
        here = [1, 1, *[resident] * 5]
        found = tokens_of(server, order, 5, 7)
        assert found == [(int(n[-1]), h, 5, 7) for n, h in zip(order, here, strict=True)]
        assert len(server.swaps_s) == {1: 6, 2: 4}[resident]
        assert tokens_of(server, ["model2"], 1, 2, 3, 4, 5) == [(2, resident, 1, 2)]  # `new`
        with pytest.raises(DataError, match="broken was not loaded: no such checkpoint"):
            server.ask(asked("broken", 1))
        assert len(server.processes()) == 1
    finally:
        server.stop()
    assert not server.processes()


@pytest.mark.parametrize("fit", tiered([1, 2, 3], 2))
def test_vllm_has_a_process_a_model_as_many_as_fit(
    fit: int, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RandomSource(from_hf_config(config_of("llama"), "m"), np.random.default_rng(0))
    names = ("model1", "model2", "model3")
    for name in names:
        write_checkpoint(config_of("llama"), source, given.models[name])
    room = iter([*[1e9] * (fit - 1), 0.0])
    monkeypatch.setattr(vllm_cpu, "_available_mb", lambda: next(room))
    server = Vllm(replace(given, models={name: given.models[name] for name in names}))
    try:
        server.start()
        assert len(server.processes()) == fit
        assert not server.swaps_s
        order = ["model1", "model2", "model3", "model1"]
        used_s = [server.cpu_s()]
        for name in order:
            assert tokens_of(server, [name], 5) == [(int(name[-1]), 5)]
            used_s.append(server.cpu_s())
        assert used_s == sorted(used_s)  # though processes end
        assert len(server.swaps_s) == {1: 3, 2: 2, 3: 0}[fit]
        assert len(server.processes()) == fit
        started = tree(server.processes())
        assert len(started) == 2 * fit  # with its own server
    finally:
        server.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


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
    swaps_s = ()

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


def beside_llama_cpp(
    given: Given, monkeypatch: pytest.MonkeyPatch, engine: type, *, requests: int
) -> tuple[list[str], Path]:
    """Settings and folder of a run of two turns of such an engine and llama.cpp's stand-in."""
    monkeypatch.setattr(command, "Engine", engine)
    monkeypatch.setattr(command, "write_models", lambda *_: {f"model{k}": Path() for k in (0, 1)})
    monkeypatch.setattr(
        "experiments.bench.servers.peers.write_gguf", lambda _, to: to.with_suffix("")
    )
    out = given.folder / "out"
    settings = [
        "models=2", f"requests={requests}", "rate=200", "prompt=[2,3]", "new=[4,4]", "repeats=2",
        f"out={out}", f"llama_cpp={given.python}", "transformers=nowhere", "vllm=nowhere",
    ]  # fmt: skip
    return settings, out


def test_peers_that_are_installed_take_turns_and_texts_are_compared(
    given: Given, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, out = beside_llama_cpp(given, monkeypatch, Quoting, requests=12)
    assert command.main(settings) == 0
    result = json.loads((out / "servers.json").read_text())
    assert result["settings"]["peers"] == ["llama.cpp"]
    rows = result["rows"]
    assert [row["server"] for row in rows] == ["engine", "llama.cpp"] * 2
    equal = {row["equal"] for row in rows if row["server"] == "llama.cpp"}
    assert len(equal) == 1
    assert 0 < (same := equal.pop()) < 12
    assert all(row["equal"] == 12 for row in rows if row["server"] == "engine")
    assert all(row["swaps"] >= 2 and row["swap_p50_s"] > 0.0 for row in rows[1::2])
    assert all(row["memory_mb"] > 5.0 and row["cpu_s"] > 0.0 for row in rows[1::2])
    table = capsys.readouterr().out
    assert f"{same}/12" in table
    assert "12/12" in table


def test_what_was_measured_stays_when_a_later_turn_fails(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Once(Quoting):
        starts = 0

        def start(self) -> None:
            Once.starts += 1
            if Once.starts > 1:
                raise DataError("engine", "the second start failed")

    settings, out = beside_llama_cpp(given, monkeypatch, Once, requests=4)
    assert command.main(settings) != 0
    rows = json.loads((out / "servers.json").read_text())["rows"]
    assert [row["server"] for row in rows] == ["engine", "llama.cpp"]
    assert not (out / "DONE").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("models=0", "models"),
        ("rate=0", "rate"),
        ("prompt=[9,4]", "prompt"),
        ("shapes=[mixtral-15m]", "shapes"),
        ("peers=[ollama]", "llama.cpp, transformers, vllm"),
        ("peers=[llama.cpp] llama_cpp=nowhere/python", "make peer-server"),
        ("peers=[transformers] transformers=nowhere/python", "make peer."),
        ("peers=[vllm] vllm=nowhere/python", "make peer-vllm"),
        ("llama_cpp=nowhere transformers=nowhere vllm=nowhere", "make peer-vllm"),
    ],
)
def test_settings_that_cannot_work_are_named(
    wrong: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(wrong.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_the_engine_takes_any_number_of_slots(slots: int) -> None:
    rows = command._rows(command.ServersSettings(slots=slots))
    assert Options(rows=tuple(rows)).rows[-1] == slots
