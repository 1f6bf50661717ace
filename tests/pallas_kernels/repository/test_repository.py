"""Executables stored and loaded, in this process and another, sound, stale and corrupt."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels.host_memory import to_host
from pallas_kernels.hybrid_gemm import hybrid_gemm
from pallas_kernels.program import Argument, Program
from pallas_kernels.repository import (
    FOLDER_VARIABLE,
    Repository,
    RepositoryError,
    RepositoryWarning,
    default_folder,
    identity,
)
from tests.pallas_kernels.interpreting import operands

module_of_identity = import_module("pallas_kernels.repository.identity")  # not the function
X, W, _ = operands(16, 128, 192)
W_HOST = to_host(W).data


def program(name: str = "product", alpha: float = 0.5) -> Program:
    return Program(
        op="hybrid_gemm",
        name=name,
        function=lambda x, w: hybrid_gemm(x, w, alpha, backend="reference"),
        arguments=(
            Argument(shape=X.shape, dtype="bfloat16"),
            Argument(shape=W.shape, dtype="bfloat16", host=True),
        ),
        shared_bytes=0,
        opcodes=frozenset(),
        key=(("config", "none"),),
    )


def traced(calls: list[str]) -> Program:
    """A program that says when it is traced."""
    inner = program()

    def function(x: Any, w: Any) -> Any:
        calls.append("traced")
        return inner.function(x, w)

    return dataclasses.replace(inner, function=function)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def test_a_second_repository_loads_what_the_first_compiled(folder: Path) -> None:
    calls: list[str] = []
    expected = hybrid_gemm(X, W_HOST, 0.5, backend="reference")
    first = Repository(folder).get(traced(calls))
    np.testing.assert_array_equal(first(X, W_HOST), expected)
    assert calls == ["traced"]
    second = Repository(folder).get(traced(calls))
    np.testing.assert_array_equal(second(X, W_HOST), expected)
    assert calls == ["traced"]
    (entry,) = Repository(folder).entries()
    assert entry.identity == identity(program(), jax.devices()[0])
    assert jax.__version__ in entry.identity.jax
    assert entry.identity.arguments[1] == "bfloat16[128,192] in host memory"
    assert entry.compile_s > 0


SCRIPT = """
import sys, jax
from tests.pallas_kernels.repository.test_repository import X, W_HOST, program
from pallas_kernels.repository import Repository
import numpy as np
seen = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, s, **k: seen.append(event) if "compile" in event or "trace" in event else None)
run = Repository(sys.argv[1]).get(program())
assert not seen, seen
out = run(X, W_HOST)
assert not [e for e in seen if "backend_compile" in e], seen
np.save(sys.argv[2], np.asarray(out, np.float32))
"""


def test_another_process_neither_traces_nor_compiles(folder: Path, tmp_path: Path) -> None:
    expected = Repository(folder).get(program())(X, W_HOST)
    saved = tmp_path / "out.npy"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(saved)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_array_equal(np.load(saved), np.asarray(expected, np.float32))


IN_JAX_CACHE = """
import jax, sys
from pathlib import Path
from tests.pallas_kernels.repository.test_repository import X, W_HOST, program
from pallas_kernels.repository import Repository
import numpy as np
folder, cache = map(Path, sys.argv[1:])
device, hits = jax.devices()[0], []
jax.monitoring.register_event_listener(
    lambda event, **k: hits.append(event) if event.endswith("/cache_hits") else None)
own = lambda: np.asarray(jax.jit(program().function)(X, W_HOST), np.float32)
expected, cached = own(), sorted(cache.iterdir())
assert cached
for name in ("first", "again"):  # of the same, so that jax's cache could have the second
    repository = Repository(folder / name)
    repository.get(program())
    run = repository.load(program(), device)
    np.testing.assert_array_equal(np.asarray(run(X, W_HOST), np.float32), expected)
