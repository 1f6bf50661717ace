"""`c2c estimate`: one line asks, and each number has the error of measured runs beside it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from c2c.config import build, load, simulate
from experiments.estimate import main
from experiments.names import chip_of, model_of
from experiments.near_runs import UNKNOWN, error_line, nearest, read_errors
from experiments.plain_engine import Load


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def number(text: str, name: str) -> float:
    found = re.search(rf"^  {name} +([0-9.]+)", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_a_question_near_measured_runs_has_their_errors(capsys: pytest.CaptureFixture[str]) -> None:
    # measured: 16.5 ms a token (Llama-3.1-70B in fp8 on two H100 under vLLM, four clients: 17.4)
    text = answer(
        capsys, "model=meta-llama/Llama-3.1-70B-Instruct", "chip=h100", "tp=2", "engine=vllm-0.11",
        "precision=fp8", "isl=1024", "osl=1024", "clients=4",
    )  # fmt: skip
    assert number(text, "TPOT") == pytest.approx(17.4, rel=0.1)
    assert text.count("measured runs are near: median") == 3
    assert "vLLM 0.11.0" in text
    assert "USD" in text
    assert "binds: HBM" in text


def test_a_question_far_from_all_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "model=llama-3.1-8b", "chip=l40s", "isl=64", "osl=16", "precision=int4")
    assert text.count(UNKNOWN) == 3


def test_a_rate_serves_what_arrives_and_a_checkpoint_is_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    text = answer(capsys, f"model={tmp_path}", "chip=h200", "rate=4", "isl=512", "osl=100")
    assert " fp8 (" in text
    assert number(text, "output") == pytest.approx(4 * 90, rel=0.01)
    text = answer(capsys, "rate=30")  # H100 serves some 25
    assert "overload: about 24.1 of 30 requests/s are served" in text
    assert number(answer(capsys, "rate=20"), "output") == pytest.approx(20 * 230, rel=0.01)


def test_nearest_runs_are_held_out_and_within_a_factor_of_two() -> None:
    errors, load = read_errors(), Load(isl=1024, osl=1024, clients=16)
    near = nearest(errors, chip="b200", kind="dense", precision="fp8", tp=4, load=load)
    assert near.runs
    for run in near.runs:
        assert run.held_out
        assert (run.chip, run.kind, run.precision) == ("b200", "dense", "fp8")
        assert 2 <= run.tp <= 8
        assert 8 <= run.clients <= 32
    fitted = [replace(e, held_out=False) for e in errors]
    assert not nearest(
        fitted, chip="b200", kind="dense", precision="fp8", tp=4, load=load
    ).runs  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape"),
    [("meta-llama/Llama-3.1-8B-Instruct", 32), ("llama-3.3-70b", 80), ("DeepSeek-R1", 61),
     ("openai/gpt-oss-120b", 36), ("Qwen/Qwen3-32B", 64), ("mistralai/Mixtral-8x7B-v0.1", 32)],
)  # fmt: skip
def test_names_that_people_type(name: str, shape: int) -> None:
    spec = model_of(name)
    assert spec is not None
    assert spec.layers == shape


def test_chips_by_their_short_names() -> None:
    assert [chip_of(n) for n in ("h200", "H100", "A100", "gh200", "B200", "RTX PRO 6000")] == [
        "h200_pcie5", "h100_sxm", "a100_80", "gh200", "b200", "rtx_pro_6000",
    ]  # fmt: skip
    assert chip_of("tpu_v9") is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("system=dedicated", "hardware=h100_sxm", "catalog.models=[{spec: llama-3-8b}]"),
         r"TTFT: \d+ measured runs are near: .*; TPOT: \d+ measured .* on h100_sxm; lengths"),
        (("system=serverlessllm", "hardware=h100_sxm", "mig=1x80gb", "catalog=dense6"),
         r"^TPOT: \d+ measured runs are near: median \d+ %"),
        (("system=c2cserve",), r"expect 25 % \(weights outside HBM\)$"),
        (("system=mig_resident", "mig=3x24gb"), r"expect 25 % \(slices\)$"),
        (("system=dedicated", "mig=1x96gb", "catalog.models=[{spec: llama-3-8b}]",
          "workload.prompt_tokens=9"), r"expect 25 % \(llama-3-8b, 9 \+ 1000 tokens\)$"),
    ],
)  # fmt: skip
def test_a_simulation_has_the_error_of_near_runs(settings: tuple[str, ...], said: str) -> None:
    setup = build(load([
        "workload=poisson", "workload.requests=20", "workload.lengths=fixed",
        "workload.prompt_tokens=1000", "workload.output_tokens=1000", "system.check_slo=false",
        *settings,
    ]))  # fmt: skip
    line = error_line(setup.serving, simulate(setup).summary)
    assert re.search(said, line), line


def test_numbers_of_other_chips_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    own = answer(capsys, "model=llama-3.1-8b", "chip=h100", "tp=2", "isl=64", "osl=16")
    assert "constants for h100_sxm from other chips: copies and HybridGEMM" in own
    assert "all-reduces" not in own
    other = answer(capsys, "model=llama-3.1-8b", "chip=b300", "tp=2", "isl=64", "osl=16")
    assert "GEMMs, attention of gb200" in other
    assert "experts of the median of measured chips" in other
    assert "all-reduces for b300 from another chip: b200" in other
