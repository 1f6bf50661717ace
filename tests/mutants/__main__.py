"""Small faults put into the code, one at a time, and the tests that notice.

    python -m tests.mutants out=build/mutants count=120      # goes on where it was stopped
    python -m tests.mutants out=build/mutants count=120 only=17 budget_s=900

It works on a copy of what is committed. First the tests of `tests` run once, and the lines that
each runs are noted. A fault is shown to those that run its line, the quickest first, and then to
`also`: these run code where no line is seen, as machine code or in processes. Each fault gives a
line of JSON in `out`/results.jsonl.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from c2c.compiling.machine_code import cache_dir
from c2c.errors import SettingError
from experiments.plain_settings import run_settings
from tests.mutants.faults import Fault, faults_of

ROOT: Final = Path(__file__).parents[2]
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
FOUND, MISSED, TOO_LONG = "found", "missed", "too_long"


@dataclass
class MutantsSettings:
    """Faults, and the tests that are to find them.

    Attributes:
      out: folder of the copy, of what each test runs and of the results.
      seed: of the draw; each of `paths` gets as many faults, and each kind of code there.
      count: how many are drawn.
      only: number of one fault that is tried again; null: all that have no result.
      paths: folders of code that get faults.
      tests: folders and files whose tests may see one.
      also: those that run after them: what they run as machine code, or in processes, is not seen.
      marks: pytest's expression for which of the tests run.
      budget_s: seconds of tests, as they took without a fault, that a fault is shown to.
      limit_s: seconds after which the tests of a fault are ended: it may hang.
    """

    out: str = "build/mutants"
    seed: int = 0
    count: int = 100
    only: int | None = None
    paths: list[str] = field(
        default_factory=lambda: ["c2c/serving", "c2c/policies", "c2c/simulator", "c2c/engine"]
    )
    tests: list[str] = field(
        default_factory=lambda: [
            *("tests/policies", "tests/contracts", "tests/simulator", "tests/golden"),
            *("tests/engine", "tests/vopr", "tests/config", "tests/workloads"),
            "tests/rooms",
        ]
    )
    also: list[str] = field(
        default_factory=lambda: [
            *(
                "tests/golden",
                "tests/contracts/test_compiled_step.py",
                "tests/engine/test_serve.py",
            ),
            *("tests/engine/test_adding.py", "tests/engine/test_prefix.py"),
        ]
    )
    marks: str = "not soak and not slow"
    budget_s: float = 120.0
    limit_s: float = 600.0


def _copied(out: Path) -> Path:
    """Return a copy of what is committed, made once."""
    tree = out / "tree"
    if not tree.exists():
        packed = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
        )
        partial = out / "tree.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(tree)
    return tree


def _environment(tree: Path, **more: str) -> dict[str, str]:
    """Return an environment in which processes anywhere import from the copy."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    own = {"PYTHONPATH": str(tree)}
    return {"C2C_SHARED": str(ROOT.parent / "shared")} | kept | own | more


def _seen(settings: MutantsSettings, out: Path, tree: Path) -> dict[str, Any]:
    """Return, of each test that passes, its seconds and the lines it runs; looked at once."""
    file = out / "seen.json"
    if not file.exists():
        subprocess.run(
            [*PYTEST, "-p", "tests.mutants.seen", "-m", settings.marks, *settings.tests],
            cwd=tree, env=_environment(tree, SEEN=str(file), SEEN_UNDER=" ".join(settings.paths)),
        )  # fmt: skip
    return dict(json.loads(file.read_text("utf-8")))


def drawn(settings: MutantsSettings, tree: Path) -> Iterator[Fault]:
    """Yield faults, each from another folder than the one before, of any kind as likely."""
    g = random.Random(settings.seed)
    kinds: dict[str, dict[str, list[Fault]]] = {}
    for folder in settings.paths:
        kinds[folder] = defaultdict(list)
        for file in sorted((tree / folder).rglob("*.py")):
            path = str(file.relative_to(tree))
            for fault in faults_of(path, file.read_text("utf-8")):
                kinds[folder][fault.kind].append(fault)
    for k in range(settings.count):
        of = kinds[settings.paths[k % len(settings.paths)]]
        kind = g.choice(sorted(kind for kind, left in of.items() if left))
        yield of[kind].pop(g.randrange(len(of[kind])))


