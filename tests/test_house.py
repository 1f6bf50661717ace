"""Rules of the house, checked on the tree as it is, so that they cannot rot."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("c2c", "pallas_kernels", "experiments")
MAX_LINES = 500

# Put together here so that this file does not contain what it looks for.
MACHINE_MARKS = tuple(
    a + b
    for a, b in [
        ("/ro", "ot/"),
        ("/wo", "rk/"),
        ("/ho", "me/"),
        ("/tm", "p/"),
        ("/opt/py", "pi"),
        ("files.python", "hosted"),
        ("pypi", ".org"),
        ("registry.npm", "js"),
        ("deb.deb", "ian"),
    ]
)


def modules(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    """Every text file git tracks or would track; every file of an unpacked archive without git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: tracked files cannot be told from the rest")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes()[:4096]:
            yield path


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def direct_requirements() -> dict[str, list[Requirement]]:
    table = project()
    extras = table["optional-dependencies"]
    groups = {"": table["dependencies"], **extras}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


CONSTRAINTS = ROOT / ".ci" / "constraints"


def constraints(name: str = "main") -> dict[str, str]:
    lines = (CONSTRAINTS / f"{name}.txt").read_text("utf-8").splitlines()
    pins = (line.split("==") for line in lines if line.strip() and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.partition(".")[0])
    return roots


def imports_of_modules() -> dict[str, set[str]]:
    """Return what each of our modules imports of ours: at its top, in functions and for types."""
    files = {}
    for path in modules(*PACKAGES):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    result = {}
    for name, path in files.items():
        named = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: imports are absolute"
                each = [f"{node.module}.{alias.name}" for alias in node.names]
                named |= {one if one in files else str(node.module) for one in each}
        result[name] = (named & files.keys()) - {name}
    return result


def test_no_modules_import_one_another_in_a_circle() -> None:
    graph = imports_of_modules()
    TopologicalSorter(graph).prepare()  # a CycleError names the modules
    graph["c2c.errors"].add("c2c.config.build")
    with pytest.raises(CycleError, match=r"c2c\.errors"):
        TopologicalSorter(graph).prepare()


def test_no_file_is_too_long() -> None:
    lengths = {p: len(p.read_text("utf-8").splitlines()) for p in modules(*PACKAGES, "tests")}
    assert len(lengths) > 20  # the search itself works
    assert not {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MAX_LINES}


def test_docstrings_begin_with_their_subject() -> None:
    """No question word, preposition or bare pronoun opens them (docstrings are read as a list)."""
    hanging = re.compile(
        r"(?:What|Which|How|Whether|Where|Who|Whose|That|Those|When|Does"
        r"|Of|In|By|From|To|As|On|At|For|With)\b"
    )
    assert hanging.match("Whether it is so.")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        for path in modules(*PACKAGES, "tests")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, documented) and hanging.match(ast.get_docstring(node) or "")
    ]
    assert not found


def test_no_module_is_called_utils() -> None:
    vague = {"utils", "util", "helpers", "misc", "common"}
    assert not [p for p in modules(*PACKAGES) if p.stem in vague or p.parent.name in vague]


# Participles and pronouns that stand for nouns, where a variable or field gets such a name.
NO_NOUNS = {
    "asked", "at", "each", "found", "given", "held", "kept", "known", "left", "made", "of", "own",
    "said", "told", "wanted", "what",
}  # fmt: skip
# They may only fall. Parameters: mostly `own` of policies; variables: mostly fields.
MOST_PARAMETERS, MOST_VARIABLES = 117, 121


def test_names_are_nouns() -> None:
    parameters = variables = 0
    for path in modules(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            parameters += isinstance(node, ast.arg) and node.arg in NO_NOUNS
            variables += (
                isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store)
                and node.id in NO_NOUNS
            )
    assert parameters <= MOST_PARAMETERS
    assert variables <= MOST_VARIABLES


