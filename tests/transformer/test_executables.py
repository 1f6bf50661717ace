"""Executables that outlive a process: loaded, shared, stale, damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.models import from_hf_config
from c2c.transformer import (
    Bucket,
    Hybrid,
    Linear,
    Model,
    Reference,
    Staged,
    Wanted,
    buckets_of,
    buckets_up_to,
    load,
    random_params,
)
from c2c.transformer import executables as module
from c2c.transformer.executables import Executables, Stage, executables_at
from c2c.transformer.layers.cache import new_cache
from c2c.transformer.layers.forward import run
from experiments.warm import main
from pallas_kernels.repository import FOLDER_VARIABLE, RepositoryError, RepositoryWarning
from tests.compilations import compilations
from tests.tiers import tiered
from tests.transformer.random_checkpoints import config_of, tensors_of, write

IDS = [5, 17, 3, 80, 41]
HOT = {"temperature": 1.1, "top_k": 40, "seed": 3}


def made(
    executables: Executables | None,
    family: str = "llama",
    linear: Linear | None = None,
    seed: int = 0,
) -> Model:
    linear = Reference() if linear is None else linear
    spec = from_hf_config(config_of(family), f"{family}-{seed}")
    params = random_params(
        spec, np.random.default_rng(seed), dtype="bfloat16", placement=linear.placement
    )
    return Model(spec=spec, params=params, linear=linear, executables=executables)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def test_the_listener_hears_what_jax_compiles() -> None:
    """Or the tests that expect silence would prove nothing."""
    with compilations(traced=True) as events:
        made(None).generate(IDS, 1)
        made(None, "qwen3").logits(IDS)
    assert any("trace" in event for event in events)
    assert any("backend_compile" in event for event in events)


SCRIPT = """
import json, sys
import jax
from c2c.transformer import load
heard = []
jax.monitoring.register_event_duration_secs_listener(lambda event, s, **k: heard.append(event))
model = load(sys.argv[1], executables=sys.argv[2])
ids, hot = json.loads(sys.argv[3])
print(json.dumps({
    "cold": model.generate(ids, 8), "hot": model.generate(ids, 8, **hot),
    "compiled": model.executables.compiled, "loaded": model.executables.loaded,
    "heard": [event for event in heard if "/jax/core/compile/" in event],
}))
"""


@pytest.mark.slow
def test_a_fresh_process_neither_traces_nor_compiles(folder: Path, tmp_path: Path) -> None:
    config = config_of("llama")
    checkpoint = write(tmp_path / "checkpoint", config, tensors_of(config))
    model = load(checkpoint, executables=folder)
    expected = [model.generate(IDS, 8), model.generate(IDS, 8, **HOT)]
    plain = load(checkpoint, executables=None)
    assert expected == [plain.generate(IDS, 8), plain.generate(IDS, 8, **HOT)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(checkpoint), str(folder), json.dumps([IDS, HOT])],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert [found["cold"], found["hot"]] == expected
    assert found["heard"] == []
    assert found["compiled"] == 0
    assert found["loaded"] == len(list(folder.glob("*.json")))


STRATEGIES = {
    "reference": Reference(),
    "scanned": Reference(by_layer=False),
    "staged": Staged(),
    "hybrid": Hybrid(),
}


@pytest.mark.parametrize("name", tiered(STRATEGIES))
def test_a_second_model_of_one_architecture_compiles_nothing(name: str, folder: Path) -> None:
    shared = Executables(folder)
    first = made(shared, linear=STRATEGIES[name])
    second = made(shared, linear=STRATEGIES[name], seed=1)
    assert first.spec.name != second.spec.name
    texts = [first.generate(IDS, 4)]
    with compilations(traced=True) as events:
        texts.append(second.generate(IDS, 4))
        assert first.generate(IDS, 4) == texts[0]
    assert events == []
    assert texts == [replace(model, executables=None).generate(IDS, 4) for model in (first, second)]
    assert texts[0] != texts[1]
    fresh = Executables(folder)
    with compilations(traced=True) as events:
        assert replace(second, executables=fresh).generate(IDS, 4) == texts[1]
    assert events == []
    assert (fresh.compiled, fresh.loaded) == (0, shared.compiled)


@pytest.mark.parametrize("linear", tiered(["reference", "staged"]))
def test_what_will_run_is_made_ready_while_weights_are_read(
    folder: Path, tmp_path: Path, linear: str
) -> None:
    config = config_of("llama")
    checkpoint = write(tmp_path / "checkpoint", config, tensors_of(config))
    wanted = Wanted(buckets=buckets_of(len(IDS), 4), draws=(False,), scores=False)
    model = load(checkpoint, linear=linear, executables=folder, ahead=lambda _spec, _texts: wanted)
    assert model.executables is not None
    before = model.executables.compiled
    with compilations(traced=True) as events:
        model.generate(IDS, 4)
    assert events == []
    assert model.executables.compiled == before > 0
    assert model.warm(wanted.buckets).compiled > 0  # those at a temperature were not asked for


def test_what_goes_wrong_beside_the_weights_is_told(folder: Path, tmp_path: Path) -> None:
    config = config_of("llama")
    checkpoint = write(tmp_path / "checkpoint", config, tensors_of(config))

    def ahead(_spec: object, _texts: object) -> Wanted:
        raise SettingError("prompt", "", "one that can be computed")

    with pytest.raises(SettingError, match="prompt=''"):
        load(checkpoint, executables=folder, ahead=ahead)


def test_warm_leaves_nothing_to_do(folder: Path) -> None:
    model = made(Executables(folder), "qwen3")
    buckets = buckets_of(len(IDS), 4)
    warmed = model.warm(buckets)
    assert warmed.loaded == 0
    assert warmed.compiled == len(list(folder.glob("*.json"))) > 0
    with compilations(traced=True) as events:
        tokens = model.generate(IDS, 4)
        model.generate(IDS, 4, **HOT)
    assert events == []
    again = made(Executables(folder), "qwen3")
    with compilations(traced=True) as events:
        loaded = again.warm(buckets)
    assert events == []
    assert (loaded.loaded, loaded.compiled) == (warmed.compiled, 0)
    assert again.generate(IDS, 4) == tokens
    assert model.warm(buckets).compiled == 0


def test_the_cache_is_used_up_as_by_jit(folder: Path) -> None:
    for _ in range(2):  # compiled, then loaded
        model = made(Executables(folder))
        cache = new_cache(
            model.spec, pages=2, page_tokens=16, dtype="bfloat16", tables=np.array([[0, 1]])
        )
        tokens = np.array([IDS], np.int32)
        _, after = run(
            model.params, tokens, np.arange(len(IDS), dtype=np.int32)[None], cache, model.spec,
            executables=model.executables,
        )  # fmt: skip
        assert cache.k.is_deleted()
        assert cache.v.is_deleted()
        assert not after.k.is_deleted()


def test_calls_of_other_shapes_through_one_binding(folder: Path) -> None:
    """Layers of one model may differ, for example in how their weights are quantised."""
    stage = Stage(name="sum", function=lambda x, y, *, twice: (x.sum() + y) * (2 if twice else 1),
                  static=("twice",))  # fmt: skip
    executables = Executables(folder)
    add = executables.bind(stage)
    wide, narrow = np.ones(8, np.float32), np.ones(3, np.float32)
    found = [float(add(x, 1.0, twice=True)) for x in (wide, wide, narrow, wide.astype(np.int32))]
    assert found == [18.0, 18.0, 8.0, 18.0]
    assert executables.compiled == 3
    assert float(add(wide.astype(np.int32), 1.0, twice=False)) == 9.0
    with pytest.raises(TypeError, match="'one'"):
        add(wide, "one", twice=True)


@pytest.fixture(scope="module")
def tokens_of_filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], Path]:
    """A model's draws, and a folder that is filled by it, to be copied."""
    folder = tmp_path_factory.mktemp("filled") / "repository"
    return made(Executables(folder)).generate(IDS, 2), folder


