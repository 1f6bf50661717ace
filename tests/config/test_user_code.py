"""Policies from a folder of the user's: the examples of the docs, imports, mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from c2c.compiling.builder import OPTIONS
from c2c.compiling.machine_code import variant_key
from c2c.compiling.mistakes import policy_error
from c2c.config import build, load, load_code, settings_folder
from c2c.errors import PolicyError, SettingError
from c2c.policies import CANDIDATE_DTYPE, DECISIONS, Nothing, System, place
from c2c.simulator import simulate_in_memory, try_policies

# Sixteen models on seven slices, several of which are idle when one is placed.
BUSY = (
    "catalog=dense16", "workload=poisson", "workload.models=16", "workload.requests=120",
    "workload.rate_rps=0.3",
)  # fmt: skip
SHORT = ("workload=poisson", "workload.requests=20", "timeline.rows=0")
OURS = re.compile(r"# (mydir/system/(?:mine|staged)\S*)\n")
PLACE = "policy, own, table, count, tokens, demand_gbps, key"


@pytest.fixture(autouse=True)
def _own_names() -> Iterator[None]:
    """Forget the modules and policies that a test brings."""
    modules = set(sys.modules)
    policies = {setting: dict(point.policies) for setting, point in DECISIONS.items()}
    yield
    for name in set(sys.modules) - modules:
        if name.startswith(("mine", "helper")):
            del sys.modules[name]
    for setting, known in policies.items():
        DECISIONS[setting].policies.clear()
        DECISIONS[setting].policies.update(known)


def examples(repository: Path) -> dict[str, str]:
    """Return the blocks of two pages that begin with a file's name, and the one of a cell."""
    pages = (repository / "docs" / name for name in ("howto/extend.md", "recipes.md"))
    text = "".join(page.read_text("utf-8") for page in pages)
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", text, re.DOTALL)
    files = {found[1]: block for block in blocks if (found := OURS.match(block))}
    (cell,) = [block for block in blocks if "wants_another.by" in block]
    return files | {"cell": cell}


def written(folder: Path, repository: Path) -> Path:
    for name, block in examples(repository).items():
        if name != "cell":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block)
    return folder / "mydir"


def test_the_start_of_the_howto_is_served(tmp_path: Path, repository: Path) -> None:
    chosen = ["system=staged_start", "catalog=dense", "weights_start=disk", *SHORT]
    setup = build(load(chosen, folder=written(tmp_path, repository)))
    assert [w.name for w in setup.serving.system.start][-1] == "capture"
    plain = build(load([*chosen[1:], "system=serverlessllm"]))
    staged, cold = (
        simulate_in_memory(s.prepared, s.workload, compiled=False).records for s in (setup, plain)
    )
    # Reading and the stages overlap: it starts sooner than one stage after another.
    assert 0.0 < staged.started_s[0] - staged.arrival_s[0] < cold.started_s[0] - cold.arrival_s[0]


def test_the_documented_mechanism_fills_the_start(tmp_path: Path, repository: Path) -> None:
    folder = written(tmp_path, repository)
    chosen = ["system=mine_start", "catalog=dense", *SHORT]
    setup = build(load(chosen, folder=folder))
    assert [w.name for w in setup.serving.system.start] == ["handshake", "copy"]
    assert setup.serving.system.start[0].seconds == pytest.approx(0.1 * 2)  # of two models
    assert folder / "system" / "mine_start.py" in setup.files
    other = build(load([*chosen, "system.start.handshake_s=3"], folder=folder))
    assert other.serving.system.start[0].seconds == pytest.approx(3 * 2)
    with pytest.raises(SettingError, match=r"start='mine_begin': expected one of .*mine_start"):
        build(load([*chosen, "system.start=mine_begin"], folder=folder))
    with pytest.raises(SettingError, match=r"start\.handshake_s='x': expected a number"):
        build(load([*chosen, "system.start.handshake_s=x"], folder=folder))


def policy(folder: Path, body: str, name: str = "mine", more: str = "") -> Path:
    """Write a policy of placing, `Mine`, into a folder of settings."""
    (folder / "system").mkdir(parents=True, exist_ok=True)
    (folder / "system" / f"{name}.py").write_text(
        "from typing import NamedTuple\n"
        "from c2c.policies import jitable, place\n"
        f"{more}\n"
        "class Mine(NamedTuple):\n    at: int = 1\n"
        f"@place.by(Mine)\ndef mine({PLACE}):\n    {body}\n"
    )
    return folder


