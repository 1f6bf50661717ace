"""The tuner on a CPU: what it tries, checks, keeps and leaves to a second run; who reads it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels import KernelUnavailable, tuned_results
from pallas_kernels.gemm import (
    MACHINES,
    MODEL_PROJECTIONS,
    ROWS,
    Config,
    Gemm,
    choice,
    choose,
    explain,
    machine_for,
    plans,
    predict,
)
from pallas_kernels.tuning import DeviceLostError, candidates, cli, problems, tune
from pallas_kernels.tuning import tuner as under_test
from pallas_kernels.tuning.launching import operands, wrong
from pallas_kernels.tuning.timing import interleaved
from tests.pallas_kernels.interpreting import within
from tests.tiers import tiered

GEMM = Gemm(m=72, k=128, n=192)
FOUR = replace(MACHINES["NVIDIA H200"], device="Test GPU", sm_count=4)
H200 = MACHINES["NVIDIA H200"]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tuned_results, "folders", lambda: (tmp_path,))
    return tmp_path


def run(*gemms: Gemm, **options: Any) -> under_test.Summary:
    defaults: dict[str, Any] = {
        "machine": FOUR,
        "backend": "reference",
        "top": 4,
        "repeats": 2,
        "say": lambda line: None,
    }
    return tune(gemms or (GEMM,), **(defaults | options))


def stored() -> tuned_results.Tuned:
    return tuned_results.load(FOUR.device)


def keys() -> list[tuple[int, int, int]]:
    return [tuple(entry.key[name] for name in "mkn") for entry in stored().entries]  # type: ignore[misc]


# what is tried


def test_every_projection_is_a_problem_once() -> None:
    found = problems()
    shapes = {shape for model in MODEL_PROJECTIONS.values() for shape in model}
    assert {(g.k, g.n) for g in found} == shapes
    heights = {max(8, m) for m in ROWS}
    assert len(found) == len(set(found)) == len(shapes) * len(heights)
    assert problems(shapes=[(64, 128)], rows=(1, 8, 9)) == (
        Gemm(m=8, k=64, n=128),
        Gemm(m=16, k=64, n=128),
    )
    with pytest.raises(ValueError, match="model='gpt': expected one of"):
        problems(["gpt"])


@pytest.mark.parametrize("m", [8, 512, 10240])
@pytest.mark.parametrize("top", tiered([1, 3, 8], 3))
def test_pruning_keeps_the_best_and_every_dataflow(m: int, top: int) -> None:
    gemm = Gemm(m=m, k=4096, n=16384)
    found = candidates(gemm, H200, top=top)
    assert len(found) == len(set(found)) == top
    everything = candidates(gemm, H200, top=10_000)
    staggered = [one.predicted_s for one in found if one.config.stagger]
    assert min(staggered) == min(one.predicted_s for one in everything)
    assert [one.predicted_s for one in found] == sorted(one.predicted_s for one in found)
    if top >= 3:
        assert {0.0, 1.0} < {one.alpha for one in found}
    if top == 8:
        assert {one.config.stagger for one in found} == {True, False}
    for one in found:
        expected = predict(gemm, one.config, plans(gemm, one.config, one.alpha), H200)
        assert one.predicted_s == float(expected.time_s)


def test_pruning_keeps_to_the_clusters_asked_for() -> None:
    found = candidates(Gemm(m=2048, k=4096, n=16384), H200, top=6, clusters=(2, 4))
    assert {one.config.cluster for one in found} <= {2, 4}
    with pytest.raises(ValueError, match=r"clusters=\(8,\): expected one that 4 SMs hold"):
        candidates(GEMM, FOUR, clusters=(8,))
    with pytest.raises(ValueError, match="top=0"):
        candidates(GEMM, FOUR, top=0)


# what a run keeps


def test_a_run_is_kept_and_a_second_one_has_nothing_to_do(own_folder: Path) -> None:
    lines: list[str] = []
    gemms = (GEMM, Gemm(m=8, k=128, n=192, w_layout="nk"))
    done = run(*gemms, say=lines.append)
    assert (done.measured, done.failed, done.skipped, done.left) == (8, 0, 0, 0)
    assert done.path == own_folder / "test_gpu.json"
    assert "M 72 K 128 N 192 bfloat16: " in lines[0]
    assert "best of 4" in lines[0]
    for entry in stored().entries:
        assert len(entry.measurements) == 4
        assert all(one.time_s and one.repeats == 2 for one in entry.measurements)
        assert entry.provenance["backend"] == "reference"
        assert set(entry.provenance) >= {"jax", "jaxlib", "driver", "device", "date"}
    assert "link_gbps" not in stored().machine  # nothing was measured of a GPU
    before = done.path.read_bytes()
    again = run(*gemms)
    assert (again.measured, again.skipped) == (0, 2)
    assert done.path.read_bytes() == before


def test_the_kernel_itself_runs_in_the_tuner() -> None:
    done = within(lambda: run(Gemm(m=8, k=128, n=128), backend="interpret", top=3, repeats=1))
    assert (done.measured, done.failed) == (3, 0)


def test_a_time_limit_leaves_problems_to_the_next_run() -> None:
    ticks = iter(range(10**6))

    def clock() -> float:
        return float(next(ticks))

    gemms = tuple(Gemm(m=m, k=128, n=192) for m in (8, 16, 24))
    first = run(*gemms, limit_s=5.0, clock=clock)
    assert first.left == 2
    assert keys() == [(8, 128, 192)]
    second = run(*gemms)
    assert (second.skipped, second.left) == (1, 0)
    assert len(keys()) == 3


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, alpha: float) -> list[float]:
    """Make the launcher raise at `alpha`; return the alphas at which it was asked."""
    asked: list[float] = []
    original = under_test.launcher

    def launcher(inputs: Any, config: Config) -> Callable[[float], Any]:
        at = original(inputs, config)

        def maybe(value: float) -> Any:
            asked.append(value)
            if value == alpha:
                raise error
            return at(value)

        return maybe

    monkeypatch.setattr(under_test, "launcher", launcher)
    return asked


def test_a_failing_candidate_is_recorded_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = failing(monkeypatch, RuntimeError("no\nsuch luck"), 0.0)
    lines: list[str] = []
    done = run(say=lines.append)
    bad = [one for one in stored().entries[0].measurements if one.error]
    assert done.failed == len(bad) >= 1
    assert {one.error for one in bad} == {"RuntimeError: no such luck"}
    assert f"{len(bad)} failed" in lines[0]
    asked.clear()
    assert run().skipped == 1
    assert asked == []


def test_a_wrong_result_is_recorded_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "wrong", lambda *args: "row 3 is off")
    done = run()
    assert (done.measured, done.failed) == (0, 4)
    assert {one.error for one in stored().entries[0].measurements} == {"wrong: row 3 is off"}


def test_a_process_that_ends_is_not_repeated_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    one = candidates(GEMM, FOUR, top=1)[0]
    original = under_test._Session.record

    def record(self: Any, gemm: Gemm, *results: Any, forget: Any = None) -> None:
        original(self, gemm, *results, forget=forget)
        if results and results[0].error == under_test.UNFINISHED:
            raise SystemExit(9)  # as if killed right after the note was written

    with monkeypatch.context() as patch:
        patch.setattr(under_test._Session, "record", record)
        for tries in (1, 2):
            with pytest.raises(SystemExit):
                run(top=1)
            (left,) = stored().entries[0].measurements
            assert left.repeats == tries
    assert run(top=1).skipped == 1
    assert left.config == asdict(one.config)


def test_an_interrupted_candidate_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing(patch, KeyboardInterrupt(), 1.0)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert not any(one.error for one in stored().entries[0].measurements)
    assert run().failed == 0
    assert len(stored().entries[0].measurements) == 4


def test_a_lost_device_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("illegal address"), 1.0)

    def gone(*args: Any) -> Any:
        raise RuntimeError("CUDA_ERROR")

    monkeypatch.setattr(jax.numpy, "arange", gone)
    with pytest.raises(DeviceLostError, match="CUDA_ERROR"):
        run()
    assert any("illegal address" in one.error for one in stored().entries[0].measurements)


def test_stale_results_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    monkeypatch.setattr(tuned_results, "source_hash", lambda files: "another")
    assert "1 stale results left aside" in explain(GEMM, FOUR)
    assert run().measured == 4
    assert [entry.source for entry in stored().entries] == ["another"]
    monkeypatch.setattr(tuned_results, "jax_version", lambda: "9.9")
    assert choice(GEMM, FOUR).origin == "predicted"
    assert run().measured == 4


def test_a_damaged_file_is_not_overwritten(own_folder: Path) -> None:
    path = own_folder / "test_gpu.json"
    path.write_text("{")
    with pytest.raises(ValueError, match="Move that file away"):
        run()
    assert path.read_text() == "{"


def test_sm90_needs_its_device() -> None:
    with pytest.raises(KernelUnavailable, match="NVIDIA GPU"):
        run(backend="sm90")


# the check


def test_the_sample_sees_one_wrong_tile() -> None:
    gemm = Gemm(m=200, k=128, n=320, out_dtype="float32")
    inputs = operands(gemm, l2_bytes=0.0, backend="reference")
    right = np.float32(inputs.x.astype(np.float64) @ inputs.w[1].astype(np.float64))
    assert wrong(inputs, jax.numpy.asarray(right), 1) == ""
    for row, column in ((0, 0), (128, 256), (64, 192)):
        bad = right.copy()
        bad[row : row + 64, column : column + 64] += 0.1
        assert "times its bound" in wrong(inputs, jax.numpy.asarray(bad), 1)
    hole = right.copy()
    hole[77, 99] = np.nan
    assert "NaN" in wrong(inputs, jax.numpy.asarray(hole), 1)
    assert wrong(inputs, jax.numpy.asarray(right), 0)  # another layer's product


# the timing


def test_turns_are_interleaved_and_medians_hold() -> None:
    now = [0.0]
    order: list[str] = []

    def costing(name: str, seconds: Callable[[int], float]) -> Callable[[int], Any]:
        def launch(number: int) -> Any:
            order.append(name)
            now[0] += seconds(number)
            return np.zeros(())

        return launch

    times = interleaved(
        {
            "even": costing("even", lambda number: 1.0),
            "jumpy": costing("jumpy", lambda number: 9.0 if number == 4 else 2.0),
        },
        repeats=5,
        clock=lambda: now[0],
    )
    assert (times["even"].median_s, times["even"].spread) == (1.0, 0.0)
    assert times["jumpy"].median_s == 2.0
    assert times["even"].repeats == times["jumpy"].repeats == 5
    assert order[:4] == ["even", "even", "jumpy", "jumpy"]  # warm-up
    rounds = [set(order[i : i + 2]) for i in range(4, len(order), 2)]
    assert rounds == [{"even", "jumpy"}] * 5


def test_short_launches_are_timed_in_a_row() -> None:
    now, calls = [0.0], [0]

    def launch(number: int) -> Any:
        assert number == calls[0]
        calls[0] += 1
        now[0] += 1e-3
        return np.zeros(())

    found = interleaved({"a": launch}, repeats=3, clock=lambda: now[0])["a"]
    assert found.median_s == pytest.approx(1e-3)
    assert calls[0] == 2 + 3 * 10


def test_a_launch_that_fails_later_leaves_the_others() -> None:
    def fails(number: int) -> Any:
        if number > 3:
            raise RuntimeError("late")
        return np.zeros(())

    times = interleaved({"bad": fails, "good": lambda n: np.zeros(())}, repeats=3)
    assert times["bad"].error == "RuntimeError: late"
    assert times["bad"].median_s is None
    assert times["good"].repeats == 3
    with pytest.raises(ValueError, match="repeats=0"):
        interleaved({}, repeats=0)


# who reads it


@pytest.fixture
def measured() -> Callable[..., None]:
    """Write results as the tuner would."""

    def write(gemm: Gemm, *times: tuple[Config, float, float], **machine: Any) -> None:
        entry = tuned_results.Entry(
            op="hybrid_gemm",
            key=under_test.tuning_key(gemm, H200.sm_count),
            source=tuned_results.source_hash(under_test.KERNEL_SOURCES),
            provenance={"jax": tuned_results.jax_version(), "date": "2026-01-01"},
            measurements=tuple(
                tuned_results.Measurement(config=asdict(config), alpha=alpha, time_s=time_s)
                for config, alpha, time_s in times
            ),
        )
        (folder,) = tuned_results.folders()
        path = folder / tuned_results.file_name(H200.device)
        tuned_results.write(
            path, tuned_results.Tuned(device=H200.device, entries=(entry,), machine=machine)
        )

    return write


UNLIKELY = Config(tm=128, tn=64, kc=64, cluster=1)
LIKELY = Config(cluster=2)


def test_measured_times_decide(measured: Callable[..., None]) -> None:
    gemm = Gemm(m=512, k=4096, n=16384)
    predicted = choice(gemm, H200)
    assert predicted.origin == "predicted"
    measured(gemm, (UNLIKELY, 0.25, 1e-3), (LIKELY, 1.0, 2e-3))
    found = choice(gemm, H200)
    assert (found.config, found.alpha, found.origin) == (UNLIKELY, 0.25, "measured")
    assert found.time_s == pytest.approx(1e-3)
    assert choose(gemm, H200, cluster=2) == LIKELY
    assert choice(gemm, H200, cluster=4).origin == "predicted"
    assert "hold none for this cluster" in explain(gemm, H200, cluster=4)
    assert "the fastest of 2 measured at M = 512 (2026-01-01)" in explain(gemm, H200)
    stacked = replace(gemm, layers=4)
    assert choose(stacked, H200) == UNLIKELY  # a layer takes as long as one matrix
    for other in (
        replace(gemm, k=4160),
        replace(gemm, out_dtype="float32"),
        replace(gemm, w_layout="nk"),
        replace(gemm, m=2048),
    ):
        assert choice(other, H200).origin == "predicted"
    assert choice(gemm, H200, sm_count=16).origin == "predicted"


def test_a_near_shape_is_scaled_by_the_model(measured: Callable[..., None]) -> None:
    there, here = Gemm(m=512, k=4096, n=16384), Gemm(m=768, k=4096, n=16384)
    # Both read W once at 512 rows; at 768 only the cluster of four still does.
    four = Config(cluster=4)
    measured(there, (LIKELY, 1.0, 2.40e-3), (four, 1.0, 2.45e-3))
    assert choose(there, H200, cluster=None) == LIKELY
    found = choice(here, H200)
    assert (found.config, found.origin) == (four, "measured")
    assert found.time_s == pytest.approx(2.45e-3, rel=0.01)
    assert "too far away" in explain(Gemm(m=2048, k=4096, n=16384), H200)


def test_measured_rates_replace_the_datasheet(measured: Callable[..., None]) -> None:
    gemm = Gemm(m=8, k=4096, n=16384)
    measured(gemm, (LIKELY, 1.0, 2e-3), link_gbps=31.0, resident=[[8, 14]], source="a probe")
    machine = machine_for("NVIDIA H200")
    assert machine.link_gbps == 31.0
    assert machine.clusters(8) == 14
    assert "measured: link_gbps, resident (a probe); else unmeasured" in machine.source
    assert machine_for("NVIDIA H200", measured=False) == H200
    assert machine_for("NVIDIA H200", sm_count=16).clusters(8) == 2


def test_the_best_launch_gives_the_rate_of_the_link(measured: Callable[..., None]) -> None:
    gemm = Gemm(m=8, k=4096, n=16384)
    measured(gemm, (LIKELY, 1.0, 2e-3), (UNLIKELY, 0.0, 4e-3))
    (folder,) = tuned_results.folders()
    path = folder / tuned_results.file_name(H200.device)
    session = under_test._Session(path, H200, "sm90", tuned_results.read(path))
    session.measure_machine()
    found = machine_for("NVIDIA H200").link_gbps
    assert found == pytest.approx(2 * 4096 * 16384 / 2e-3 / 1e9)


# the command line


def command(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(words)


def test_without_a_gpu_tune_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command()) == 2
    assert "needs an NVIDIA GPU of compute capability 9.0" in capsys.readouterr().err


def test_the_command_tunes_and_resumes(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--shape", "128x192", "--rows", "8,16", "--backend", "reference"]
    words += ["--top", "2", "--repeats", "1", "--folder"]
    assert cli.run(command(*words, str(own_folder))) == 0
    assert "4 measured, 0 failed" in capsys.readouterr().out
    assert cli.run(command(*words, str(own_folder))) == 0
    assert "2 problems had results" in capsys.readouterr().out


def test_the_command_lists_without_measuring(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(command("--dry-run", "--model", "c2cserve-fig4", "--rows", "1,512")) == 0
    out = capsys.readouterr().out
    assert "M 8 K 4096 N 16384" in out
    assert out.count(" us, link") == 16
    assert list(own_folder.iterdir()) == []


def test_a_wrong_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(command("--shape", "100x128", "--dry-run")) == 2
    assert "k=100: expected a multiple of 64" in capsys.readouterr().err