def test_no_machine_path_or_host_in_tracked_files() -> None:
    # LICENSE is the licence's own text; a URL path like example.com/home/ is no machine path.
    pattern = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, MACHINE_MARKS)) + ")")
    assert pattern.search(f"open('{MACHINE_MARKS[0]}x')")  # it can fail
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_no_large_file_is_tracked() -> None:
    assert not [p for p in text_files() if p.stat().st_size > 2_000_000]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_modules_is_a_package(package: str) -> None:
    folders = {p.parent for p in modules(package)}
    assert ROOT / package in folders
    assert not [f for f in folders if not (f / "__init__.py").exists()]


def test_every_package_can_be_imported_in_either_order() -> None:
    names = list(PACKAGES) + [
        f"c2c.{p.name}" for p in sorted((ROOT / "c2c").iterdir()) if (p / "__init__.py").exists()
    ]
    # Two processes, not one a package: an import cycle shows when its far end comes first.
    for order in (names, names[::-1]):
        code = "import importlib\n" + "\n".join(f"importlib.import_module({n!r})" for n in order)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


def heavy_modules_after(statement: str) -> set[str]:
    heavy = ("jax", "jaxlib", "optax", "flax", "matplotlib", "fastapi", "msgspec", "uvicorn")
    code = f"{statement}\nimport sys\nprint([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(ast.literal_eval(result.stdout.splitlines()[-1]))


def test_heavy_modules_would_be_seen() -> None:
    assert "matplotlib" in heavy_modules_after("import matplotlib")


@pytest.mark.parametrize("module", ["c2c", "c2c.simulator", "c2c.config", "experiments.simulate"])
def test_start_up_is_light(module: str) -> None:
    assert heavy_modules_after(f"import {module}") == set()


