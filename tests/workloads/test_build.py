"""Settings become a workload: composition, factors, description, errors, round trips."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import c2c.workloads
from c2c.errors import DataError, SettingError
from c2c.workloads import (
    RequestBlock,
    Workload,
    WorkloadConfig,
    build_workload,
    concatenate,
    describe,
    doubts,
    shared_dir,
    workload_config,
    workload_files,
    write_trace,
)
from tests.workloads.test_servegen import write as write_clients
from tests.workloads.traces import stored

CATALOG = ("small", "medium", "large")
CONF = Path(c2c.workloads.__file__).parents[2] / "conf" / "workload"


def build(seed: int = 0, catalog: tuple[str, ...] = CATALOG, **settings: Any) -> Workload:
    return build_workload(settings, catalog, seed)


@pytest.fixture
def arrivals(tmp_path: Path) -> Path:
    """Return a trace without lengths: 300 requests, one a second, of three ids."""
    path = tmp_path / "arrivals.csv"
    rows = "".join(f"{i},{'aab'[i % 3] if i % 10 else 'large'}\n" for i in range(300))
    path.write_text(f"arrival_s,model\n{rows}")
    return path


def same(one: RequestBlock, two: RequestBlock) -> bool:
    names = ("arrival_s", "model", "prompt_tokens", "output_tokens")
    return all(getattr(one, n).tobytes() == getattr(two, n).tobytes() for n in names)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_setting_builds(path: Path, arrivals: Path) -> None:
    settings = yaml.safe_load(path.read_text())
    if settings["kind"] == "servegen":
        windows = [(1.0, "Gamma", 1.0)] * 2
        lengths = {"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{7: 1.0}"}}
        settings["path"] = str(write_clients(arrivals.parent / "clients", [windows], [lengths]))
    elif settings.get("path") == "???":
        settings |= {"path": str(arrivals), "lengths": "synthetic"}
    elif settings["kind"] == "trace" and not (shared_dir() / "traces" / settings["path"]).is_file():
        pytest.skip("shared traces absent; set C2C_SHARED")
    settings["max_requests"] = 500
    workload = build_workload(settings, CATALOG, 0)
    whole = concatenate(workload.blocks())
    assert len(whole) == workload.description["requests"] == min(500, len(whole))
    assert same(whole, concatenate(workload.blocks()))  # it starts again, the same
    json.dumps(workload.description)
    assert any("requests" in line for line in describe(workload))


def test_arrivals_from_one_trace_lengths_from_another(arrivals: Path, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.json"
    lengths.write_text(json.dumps([{"prompt_len": 10 * i, "output_len": i} for i in range(5, 50)]))
    workload = build(kind="trace", path=str(arrivals), lengths=str(lengths))
    whole = concatenate(workload.blocks())
    assert whole.arrival_s.tolist() == list(range(300))
    np.testing.assert_array_equal(whole.prompt_tokens, 10 * whole.output_tokens)
    assert workload.description["lengths"]["name"] == "lengths.json"
    # The seed draws the lengths; arrivals and models stay.
    other = concatenate(
        build(seed=1, kind="trace", path=str(arrivals), lengths=str(lengths)).blocks()
    )
    assert whole.arrival_s.tobytes() == other.arrival_s.tobytes()
    assert whole.prompt_tokens.tobytes() != other.prompt_tokens.tobytes()


def test_lengths_are_drawn_only_when_asked_for(arrivals: Path) -> None:
    for lengths in ("auto", "trace"):
        with pytest.raises(DataError) as refused:
            build(kind="trace", path=str(arrivals), lengths=lengths)
        assert "it has no prompt_tokens and no output_tokens." in str(refused.value)
        assert "workload.lengths=synthetic draws lengths" in str(refused.value)
    workload = build(kind="trace", path=str(arrivals), lengths="synthetic")
    assert workload.description["lengths"]["name"].startswith("synthetic")


def test_assignment_is_recorded_and_printed(arrivals: Path) -> None:
    shares = {"lengths": "synthetic", "assignment": "popularity_rank"}
    workload = build(kind="trace", path=str(arrivals), **shares)
    said = workload.description["assignment"]
    assert said["map"] == {"a": "small", "b": "medium", "large": "large"}
    assert said["kept"] == ["large"]
    counts = np.bincount(concatenate(workload.blocks()).model, minlength=3)
    assert {name: int(n) for name, n in zip(CATALOG, counts, strict=True)} == said["requests"]
    text = "\n".join(describe(workload))
    assert "models: ids share the catalog's models in turn, by popularity" in text
    assert "small: 180 requests of a" in text


def test_ids_of_a_trace_have_deployments_of_their_own(arrivals: Path) -> None:
    drawn = {"kind": "trace", "path": str(arrivals), "lengths": "synthetic"}
    workload = build(catalog=("large", "small"), **drawn)
    assert (workload.models, workload.made_of) == (("large", "a", "b"), (0, 1, 0))
    text = "\n".join(describe(workload))
    assert "  small: 180 requests of a\n" in text
    assert "  large: 30 requests of large (its name)" in text
    assert doubts(workload) == []
    shares = build(catalog=("x",), **drawn, assignment="popularity_rank")
    assert doubts(shares)[0].startswith("3 ids of the trace are served by 1 model (")
    generated = build(kind="poisson", requests=90, models=9)
    assert generated.models == CATALOG
    assert doubts(generated)[0].startswith("9 ids of the generator are served by 3 models (")


def test_an_id_that_says_a_size_and_is_no_known_model_is_said(arrivals: Path) -> None:
    arrivals.write_text(arrivals.read_text().replace(",b\n", ",team/chat-7B\n"))
    (line,) = doubts(build(kind="trace", path=str(arrivals), lengths="synthetic"))
    assert "so others serve them: team/chat-7B by medium (" in line


def test_a_trace_without_ids_stays_with_the_catalog(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.csv", "arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,6,6\n")
    workload = build(kind="trace", path=str(path))
    assert (workload.models, workload.made_of) == (CATALOG, (0, 1, 2))
    assert workload.description["assignment"]["requests"] == {"small": 2}


def test_window_compression_and_limit(arrivals: Path) -> None:
    config = {"kind": "trace", "path": str(arrivals), "lengths": "synthetic"}
    config |= {"start_s": 100.0, "duration_s": 50.0}
    workload = build(**config, compression=10.0)
    assert concatenate(workload.blocks()).arrival_s.tolist() == [i / 10 for i in range(50)]
    assert workload.description["compression"] == 10
    limited = build(**config, max_requests=7)
    assert len(concatenate(limited.blocks())) == limited.description["requests"] == 7
    with pytest.raises(SettingError, match="window with requests"):
        build(kind="trace", path=str(arrivals), lengths="synthetic", start_s=301.0)


def test_replicas_multiply_the_load(arrivals: Path) -> None:
    config = {"kind": "trace", "path": str(arrivals), "lengths": "synthetic"}
    once, thrice = (build(**config, replicas=k) for k in (1, 3))
    one, three = concatenate(once.blocks()), concatenate(thrice.blocks())
    assert len(three) == thrice.description["requests"] == 3 * len(one)
    assert three.arrival_s[-1] < 302
    assert thrice.description["mean_rate_rps"] == pytest.approx(
        3 * once.description["mean_rate_rps"]
    )
    ids = thrice.description["assignment"]["map"]
    assert len(ids) == 3
    counts = [np.bincount(block.model, minlength=3) for block in (one, three)]
    np.testing.assert_array_equal(counts[1], 3 * counts[0])
    other = concatenate(build(seed=1, **config, replicas=3).blocks())
    assert other.arrival_s.tobytes() != three.arrival_s.tobytes()


def test_writing_and_reading_gives_the_same_requests(tmp_path: Path) -> None:
    workload = build(kind="synthetic", requests=20_000, models=3, days=2)
    path = tmp_path / "out" / "trace.parquet"
    assert write_trace(path, workload) == 20_000
    again = build(kind="trace", path=str(path))
    assert same(concatenate(workload.blocks()), concatenate(again.blocks()))
    assert [p.name for p in path.parent.iterdir()] == ["trace.parquet"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_trace(path, build(kind="poisson", requests=10, models=1))
    before = path.read_bytes()

    def broken() -> Any:
        yield from build(kind="poisson", requests=10, models=1).blocks()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_trace(path, Workload(CATALOG, broken), overwrite=True)
    with pytest.raises(SettingError, match="expected a new file"):
        write_trace(path, build(kind="poisson", requests=20, models=1))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["trace.parquet"]


def test_two_workloads_at_once_do_not_disturb_each_other() -> None:
    alone = concatenate(build(kind="poisson", requests=200_000, models=3).blocks())
    streams = [build(seed=s, kind="poisson", requests=200_000, models=3).blocks() for s in (0, 1)]
    interleaved = [block for pair in zip(*streams, strict=True) for block in pair]
    assert same(alone, concatenate(interleaved[::2]))


def test_poisson_popularity_follows_zipf() -> None:
    workload = build(kind="poisson", requests=100_000, models=0, zipf_exponent=1.0)
    counts = np.bincount(concatenate(workload.blocks()).model) / 100_000
    np.testing.assert_allclose(counts, np.array([6, 3, 2]) / 11, atol=0.01)


def test_catalog_and_seed_are_checked() -> None:
    with pytest.raises(SettingError, match="catalog"):
        build(catalog=())
    with pytest.raises(SettingError, match="catalog"):
        build(catalog=("a", "a"))
    with pytest.raises(SettingError, match="seed=-1"):
        build(seed=-1)


def test_absent_shared_traces_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C2C_SHARED", str(tmp_path))
    with pytest.raises(SettingError, match=r"C2C_SHARED.*workload=synthetic"):
        build(kind="trace", path="gentd26_requests.parquet")
    with pytest.raises(SettingError, match=r"C2C_SHARED.*lengths=synthetic"):
        build(lengths="sharegpt")
    assert len(concatenate(build(requests=100, lengths="synthetic").blocks())) == 100


def test_settings_from_a_mapping_or_the_dataclass_are_the_same() -> None:
    config = WorkloadConfig(kind="poisson", requests=5, rate_rps=2.0)
    assert workload_config({"kind": "poisson", "requests": 5.0, "rate_rps": 2}) == config
    assert workload_config(config) is config


def test_a_stream_that_breaks_its_promises_is_stopped() -> None:
    def stream(**changes: Any) -> Workload:
        columns: dict[str, Any] = {
            "arrival_s": np.array([0.0, 1.0]),
            "model": np.zeros(2, np.int32),
            "prompt_tokens": np.ones(2, np.int32),
            "output_tokens": np.ones(2, np.int32),
        }
        block = RequestBlock(**columns)
        bad = RequestBlock(**{**columns, "arrival_s": np.array([1.0, 2.0]), **changes})
        return Workload(("m",), lambda: iter([block, bad]))

    assert len(concatenate(stream().blocks())) == 4
    for changes, match in (
        ({"arrival_s": np.array([0.5, 2.0])}, "back in time"),
        ({"arrival_s": np.array([3.0, 2.0])}, "back in time"),
        ({"arrival_s": np.array([3.0, np.inf])}, "not finite"),
        ({"model": np.array([0, 1], np.int32)}, "outside the catalog"),
        ({"output_tokens": np.array([1, 0], np.int32)}, "no output token"),
    ):
        with pytest.raises(DataError, match=match):
            list(stream(**changes).blocks())


def test_files_of_a_source_are_known_before_it_is_built(arrivals: Path) -> None:
    config = WorkloadConfig(kind="trace", path=str(arrivals), lengths="pairs.json")
    assert workload_files(config) == {
        "workload.path": arrivals,
        "workload.lengths": Path("pairs.json"),
    }
    assert workload_files(WorkloadConfig(kind="synthetic")) == {}