def chosen(fault: Fault, seen: Mapping[str, Any], source: str, budget_s: float) -> list[str]:
    """Return the tests that run a fault's line, by seconds, files in turn, within a budget.

    If none does, those that run another line of its function; if none of these, of its file.
    """
    own = {fault.line + k for k in range(fault.before.count("\n") + 1)}
    around = {f.line for f in faults_of(fault.path, source) if f.within == fault.within}
    for lines in (own, around, None):
        tests = [
            (float(test["seconds"]), name)
            for name, test in seen.items()
            if (ran := test["lines"].get(fault.path)) and (lines is None or lines & {*ran})
        ]
        if tests:
            break
    turns: dict[str, int] = defaultdict(int)
    in_turn = []
    for seconds, name in sorted(tests):
        file = name.split("::")[0]
        in_turn.append((turns[file], seconds, name))
        turns[file] += 1
    kept, spent_s = [], 0.0
    for _, seconds, name in sorted(in_turn):
        spent_s += seconds
        if spent_s < budget_s or not kept:
            kept.append(name)
    return kept


def _run(
    tree: Path, tests: Sequence[str], marks: str, cache: Path, limit_s: float
) -> tuple[str, str]:
    """Return whether tests notice, and the first that does."""
    if not tests:
        return MISSED, ""
    listed = cache.parent / "tests.txt"
    listed.write_text("\n".join(tests), "utf-8")
    with subprocess.Popen(
        [*PYTEST, "-x", "--tb=line", "-m", marks, f"@{listed}"], cwd=tree, text=True,
        env=_environment(tree, C2C_CACHE=str(cache)), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as pytest:  # fmt: skip
        try:
            said, _ = pytest.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(pytest.pid, 9)
            said, _ = pytest.communicate()
            return TOO_LONG, ""
    if pytest.returncode in (0, 5):
        return MISSED, ""
    bad = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return FOUND, bad[0][:300] if bad else said[-300:]


def _tried(
    settings: MutantsSettings, fault: Fault, number: int, tree: Path, seen: Mapping[str, Any]
) -> dict[str, Any]:
    out, file = tree.parent, tree / fault.path
    source, began_s = file.read_text("utf-8"), time.monotonic()
    cache = out / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    if (kept := cache_dir().parents[1]).exists():  # of the policies that stay as they are
        shutil.copytree(kept, cache)
    tests = chosen(fault, seen, source, settings.budget_s)
    file.write_text(fault.put(source), "utf-8")
    os.utime(file, times=(number + 1, number + 1))  # compiled Python is kept by time and size
    try:
        verdict, by = _run(tree, tests, settings.marks, cache, settings.limit_s)
        if verdict == MISSED:
            verdict, by = _run(tree, settings.also, settings.marks, cache, settings.limit_s)
    finally:
        file.write_text(source, "utf-8")
        shutil.rmtree(cache, ignore_errors=True)
    return {
        "number": number, **asdict(fault), "verdict": verdict, "by": by, "tests": len(tests),
        "seconds": round(time.monotonic() - began_s, 1),
    }  # fmt: skip


def _work(settings: MutantsSettings) -> int:
    for name, value in (("count", settings.count), ("limit_s", settings.limit_s)):
        if not value > 0:
            raise SettingError(name, value, "above 0")
    out = Path(settings.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    tree = _copied(out)
    seen = _seen(settings, out, tree)
    results = out / "results.jsonl"
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    known = {int(json.loads(line)["number"]): json.loads(line) for line in lines}
    for number, fault in enumerate(drawn(settings, tree)):
        if number != settings.only if settings.only is not None else number in known:
            continue
        known[number] = _tried(settings, fault, number, tree, seen)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(known[number]) + "\n")
        found = known[number]
        print(
            f"{number} {found['verdict']} in {found['seconds']} s: {fault.path}:{fault.line} "
            f"{fault.before!r} -> {fault.after!r}; {found['by']}", flush=True,
        )  # fmt: skip
    missed = sum(found["verdict"] == MISSED for found in known.values())
    print(f"{len(known)} faults, {missed} missed")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Try the faults of a command line."""
    return run_settings(MutantsSettings, arguments, _work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