@pytest.mark.parametrize("package", ["c2c", "pallas_kernels"])
def test_a_package_gives_all_it_names_and_says_what_it_has_not(package: str) -> None:
    code = (
        f"import {package} as p\n"
        "assert set(p.__all__) <= set(dir(p))\n"
        "assert all(getattr(p, name) is not None for name in p.__all__)\n"
        "try:\n    p.nothing\nexcept AttributeError as e:\n    print(e)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == f"module {package!r} has no attribute 'nothing'"


def test_no_system_is_named_where_all_are_served() -> None:
    """C2CServe's paper is a source there; other systems enter by `c2c.systems.mechanism` alone."""
    systems = ROOT / "c2c" / "systems"
    own = {p.parent.name for p in systems.glob("*/__init__.py") if "SYSTEM" in p.read_text("utf-8")}
    assert {"medusa", "tessera"} <= own
    others = "serverlessllm aegaeon finemoe moe.?infinity cocoserve weaver muxserve"
    named = re.compile("|".join([*own, *others.split()]), re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in modules("c2c/config", "c2c/serving", "c2c/simulator")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if named.search(line)
    ]
    assert not found


def test_policies_draw_no_random_numbers() -> None:
    """Import-linter sees top-level modules only, so numpy.random is looked for here."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules("c2c/compiling", "c2c/policies", "c2c/serving", "c2c/simulator")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"random", "default_rng"}
    ]
    assert not found


def test_no_arrow_plan_outlives_its_answer() -> None:
    """Threads of a plan free its input after it returns, and abort a process that exits then."""
    plans = re.compile(r"\.(sort_by|group_by)\(|\bpc\.field\(|\bacero\b")
    texts = {path: path.read_text("utf-8") for path in modules(*PACKAGES)}
    assert [f"{p}: {m[0]}" for p, text in texts.items() for m in plans.finditer(text)] == []


def test_constraints_pin_every_requirement_within_its_range() -> None:
    for group, requirements in direct_requirements().items():
        if group == "gpu":
            continue  # wheels of one vendor's hardware, not part of the locked environment
        beside = (CONSTRAINTS / f"{group}.txt").is_file()  # an extra that is no part of `make env`
        pins = constraints() | (constraints(group) if beside else {})
        for requirement in requirements:
            if requirement.name == "c2c":
                continue  # its own extras
            version = pins.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} ({group or 'dependencies'}) is not pinned"
            assert requirement.specifier.contains(version, prereleases=True), requirement


def test_constraints_are_plain_pins() -> None:
    for line in (CONSTRAINTS / "main.txt").read_text("utf-8").splitlines():
        assert re.fullmatch(r"#.*|[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line), line


# Commands that a core install is for.
FEW = "workload=poisson workload.requests=20 workload.rate_rps=2"
CORE = (
    f"simulate {FEW} figures=true",
    pytest.param(f"simulate -m {FEW} seed=0,1", marks=pytest.mark.slow),
    pytest.param("reproduce figures=table1 traces=none", marks=pytest.mark.slow),
)

# Where an extra may be imported; all other modules are the core's, which no extra is needed for.
OF_EXTRAS = {
    "kernels": (
        "pallas_kernels", "c2c/cost/calibration.py", "experiments/papers/cocoserve",
        "experiments/papers/weaver",
    ),
    "engine": (
        "c2c/engine", "c2c/systems/cocoserve/live", "c2c/systems/tessera/live",
        "c2c/systems/weaver/live", "c2c/transformer",
        "experiments/explore", "experiments/lab/bench", "experiments/lab/gpu",
        "experiments/measured", "experiments/serving", "experiments/simulated",
        "experiments/warm.py",
    ),
    "sweep": ("experiments/answers", "experiments/sweeping"),
    "ray": ("experiments/answers", "experiments/ray_cluster.py", "experiments/sweeping"),
    "driver": ("c2c/systems/program/driver",),
}  # fmt: skip


def _is_in(path: Path, where: str) -> bool:
    return path.is_relative_to(ROOT / where)


@pytest.mark.parametrize("command", CORE)
def test_the_core_needs_no_extra(command: str, tmp_path: Path) -> None:
    """The commands of a core install run where nothing else can be imported."""
    core = {canonicalize_name(r.name) for r in direct_requirements()[""]}
    waiting = list(core)
    while waiting:
        for line in requires(waiting.pop()) or []:
            needed = Requirement(line)
            name = canonicalize_name(needed.name)
            if name not in core and (needed.marker is None or needed.marker.evaluate()):
                core.add(name)
                waiting.append(name)
    absent = sorted(
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & core
        and module not in (*PACKAGES, "hydra_plugins")
    )
    assert {"jax", "optax", "flax", "fastapi", "pandas"} <= set(absent)
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name in {absent!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"sys.argv = {['c2c', *command.split()]!r}\n"
        "from experiments.cli import main\n"
        "sys.exit(main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_every_third_party_import_is_a_declared_dependency() -> None:
    distributions = packages_distributions()
    declared = {
        group: {canonicalize_name(r.name) for r in requirements}
        for group, requirements in direct_requirements().items()
    }
    declared["engine"] |= declared["kernels"]
    assert "cuda-bindings" in declared["driver"]
    assert not {"jax", "jaxlib", "flax", "optax"} & declared[""]

    def usable(path: Path) -> set[str]:
        groups = ["", *(g for g, at in OF_EXTRAS.items() if any(map(partial(_is_in, path), at)))]
        return {name for group in groups for name in declared[group]}

    undeclared = {
        f"{path.relative_to(ROOT)}: {root}"
        for path in modules(*PACKAGES)
        for root in imported_roots(path)
        if root not in sys.stdlib_module_names
        and root not in (*PACKAGES, "hydra_plugins")
        and root != "cuda"
        and not {canonicalize_name(d) for d in distributions.get(root, [root])} & usable(path)
    }
    assert not undeclared


def test_ci_scripts_can_run() -> None:
    for name in ("run", "make-venv", "make-extra", "find-python", "gpu"):
        assert (ROOT / ".ci" / name).stat().st_mode & 0o111, name


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 4
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not dead


def test_readme_names_only_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert {"reproduce", "test", "check", "gpu", "bench", "notebooks", "clean"} <= targets
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text("utf-8")))
    assert named <= targets