LOOKS = """
class Mine(NamedTuple):
    after_s: float = 2.0
    traits = PreemptTraits({traits})
@should_drain.by(Mine)
def mine(policy, oldest_wait_s):
    return oldest_wait_s > policy.after_s
"""


def preempting(folder: Path, traits: str, imported: str = "PreemptTraits, should_drain") -> Path:
    """Write a policy of preemption, `Mine`, with such traits into a folder of settings."""
    (folder / "system").mkdir(parents=True)
    body = f"from typing import NamedTuple\nfrom c2c.policies import {imported}\n"
    (folder / "system" / "mine.py").write_text(body + LOOKS.format(traits=traits))
    return folder


def test_a_users_traits_are_read_alike_interpreted_and_compiled(tmp_path: Path) -> None:
    chosen = [*BUSY, "system/preempt=mine", "system.preempt.after_s=10"]
    setup = build(load(chosen, folder=preempting(tmp_path, "look_every_s=1, sets_aside=False")))
    traits = setup.prepared.rules.traits.preempt
    assert (traits.look_every_s, type(traits.look_every_s)) == (1.0, float)
    runs = [
        simulate_in_memory(setup.prepared, setup.workload, compiled=is_compiled).records.tobytes()
        for is_compiled in (False, True)
    ]
    assert runs[0] == runs[1]
    rarely = build(load([*BUSY, "system/preempt=after_waiting"]))
    assert rarely.prepared.rules.traits.preempt.look_every_s == 1.25


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ("look_every_s=-1.0", r"mine\.py, line 4: the trait look_every_s is -1\.0, not seconds"),
        ("2.0, sets_aside=3", r"mine\.py, line 4: the trait sets_aside is 3, not true or false"),
        ("1.0)._replace(look_every_s='x'", r"mine\.py, line 4: the trait look_every_s is 'x'"),
        ("1.0) and (1.0,", r"mine\.py, line 4: traits is \(1\.0,\), not a PreemptTraits"),
        ("often=1", r"mine\.py: line 6: TypeError: .*'often'"),
    ],
)
def test_wrong_traits_are_said_with_file_and_line(traits: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=said):
        build(load([*SHORT, "system/preempt=mine"], folder=preempting(tmp_path, traits)))


def test_the_documented_system_runs_alike_interpreted_and_compiled(
    tmp_path: Path, repository: Path
) -> None:
    folder = written(tmp_path, repository)
    setup = build(load([*BUSY, "system=mine"], folder=folder))
    assert type(setup.serving.system.place).__name__ == "SpreadOut"
    assert setup.serving.system.place.free_bonus == 3.0
    assert folder / "system" / "mine.py" in setup.files
    interpreted = simulate_in_memory(setup.prepared, setup.workload, compiled=False)
    again = simulate_in_memory(setup.prepared, setup.workload, compiled=False)
    assert interpreted.records.tobytes() == again.records.tobytes()  # memory is a run's own
    compiled = simulate_in_memory(setup.prepared, setup.workload, compiled=True)
    assert interpreted.records.tobytes() == compiled.records.tobytes()
    plain = build(load([*BUSY, "system=c2cserve_letter"]))
    others = simulate_in_memory(plain.prepared, plain.workload, compiled=False)
    assert interpreted.records.tobytes() != others.records.tobytes()


@pytest.mark.slow
def test_the_documented_command_and_its_mistakes(tmp_path: Path, repository: Path) -> None:
    written(tmp_path, repository)
    few = ["workload=poisson", "workload.requests=20", "figures=false", f"out={tmp_path / 'out'}"]
    command = [sys.executable, "-m", "c2c", "simulate", "--config-dir", "mydir"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments, *few], cwd=tmp_path, capture_output=True, text=True
        )

    done = run("system=mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mine on 1 x gh200")
    assert "skipped" in run("system=mine").stdout
    swept = run("-m", "system=mine,c2cserve_letter", "seed=0,1")
    assert swept.returncode == 0, swept.stderr
    assert swept.stdout.count("written") == 3

    code = tmp_path / "mydir" / "system" / "mine.py"
    code.write_text(code.read_text().replace("    return best\n", "    return best + 9\n"))
    done = run("system=mine")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.match(r"error: policy SpreadOut: mine.py, line \d+: place returned \d+, not", line)

    done = run("system=mine", "system.place.speed=3")
    assert done.stderr == (
        "error: system.place.speed='3': expected a field of spread_out (free_bonus).\n"
    )


