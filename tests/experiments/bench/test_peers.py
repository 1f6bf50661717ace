"""Another simulator beside this one: equal costs, one list of requests, and what is missing."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from c2c.cost import step_time
from c2c.serving import prepare
from experiments.bench import simulator
from experiments.bench.peers.case import CONTEXT, TokenBudget, read_trace, serving, write_trace
from experiments.bench.peers.fleet_sim_costs import COSTS, write_costs
from experiments.bench.peers.vidur_costs import GRANULARITY, write_predictions

PYTHON = Path(__file__).parents[3] / ".venv-peer-simulator/bin/python"
CHUNK, BATCH = 128, 16
LAYERS = 32


def _predictions(folder: Path) -> dict[str, dict[tuple[int, ...], float]]:
    found = {}
    for path in folder.glob("compute/*.csv.xz"):
        with lzma.open(path, "rt") as file:
            rows = np.loadtxt(file, delimiter=",", skiprows=1)
        found[path.name.split(".")[0]] = {
            tuple(int(x) for x in row[:-1]): float(row[-1]) for row in rows
        }
    return found


def test_predictions_add_up_to_our_steps(tmp_path: Path) -> None:
    ((table,),) = prepare(serving(CHUNK, BATCH)).tables
    write_predictions(tmp_path, table, layers=LAYERS, chunk=CHUNK, max_batch=BATCH, context=CONTEXT)
    found = _predictions(tmp_path)
    assert (tmp_path / "network").is_dir()

    def theirs_s(*, decodes: int, cache: int, chunk: int, after: int) -> float:
        tokens = -(-(decodes + chunk) // 8) * 8
        a_layer_ms = sum(each[tokens,] for name, each in found.items() if "attn_" not in name[:5])
        a_layer_ms += sum(
            found[name][tokens,] for name in ("attn_pre_proj", "attn_post_proj", "attn_rope")
        )
        if decodes:
            a_layer_ms += found["attn_decode"][decodes, cache]
        if chunk:
            a_layer_ms += found["attn_prefill"][after, chunk]
        return 1e-3 * LAYERS * a_layer_ms

    # Sixteen decodes, 640 cached tokens each, alone and beside a chunk that follows 256 tokens.
    alone = step_time(table, decode_seqs=16, decode_kv_tokens=16 * 640, head_rows=16)
    assert theirs_s(decodes=16, cache=640, chunk=0, after=0) == pytest.approx(alone.seconds)
    mixed = step_time(
        table, prefill_tokens=96, context_tokens=256, decode_seqs=16, decode_kv_tokens=16 * 640,
        head_rows=16,
    )  # fmt: skip
    seconds = theirs_s(decodes=16, cache=640, chunk=96, after=352)
    assert seconds == pytest.approx(mixed.seconds)
    assert seconds > alone.seconds
    # What Vidur rounds up to is there, to the last token of the longest request.
    assert (BATCH, -(-CONTEXT // GRANULARITY) * GRANULARITY) in found["attn_decode"]
    assert (CONTEXT, CHUNK) in found["attn_prefill"]


def test_a_profile_of_the_fleet_simulator_is_our_steps(tmp_path: Path) -> None:
    ((table,),) = prepare(serving(CHUNK, BATCH)).tables
    write_costs(tmp_path, table, chunk=CHUNK, max_batch=BATCH, context=CONTEXT)
    found = np.load(tmp_path / COSTS)
    decodes = step_time(table, decode_seqs=16, decode_kv_tokens=16 * 640, head_rows=16)
    assert found["decode"][16, 640 // GRANULARITY] == pytest.approx(decodes.seconds)
    chunk = step_time(table, prefill_tokens=CHUNK, context_tokens=256, head_rows=1)
    assert found["prefill"][256 // GRANULARITY] == pytest.approx(chunk.seconds)
    mixed = step_time(
        table, prefill_tokens=CHUNK - 4, context_tokens=256, decode_seqs=4,
        decode_kv_tokens=4 * 640, head_rows=4,
    )  # fmt: skip
    theirs = found["prefill"][256 // GRANULARITY] + found["attention"][4, 640 // GRANULARITY]
    assert theirs == pytest.approx(mixed.seconds, rel=0.02)  # the chunk is never cut for decodes


def test_both_read_the_same_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    write_trace(path, requests=200, rate_rps=5.0, seed=3)
    (block,) = read_trace(path).blocks()
    assert len(block) == 200
    assert (block.prompt_tokens + block.output_tokens <= CONTEXT).all()
    assert block.arrival_s[-1] == pytest.approx(200 / 5.0, rel=0.3)
    head, first, *_ = path.read_text("utf-8").splitlines()
    assert head.replace('"', "").split(",") == [
        "Date", "Time", "PromptTokenCount", "CompletionTokenCount",
    ]  # fmt: skip
    assert float(first.split(",")[1]) == block.arrival_s[0]


def test_decodes_are_among_a_steps_tokens() -> None:
    from c2c.policies.chunk import chunk_tokens

    assert chunk_tokens(TokenBudget(512), 2048, 10_000, 100) == 412


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("peer=mine", "peer='mine': expected vidur or vllm-sr-sim"),
        ("chunk=128", "chunk=128: expected more tokens than max_batch (128)"),
        ("turns=0", "turns=0: expected a whole number, at least 1"),
        ("rate_rps=0", "rate_rps=0.0: expected a number above 0"),
    ],
)
def test_bad_settings_are_one_line(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulator.main(["peer=vidur", argument]) == 2
    assert message in capsys.readouterr().err


def test_without_the_environment_the_reason_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench"
    settings = ["requests=50", "turns=1", "python=nowhere/python", f"out={out}"]
    assert simulator.main(["peer=vidur", *settings]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "vidur skipped: nowhere/python does not exist; `make peer-simulator` makes it" in told
    found = json.loads((out / "peer_simulator.json").read_text("utf-8"))
    assert list(found["skipped"]) == ["vidur"]
    assert list(found["simulators"]) == ["ours"]
    assert found["simulators"]["ours"]["tpot_p50_s"] > 0
    assert "ratio" not in found


def test_the_fleet_simulator_takes_a_step_alone_as_we_do(tmp_path: Path) -> None:
    """Requests that meet no other: its times are sums of ours, and its chunks always whole."""
    if not PYTHON.is_file():
        pytest.skip("no .venv-peer-simulator: make peer-simulator makes it")
    out = tmp_path / "bench"
    settings = ["requests=100", "rate_rps=0.01", "max_batch=24", "chunk=96", "turns=1"]
    assert simulator.main(["peer=vllm-sr-sim", *settings, f"python={PYTHON}", f"out={out}"]) == 0
    found = json.loads((out / "peer_simulator.json").read_text("utf-8"))
    assert found["simulators"]["vllm-sr-sim"]["requests_per_s"] > 0
    assert found["ratio"]["tpot_p50_s"] == pytest.approx(1.0, abs=0.03)
    assert 0.7 < found["ratio"]["ttft_p50_s"] <= 1.0


def test_vidur_gives_the_same_times(tmp_path: Path) -> None:
    """A chunk that binds and a batch that is full: the two schedules must be one."""
    if not PYTHON.is_file():
        pytest.skip("no .venv-peer-simulator: make peer-simulator makes it")
    out = tmp_path / "bench"
    settings = ["requests=300", "rate_rps=6", "max_batch=24", "chunk=96", "turns=1"]
    assert simulator.main(["peer=vidur", *settings, f"python={PYTHON}", f"out={out}"]) == 0
    found = json.loads((out / "peer_simulator.json").read_text("utf-8"))
    assert found["simulators"]["vidur"]["restarts"] == 0
    assert found["simulators"]["vidur"]["requests_per_s"] > 0
    for name in ("tpot_p50_s", "tpot_p99_s", "ttft_p50_s", "ttft_p99_s"):
        assert found["ratio"][name] == pytest.approx(1.0, abs=0.1), name
    assert (out / "provenance.json").is_file()