assert not hits
assert sorted(cache.iterdir()) == cached
jax.clear_caches()
np.testing.assert_array_equal(own(), expected)
assert hits  # what is not stored goes on coming out of jax's cache
"""


def test_what_is_stored_did_not_come_out_of_jax_own_cache(folder: Path, tmp_path: Path) -> None:
    """It would load, and fail when it runs."""
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", IN_JAX_CACHE, str(folder), str(cache)],
        cwd=Path(__file__).parents[3],
        env=os.environ
        | {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_different_programs_have_different_keys() -> None:
    device = jax.devices()[0]
    base = program()
    x, w = base.arguments
    others = [
        dataclasses.replace(base, name="other"),
        dataclasses.replace(base, op="grouped_gemm"),
        dataclasses.replace(base, key=(("config", "some"),)),
        dataclasses.replace(base, arguments=(x, dataclasses.replace(w, host=False))),
        dataclasses.replace(base, arguments=(dataclasses.replace(x, shape=(8, 128)), w)),
        dataclasses.replace(base, arguments=(dataclasses.replace(x, dtype="float16"), w)),
    ]
    keys = {identity(p, device).key for p in [base, *others]}
    assert len(keys) == len(others) + 1
    assert identity(program(), device).key == identity(base, device).key


def _entry_file(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def _payload_file(folder: Path) -> Path:
    (path,) = folder.glob("*.bin")
    return path


def _flip(folder: Path) -> None:
    path = _payload_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _change(folder: Path, **fields: Any) -> None:
    path = _entry_file(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _other_program_under_this_name(folder: Path) -> None:
    entry = json.loads(_entry_file(folder).read_text())
    entry["identity"]["name"] = "another"
    _entry_file(folder).write_text(json.dumps(entry))


def _not_an_executable(folder: Path) -> None:
    import hashlib

    payload = pickle.dumps((b"no executable", None, None))
    digest = hashlib.sha256(payload).hexdigest()
    (folder / f"{digest}.bin").write_bytes(payload)
    _payload_file_of_entry = {"sha256": digest, "nbytes": len(payload)}
    _change(folder, **_payload_file_of_entry)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped bit": (_flip, "expected those that were stored"),
    "a missing executable": (lambda f: _payload_file(f).unlink(), "missing"),
    "half an entry": (lambda f: _entry_file(f).write_text('{"format": 1, "ide'), "cannot be read"),
    "an entry of another format": (lambda f: _change(f, format=99), "another format"),
    "an entry with another field": (lambda f: _change(f, extra=1), "cannot be read"),
    "no hash": (lambda f: _change(f, sha256="../../x"), "cannot be read"),
    "another program": (_other_program_under_this_name, "name"),
    "a pickle of something else": (_not_an_executable, "jax cannot load it"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_repaired(damage: str, folder: Path) -> None:
    repository = Repository(folder)
    expected = repository.get(program())(X, W_HOST)
    harm, said = DAMAGE[damage]
    harm(folder)
    with pytest.warns(RepositoryWarning, match=said):
        run = repository.get(program())
    np.testing.assert_array_equal(run(X, W_HOST), expected)
    calls: list[str] = []
    Repository(folder).get(traced(calls))
    assert calls == []


@pytest.mark.parametrize("field", ["jax", "source"])
def test_stale_entries_are_not_loaded(
    field: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(folder)
    with monkeypatch.context() as then:
        old = dict(module_of_identity.present_versions()) | {field: "old"}
        then.setattr(module_of_identity, "present_versions", lambda: old)
        repository.get(program())
    calls: list[str] = []
    repository.get(traced(calls))
    assert calls == ["traced"]
    stale, fresh = sorted(repository.entries(), key=lambda e: getattr(e.identity, field) != "old")
    assert fresh.identity.outdated(stale.identity)
    assert any(f"{field}: old" in text for text in fresh.identity.differences(stale.identity))


def test_a_program_of_another_package_has_a_source_of_its_own(folder: Path) -> None:
    repository = Repository(folder)
    own, device = program(), jax.devices()[0]
    first, second = (dataclasses.replace(own, source=source) for source in ("one", "two"))
    for each in (own, first, second):
        repository.get(each)
    of = [identity(each, device) for each in (own, first, second)]
    assert len({each.key for each in of}) == 3
    assert of[1].source == f"{of[0].source}, one"
    assert of[1].outdated(of[2])
    assert not of[1].outdated(of[1])
    assert not of[1].outdated(identity(dataclasses.replace(second, name="other"), device))
    (entry,) = (e for e in repository.entries() if e.identity == of[1])
    repository.remove(entry)
    assert {e.identity for e in repository.entries()} == {of[0], of[2]}
    assert repository.load(first, device) is None
    assert repository.load(second, device) is not None


def test_donated_arguments_are_used_up(folder: Path) -> None:
    plain = Program(
        op="test", name="add", function=lambda x, y: (x + y, y * 2),
        arguments=(Argument(shape=(8,), dtype="float32"),) * 2, shared_bytes=0, opcodes=frozenset(),
    )  # fmt: skip
    donating = dataclasses.replace(plain, donated=(1,))
    device = jax.devices()[0]
    assert identity(plain, device).key != identity(donating, device).key
    for _ in range(2):  # compiled, then loaded
        for of, used_up in ((plain, False), (donating, True)):
            x, y = (jax.device_put(np.full(8, value, np.float32)) for value in (1, 2))
            total, twice = Repository(folder).get(of)(x, y)
            np.testing.assert_array_equal(total, np.full(8, 3))
            np.testing.assert_array_equal(twice, np.full(8, 4))
            assert (x.is_deleted(), y.is_deleted()) == (False, used_up)


def test_what_cannot_be_stored_says_so(folder: Path) -> None:
    def calls_back(x: Any) -> Any:
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    back = Program(
        op="test", name="calls_back", function=calls_back,
        arguments=(Argument(shape=(8,), dtype="float32"),), shared_bytes=0, opcodes=frozenset(),
    )  # fmt: skip
    with pytest.raises(RepositoryError, match="calls_back: cannot be serialized"):
        Repository(folder).get(back)


def _get(folder: Path) -> None:
    run = Repository(folder).get(program())
    assert run(X, W_HOST).shape == (16, 192)


@pytest.mark.slow
def test_many_processes_at_once(folder: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_get, args=(folder,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(Repository(folder).entries()) == 1
    assert not list(folder.glob("*.partial"))


def test_what_others_can_write_to_is_never_loaded(folder: Path) -> None:
    repository = Repository(folder)
    repository.get(program())
    folder.chmod(0o777)
    with pytest.raises(RepositoryError, match="writable by nobody else"):
        repository.entries()
    with pytest.raises(RepositoryError, match="writable by nobody else"):
        repository.get(program())


def test_a_folder_that_is_absent_or_a_file(folder: Path) -> None:
    assert Repository(folder).entries() == ()
    folder.write_text("")
    with pytest.raises(RepositoryError, match="cannot be created"):
        Repository(folder).get(program())


def test_the_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "here")
    assert default_folder() == Path("here")
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert default_folder() == Path("cache/pallas_kernels/repository")
