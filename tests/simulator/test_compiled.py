"""The machine-code cache is keyed by content."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.compiling import machine_code
from c2c.compiling.cache_folder import writable
from c2c.compiling.machine_code import _sources, cache_dir, cache_key, compiled, forget
from c2c.compiling.on_demand import PARTS
from c2c.errors import PolicyError
from c2c.policies import Apart, Own, Resident, RoundRobin, System
from c2c.serving import prepare
from c2c.serving.tables.state import Loop, Rules
from c2c.simulator import build_machine
from c2c.simulator.works.events import FLEET, new_tournament, next_end, replay
from tests.simulator.worlds import setup


def test_a_changed_source_gets_another_cache(tmp_path: Path) -> None:
    copies = []
    for path in _sources():
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        copies.append(copy)
    before = cache_key(copies)
    assert cache_key(copies) == before
    for copy in copies:
        original = copy.read_bytes()
        copy.write_bytes(original + b"\n# changed\n")
        assert cache_key(copies) != before, copy.name
        copy.write_bytes(original)
    assert cache_key(copies) == before


def test_every_module_of_the_compiled_code_is_in_the_key() -> None:
    import c2c

    root = Path(c2c.__file__).parent
    listed = {p.resolve() for p in _sources()}
    for folder in ("policies", "serving", "simulator", "cost"):
        for path in (root / folder).rglob("*.py"):
            if "jitable" in path.read_text(encoding="utf-8"):
                assert path.resolve() in listed, path


def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("C2C_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path / "numba" / cache_key()


@pytest.mark.parametrize(
    "sizes", [[1], [2], [7], [8], [9], [65], [7, 7, 7], [1, 8, 3], [1, 9, 2], [2, 1, 5, 1, 1, 6, 9]]
)
@pytest.mark.parametrize("rows", [1, 2], ids=["devices", "relayouts beside"])
def test_tournament_finds_the_first_and_ties_go_to_the_lowest(sizes: list[int], rows: int) -> None:
    g = np.random.default_rng(sum(sizes) + len(sizes))
    chips, firsts = sum(sizes), np.cumsum([0, *sizes[:-1]])
    first_device = np.append(0, np.cumsum(g.integers(1, 4, chips)))  # of each chip
    n = int(first_device[-1])
    tournament, ends_s = new_tournament(firsts, chips), np.full(rows * n, np.inf)
    assert next_end(tournament, FLEET)[1] == np.inf
    for _ in range(400):
        c = int(g.integers(chips))
        first, last = first_device[c : c + 2]
        for row in range(rows):
            at = slice(row * n + first, row * n + last)
            ends_s[at] = g.choice([1.0, 2.0, 3.0, np.inf], last - first)
        replay(tournament, c, ends_s, first, last, n * (rows - 1))
        groups = [(0, chips, FLEET), *zip(firsts, firsts + sizes, tournament.roots, strict=True)]
        for group, last_chip, root in groups:
            begin, end = first_device[[group, last_chip]]
            of_chip = [min(ends_s[row * n + k] for row in range(rows)) for k in range(begin, end)]
            best = begin + int(np.argmin(of_chip))
            d, at_s = next_end(tournament, root)
            assert at_s == min(of_chip)
            assert rows > 1 or d == best or at_s == np.inf
            assert at_s == np.inf or ends_s[d] == at_s


def test_a_damaged_cache_is_deleted_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its smallest whole: a function of the same locator, kept and read by the same code."""
    monkeypatch.setenv("C2C_CACHE", str(tmp_path))
    forget()
    try:
        arguments = (_loop(System()),)
        assert compiled(_twice, arguments)(*arguments) == 6
        (kept,) = cache_dir().rglob("*_twice*.o")
        for content in (b"", kept.read_bytes()[:50], b"something else altogether"):
            kept.write_bytes(content)
            forget()
            with pytest.warns(UserWarning, match=r"is damaged \(.*it is compiled again"):
                assert compiled(_twice, arguments)(*arguments) == 6
            assert kept.stat().st_size > 100  # and kept again
            forget()
            assert compiled(_twice, arguments)(*arguments) == 6  # read, without a word
    finally:
        forget()


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_not_looked_for_while_it_compiles_and_afterwards_as_before(
    is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("C2C_CACHE", str(tmp_path))
    seen: list[bool] = []
    module: Any = machine_code
    real = module.link

    def note(*given: Any) -> Any:
        seen.append(gc.isenabled())
        return real(*given)

    monkeypatch.setattr(module, "link", note)
    forget()
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(PolicyError):
            compiled(_twice, (_loop(System(route="no policy")),))
        assert gc.isenabled() == is_on
    finally:
        gc.enable()
        forget()
    assert seen == [False]


def _loop(system: System) -> Loop:
    what = prepare(setup("llama-3-3b", max_batch=3))
    rules = Rules(system, Own(), 0, System().traits)
    return Loop(what.fleet, rules, what.new_serving(slots=1, buffer=1))


def _twice(w: Loop) -> int:
    return 2 * w.fleet.max_batch


def test_a_system_gets_the_parts_of_the_loop_that_it_needs() -> None:
    assert set(PARTS) == set(Apart._fields)
    start = ({"name": "copy", "moves": "weights"},)
    for system, needs in (
        ({}, set()),
        ({"turn": RoundRobin(), "engines__residents": 2}, {"turns"}),
        (
            {"load": Resident(), "start": start},
            {f"{what}_works" for what in ("share", "follow", "stop", "end")}
            | {"begin_start", "begin_steps"},
        ),
    ):
        what = prepare(setup("llama-3-3b", **system))
        values = {type(v): v for v in (what.fleet, what.rules, build_machine(what))}
        assert {name for name, part in PARTS.items() if part.is_needed(values)} == needs


def test_where_the_cache_cannot_be_written_code_goes_to_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blocked = tmp_path / "a file"
    blocked.write_text("")
    with pytest.warns(UserWarning, match="compiled code goes to"):
        spare = writable(blocked / "key")
    assert spare == tmp_path / f"c2c-numba-{os.geteuid()}" / "key"
    assert spare.parent.stat().st_mode & 0o077 == 0
    spare.parent.chmod(0o777)  # somebody may have put anything into it
    with pytest.warns(UserWarning, match="compiled code goes to"):
        other = writable(blocked / "key")
    assert other.parent != spare.parent
    assert other.parent.stat().st_mode & 0o077 == 0
