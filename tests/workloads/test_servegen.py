"""ServeGen's clients: requests of their rates, gaps and lengths of their distributions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.workloads import build_workload, concatenate

Window = tuple[float, str, float]  # rate, pattern, shape


def write(
    folder: Path, clients: list[list[Window]], lengths: list[dict[str, Any]], step: int = 600
) -> Path:
    folder.mkdir(exist_ok=True)
    for number, (windows, own) in enumerate(zip(clients, lengths, strict=True)):
        lines = [f"{i * step},{r!r},1,{p},{s!r},9.9\n" for i, (r, p, s) in enumerate(windows)]
        (folder / f"chunk-{number}-trace.csv").write_text("".join(lines))
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(own))
    return folder


def tokens(*pairs: dict[int, float]) -> dict[str, str]:
    return dict(zip(("input_tokens", "output_tokens"), map(str, pairs), strict=True))


def build(folder: Path, seed: int = 0, **more: Any) -> Any:
    config = {"kind": "servegen", "path": str(folder), **more}
    return build_workload(config, ("m",), seed)


windows = st.tuples(
    st.floats(0, 2), st.sampled_from(["Gamma", "Weibull"]), st.floats(0.2, 3.0)
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    clients=st.lists(st.lists(windows, min_size=3, max_size=3), min_size=1, max_size=4),
    factor=st.sampled_from([0.5, 1.0, 2.0]), seed=st.integers(0, 9),
)  # fmt: skip
def test_each_window_has_the_requests_of_its_rates(
    clients: list[list[Window]], factor: float, seed: int, tmp_path_factory: Any
) -> None:
    lengths = [
        {"0": tokens({5 + i: 0.5, 50 + i: 0.5}, {0: 0.3, 7 + i: 0.7}), "600": tokens({}, {}),
         "1200": tokens({1000 + i: 1.0}, {2000 + i: 1.0})}
        for i in range(len(clients))
    ]  # fmt: skip
    folder = write(tmp_path_factory.mktemp("clients"), clients, lengths)
    expected = [sum(c[i][0] for c in clients) * factor * 600 for i in range(3)]
    if sum(expected) < 3 * len(clients):
        return  # perhaps no request at all
    block = concatenate(build(folder, seed, rate_factor=factor).blocks())
    counts = np.histogram(block.arrival_s, [0, 600, 1200, 1800])[0]
    assert (np.abs(counts - expected) <= len(clients)).all()
    early = block.arrival_s < 1200
    allowed = {n + i for i in range(len(clients)) for n in (5, 50)}
    assert set(block.prompt_tokens[early].tolist()) <= allowed
    assert set(block.output_tokens[early].tolist()) <= {7 + i for i in range(len(clients))}
    assert set(block.prompt_tokens[~early].tolist()) <= {1000 + i for i in range(len(clients))}
    part = concatenate(
        build(folder, seed, rate_factor=factor, start_s=600.0, duration_s=600.0).blocks()
    ) if counts[1] else None  # fmt: skip
    if part is not None:  # the same requests as in the whole
        inside = (block.arrival_s >= 600) & (block.arrival_s < 1200)
        np.testing.assert_array_equal(part.arrival_s, block.arrival_s[inside] - 600)


@pytest.mark.parametrize(("pattern", "shape", "cv"), [
    ("Gamma", 0.25, 2.0), ("Gamma", 4.0, 0.5), ("Weibull", 1.0, 1.0), ("Weibull", 0.5, 5**0.5),
])  # fmt: skip
def test_gaps_have_the_pattern_s_variation(
    pattern: str, shape: float, cv: float, tmp_path: Path
) -> None:
    window = (50.0, pattern, shape)
    folder = write(tmp_path / "c", [[window, window]], [{"0": tokens({3: 1.0}, {4: 1.0})}])
    gaps = np.diff(concatenate(build(folder).blocks()).arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_prompts_and_outputs_have_their_histograms(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(6), size=2)
    histograms = [dict(zip(range(1, 7), row.tolist(), strict=True)) for row in shares]
    window = (100.0, "Gamma", 1.0)
    folder = write(tmp_path / "c", [[window, window]], [{"0": tokens(*histograms)}])
    block = concatenate(build(folder).blocks())
    for values, row in ((block.prompt_tokens, shares[0]), (block.output_tokens, shares[1])):
        found = np.bincount(values, minlength=7)[1:] / len(values)
        assert np.abs(found - row).max() < 5 * np.sqrt(0.25 / len(values))


def test_clients_without_lengths_yet_are_said(tmp_path: Path) -> None:
    window = (1.0, "Gamma", 1.0)
    folder = write(
        tmp_path / "c", [[window] * 2] * 2,
        [{"0": tokens({3: 1.0}, {4: 1.0})}, {"600": tokens({3: 1.0}, {4: 1.0})}],
    )  # fmt: skip
    workload = build(folder)
    assert workload.description["doubts"] == [
        "1 windows of clients have a rate but no lengths yet: no requests"
    ]
    assert len(concatenate(workload.blocks())) == 600 + 1200


@pytest.mark.parametrize(
    ("trace", "dataset", "message"),
    [
        ("0,1,1,Gamma,1\n", "{}", "line 1: expected start, rate, cv, pattern, two parameters"),
        ("0,1,1,Pareto,1,1\n", "{}", "line 1: pattern 'Pareto': expected Gamma, Weibull"),
        ("0,1,1,Gamma,0,1\n", "{}", "line 1: expected ascending times, rates and shapes above 0"),
        ("5,0,0,,0,0\n5,0,0,,0,0\n", "{}", "line 2: expected ascending times"),
        ("0,nan,1,Gamma,1,1\n", "{}", "line 1: expected ascending times, rates"),
        ("0,0,0,,0,0\n", "{}", "1 times: expected at least two"),
        ("0,0,0,,0,0\n1,0,0,,0,0\n", '{"0": {"text_tokens": "{}"}}', "expected histograms of inp"),
        ("0,0,0,,0,0\n1,0,0,,0,0\n", '{"0": {"input_tokens": "{1: x}", "output_tokens": "{}"}}',
         "0: expected histograms of input_tokens and output_tokens"),
        ("0,0,0,,0,0\n1,0,0,,0,0\n", "{", "broken or truncated JSON"),
        ("0,0,0,,0,0\n1,0,0,,0,0\n", "[3]", "a record is int, not an object"),
        ("0,0,0,,0,0\n1,0,0,,0,0\n", None, "missing: it has the lengths of this client"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(
    trace: str, dataset: str | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "chunk-3-trace.csv").write_text(trace)
    if dataset is not None:
        (tmp_path / "chunk-3-dataset.json").write_text(dataset)
    with pytest.raises((DataError, SettingError), match=message):
        build(tmp_path)


def test_other_folders_and_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"workload.path=.*a folder with chunk-<client>-trace"):
        build(tmp_path)
    with pytest.raises(SettingError, match=r"requests=7: expected the default with kind=servegen"):
        build(tmp_path, requests=7)
    with pytest.raises(SettingError, match=r"rate_factor=0.0: expected"):
        build(tmp_path, rate_factor=0)
    with pytest.raises(SettingError, match=r"workload.path='': expected a folder of clients"):
        build_workload({"kind": "servegen"}, ("m",), 0)