@pytest.fixture
def tokens(tokens_of_filled: tuple[list[int], Path], folder: Path) -> list[int]:
    """Draws of a model that has filled `folder`."""
    drawn, filled = tokens_of_filled
    shutil.copytree(filled, folder)
    return drawn


def _entries(folder: Path) -> dict[str, str]:
    return {
        path.name: json.loads(path.read_text())["identity"]["source"]
        for path in folder.glob("*.json")
    }


@pytest.mark.parametrize("of", tiered(["c2c", "tuned"]))
def test_stale_entries_are_replaced_with_a_warning(
    of: str, folder: Path, tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _entries(folder)
    changed = {"c2c": "c2c new, tuned old", "tuned": "c2c old, tuned new"}[of]
    monkeypatch.setattr(module, "source_of_stages", lambda _file: changed)
    executables = Executables(folder)
    with pytest.warns(RepositoryWarning, match=f"is stale .*source: .*, not .*{changed}"):
        assert made(executables).generate(IDS, 2) == tokens
    assert executables.loaded == 0
    after = _entries(folder)
    assert len(after) == len(before)
    assert not after.keys() & before.keys()
    assert all(source.endswith(changed) for source in after.values())
    assert len(executables.repository.entries()) == len(after)


def test_corrupt_entries_are_replaced_with_a_warning(folder: Path, tokens: list[int]) -> None:
    """The repository's own tests have all kinds of damage."""
    for path in folder.glob("*.bin"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    executables = Executables(folder)
    with pytest.warns(RepositoryWarning, match="compiling it anew"):
        assert made(executables).generate(IDS, 2) == tokens
    assert executables.loaded == 0
    repaired = Executables(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(repaired).generate(IDS, 2) == tokens
    assert repaired.compiled == 0


@pytest.mark.slow
def test_what_is_compiled_for_tells_entries_apart(folder: Path) -> None:
    executables = Executables(folder)
    models = [
        made(executables),
        made(executables, "qwen3"),
        made(executables, linear=Staged()),
        made(executables, linear=Reference(by_layer=False)),
    ]
    compiled = []
    for model in models:
        before = executables.compiled
        model.generate(IDS, 2)
        compiled.append(executables.compiled - before)
    assert all(compiled)
    before = executables.compiled
    models[0].generate(IDS * 10, 2)  # another width: of a chunk, not of the cache, seats or draws
    assert executables.compiled - before == 4
    one = Stage(name="one", function=lambda x: x + 1)
    for setting in ("float32", "bfloat16", "float32"):
        with jax.default_matmul_precision(setting):
            (executables := Executables(folder)).bind(one)(1.0)
        compiled.append(executables.compiled)
    assert compiled[-3:] == [1, 1, 0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can fill")
def test_a_folder_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Path("/proc/nowhere")  # not even root can make one there
    with pytest.raises(RepositoryError, match="cannot be created"):
        made(executables_at(nowhere)).generate(IDS, 2)
    monkeypatch.setenv(FOLDER_VARIABLE, str(nowhere))
    lenient = executables_at("auto")
    assert lenient is not None
    with pytest.warns(RepositoryWarning, match="not stored"):
        tokens = made(lenient).generate(IDS, 2)
    assert tokens == made(None).generate(IDS, 2)
    assert lenient.compiled > 0


@pytest.mark.slow
def test_the_command_fills_the_store(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of("llama")
    checkpoint = write(tmp_path / "checkpoint", config, tensors_of(config))
    settings = [f"checkpoint={checkpoint}", f"executables={folder}", "context=100"]
    assert main(settings) == 0
    stored = len(list(folder.glob("*.json")))
    assert f"0 executables loaded, {stored} compiled" in capsys.readouterr().out
    fresh = Executables(folder)
    model = replace(load(checkpoint, executables=None), executables=fresh)
    model.generate(IDS, 4)
    model.generate(IDS * 20, 4, **HOT)
    assert fresh.compiled == 0
    for wrong, said in (("context=0", "context=0"), ("nonsense=1", "nonsense")):
        assert main([*settings, wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("tokens", "context"), [(3, 512), (-1, 512), (16, 100), (16, 64)])
def test_buckets_are_shapes_that_generation_uses(tokens: int, context: int) -> None:
    with pytest.raises(SettingError, match=r"bucket\."):
        Bucket(tokens, context)


@given(prompt=st.integers(1, 3000), new=st.integers(1, 2000))
def test_buckets_up_to_a_length_are_those_of_all_shorter_ones(prompt: int, new: int) -> None:
    assert set(buckets_of(prompt, new)) <= set(buckets_up_to(prompt + new))


def test_one_folder_is_one_set_of_executables(folder: Path) -> None:
    assert executables_at(None) is None
    assert executables_at(folder) is executables_at(str(folder))
    assert executables_at(folder) is not executables_at(folder / "other")
    with pytest.raises(SettingError, match="executables=None"):
        made(None).warm()