def test_the_documented_cell_runs_outside_of_any_file(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", examples(repository)["cell"]],
        capture_output=True, text=True, env=os.environ | {"PYTHONSTARTUP": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "p99" in done.stdout


def test_a_changed_file_is_loaded_again_and_is_other_machine_code(tmp_path: Path) -> None:
    folder = policy(tmp_path, "return helper.pick(FIRST)", more="import helper\nFIRST = 0")
    helper = folder / "system" / "helper.py"

    def key() -> str | None:
        setup = build(load([*BUSY, "system/place=mine"], folder=folder))
        return variant_key(setup.prepared.rules)

    helper.write_text("def pick(row):\n    return row\n")
    first = key()
    assert first
    assert key() == first
    helper.write_text("def pick(row):\n    return 0 * row\n")
    changed = key()
    assert changed not in (None, "", first)
    code = folder / "system" / "mine.py"
    code.write_text(code.read_text().replace("FIRST = 0", "FIRST = 0.0"))
    load_code([code, helper])
    assert variant_key(sys.modules["mine"].Mine()) not in (None, "", first, changed)
    helper.write_text("def pick(row):\n    return row\n")
    code.write_text(code.read_text().replace("FIRST = 0.0", "FIRST = 0"))
    assert key() == first


def test_machine_code_of_a_policy_without_a_module_is_not_kept() -> None:
    class Local(NamedTuple):
        at: int = 0

    @place.by(Local)
    def _(policy: Any, own: Any, table: Any, count: Any, tokens: Any, demand_gbps: Any, key: Any) -> int:  # fmt: skip  # noqa: E501
        return 0

    assert variant_key(Local()) is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 7 if count < 7 else 0", r"place returned 7, not a row of the first"),
        ("return -2", r"place returned -2, not a row"),
        ("return 1.0 * (count - 1)", r"place returned 6\.0, not a row"),
        ("pass", r"place returned None, not a row"),
        ("return table[count].instance", r"line 8: IndexError: index 7 is out of bounds"),
        (
            "return 0 if table[0].no_such else 1",
            r"line 8: AttributeError: .*no_such.*; it has instance, ",
        ),
        ("return 1 // (policy.at - 1)", r"line 8: ZeroDivisionError"),
        ("return -1", r"of 60 requests were never served"),
    ],
)
def test_mistakes_are_found_before_the_run(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(PolicyError, match=r"^policy Mine: .*" + said) as caught:
        build(load([*BUSY, "system/place=mine"], folder=policy(tmp_path, body)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("decodes = inst.n_decode", "decodes = min(1, inst.n_decode)"),
        ("w.s.plan[inst.on_device].decodes = inst.n_decode", "pass"),
        ("compute_prompts(w, i, policy.max_tokens)", "pass"),
        ("return extend(w, i, now_s)", "return 1"),
        ("return extend(w, i, now_s)", "return 0 * extend(w, i, now_s)"),
        (
            "    w.s.plan",
            "    w.s.request[w.s.prefilling[i, 0]].step_tokens += 99999\n    w.s.plan",
        ),
    ],
)
def test_wrong_steps_of_a_batch_scheduler_are_refused(
    tmp_path: Path, repository: Path, old: str, new: str
) -> None:
    text = (repository / "docs" / "recipes.md").read_text("utf-8")
    (block,) = re.findall(r"# mydir/system/longest_goes.py\n(.*?)```", text, re.DOTALL)
    assert old in block
    (tmp_path / "system").mkdir()
    block = block.replace(old, new).replace("LongestGoes", "MineGoes")
    (tmp_path / "system" / "mine_goes.py").write_text(block)
    with pytest.raises(PolicyError, match=r"mine_goes\.py, line \d+: fill returned \d+, not a"):
        build(load([*BUSY, "workload.rate_rps=30", "system/batch=mine_goes"], folder=tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "policy mine.py: SyntaxError"),
        ("\nnone_such", "policy mine.py: line 2: NameError"),
        ("from c2c.policies import place, One\nplace.by(One)(lambda policy: 0)", "policy One: "),
        (
            "from typing import NamedTuple\nfrom c2c.policies import place\n"
            "class FirstIdle(NamedTuple): pass\n@place.by(FirstIdle)\n"
            f"def f({PLACE}): return 0",
            "policy FirstIdle: the name is already used in",
        ),
        (
            "from typing import NamedTuple\nfrom c2c.policies import place\n"
            "class Mine(NamedTuple): pass\n@place.by(Mine)\ndef f(policy, table): return 0",
            r"policy Mine: mine.py, line 4: place is given \(policy, own, .*this takes \(policy, t",
        ),
        (
            "from c2c.workloads.formats import TraceFormat\nTraceFormat(name='a', arrival_s=5)",
            r"policy mine.py: line 2: .*format a\.arrival_s=5: expected the name of a column\.$",
        ),
        (
            "from c2c.workloads.formats import *\nTraceFormat(name='a', arrival_s='', unit='sec')",
            r"line 2: .*format a\.unit='sec': expected one of s, ms, us",
        ),
        (
            "from c2c.policies import place\nclass Mine: pass\n@place.by(Mine)\n"
            f"def f({PLACE}): return 0",
            "policy Mine: not a NamedTuple",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.py").write_text(text)
    with pytest.raises(PolicyError, match=said):
        load(folder=tmp_path)
    assert "mine" not in sys.modules


def test_folders_and_names_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="folder='/no/such': expected a folder"):
        load(folder="/no/such")
    for name in ("json", "my-policy"):
        file = tmp_path / f"{name}.py"
        file.write_text("")
        with pytest.raises(SettingError, match="expected a file whose name is"):
            load_code([file])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 7 if count > 6 else 0", "place returned something that is not a row"),
        ("return 0.0 if count > 99 else 0", "place returned float64, not a row"),
        ("return table.no_such if count > 99 else 0", "mine.py, line 8: Unknown attribute"),
        ("return of(count) if count > 99 else 0", "mine.py, line 8: of is called without"),
    ],
)
def test_mistakes_that_only_the_compiled_run_meets(tmp_path: Path, body: str, said: str) -> None:
    """Answers and types on a path that the first requests did not take."""
    load(folder=policy(tmp_path, body, more="def of(x): return x"))
    mine = sys.modules["mine"].Mine()
    table = np.zeros(8, CANDIDATE_DTYPE).view(np.recarray)

    def decide(policy: Any, own: Any, table: Any) -> int:
        return place(policy, own, table, 7, 0, 0.0, 1)

    class Rules:
        system = System(place=mine)

    try:
        numba.njit(**OPTIONS)(decide)(mine, Nothing(), table)
    except Exception as error:  # noqa: BLE001 (the compiler's, or the policy's)
        found = policy_error(error, Rules)
    assert isinstance(found, PolicyError)
    assert str(found).startswith("policy Mine: mine.py, line ")
    assert said in str(found)


def test_policies_of_the_package_need_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = build(load(["workload=poisson", "workload.requests=5"]))
    monkeypatch.setattr("c2c.simulator.trial.run_blocks", None)
    try_policies(setup.prepared, setup.workload)


BOMB = "".join(
    f"a{k}: &a{k} [{', '.join(['x' if k == 0 else f'*a{k - 1}'] * 10)}]\n" for k in range(9)
)


@pytest.mark.parametrize("text", [BOMB, "a: &a [1, *a]\n"], ids=["nine levels of ten", "itself"])
def test_aliases_that_stand_for_too_much_are_refused_before_they_are_followed(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "bomb.yaml").write_text(text)
    with pytest.raises(SettingError, match=r"bomb.yaml.*at most 100000 values"):
        settings_folder(tmp_path, "config-dir")


def test_aliases_that_stand_for_little_are_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: &a [1, 2]\nb: [*a, *a]\nc: *a\n")
    (tmp_path / "broken.yaml").write_text("a: &a [*b")  # for whoever reads it
    assert settings_folder(tmp_path, "config-dir") == tmp_path.resolve()
