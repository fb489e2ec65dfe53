"""The house's one-way imports, held by walking every file's syntax tree."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "sandbox": {"sandbox"},
    "rewards": {"sandbox", "rewards"},
    "kernelbench": {"sandbox", "kernelbench"},
    "agent": {"sandbox", "rewards", "kernelbench", "agent"},
    "rl": {"sandbox", "rewards", "kernelbench", "agent", "rl"},
    "configs": set(),
}
NOUNS = {
    *("types", "figures", "evidence", "observation", "errors", "words", "records", "static"),
    *("cache", "cleanup", "stages"),
}
"""What all of the sandbox may use; its other modules beside the folders use all of those."""
WALLED = {"walls", "machine", "worker"}
INSIDE = {
    "walls": {"walls"},
    "machine": WALLED,
    "building": WALLED | {"building"},
    "judging": {"machine", "judging"},
    "subjects": {"machine", "judging", "subjects"},
    "checking": {"machine", "judging", "subjects", "checking"},
    "pairs": {"machine", "judging", "subjects", "checking", "pairs", "worker"},
    "baselines": {"machine", "judging", "subjects", "checking", "pairs", "baselines"},
}
"""Folder of the sandbox -> those that it may use."""
LOOP = {
    "journals": {"journals", "types", "confirm"},
    "engines": {"engines", "types"},
    "loop": {
        *("journals", "engines", "loop", "types", "confirm"),
        *("limits", "model", "learner"),
    },
}
"""Folder of the agent's loop -> what of the agent it may use."""
COMMANDS = ROOT / "agent" / "commands"
"""The command line, the one part of a package above warpsmith.py, and nobody's but its own."""
OURS = {*ALLOWED, "warpsmith", "tests"}
ONE_OWNER = ("openai", "ray", "cupy", "trl")


def modules() -> list[Path]:
    """Every file of ours that is not a test."""
    found = [p for package in ALLOWED for p in (ROOT / package).rglob("*.py")]
    return [*sorted(found), ROOT / "warpsmith.py"]


@cache
def imported(path: Path) -> frozenset[str]:
    """Top-level names of all imports in a file, at whatever depth; none are relative."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add((node.module or "").partition(".")[0])
    return frozenset(found)


def users(package: str) -> list[str]:
    return [str(p.relative_to(ROOT)) for p in modules() if package in imported(p)]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_run_one_way(package):
    for path in (ROOT / package).rglob("*.py"):
        if COMMANDS not in path.parents:
            upward = imported(path) & OURS - ALLOWED[package]
            assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}"


def parts(package: str, path: Path) -> set[str]:
    """Names next below a package that a file imports from."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            found.add((node.module or "").split(".")[1])
    return found


@pytest.mark.parametrize("folder", INSIDE)
def test_inside_the_sandbox_imports_run_one_way_too(folder):
    files = sorted((ROOT / "sandbox" / folder).glob("*.py"))
    assert len(files) > 1
    for path in files:
        upward = parts("sandbox", path) - INSIDE[folder] - NOUNS
        assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}"


@pytest.mark.parametrize("folder", LOOP)
def test_inside_the_loop_imports_run_one_way_too(folder):
    files = sorted((ROOT / "agent" / folder).glob("*.py"))
    assert len(files) > 1
    for path in files:
        upward = parts("agent", path) - LOOP[folder]
        assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}"


def test_the_nouns_use_none_but_each_other():
    for name in NOUNS - {"static"}:
        upward = parts("sandbox", ROOT / "sandbox" / f"{name}.py") - NOUNS
        assert not upward, f"sandbox/{name}.py imports {sorted(upward)}"


def test_only_the_console_script_imports_the_command_line():
    users = {
        p for p in modules() if COMMANDS not in p.parents and "agent.commands" in p.read_text()
    }
    assert users == {ROOT / "warpsmith.py"}


INITS = [p for package in (*ALLOWED, "tests") for p in (ROOT / package).rglob("__init__.py")]


@pytest.mark.parametrize("path", sorted(INITS), ids=str)
def test_every_init_is_a_docstring(path):
    body = ast.parse(path.read_text()).body
    assert len(body) <= 1
    assert all(isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in body)


@pytest.mark.parametrize("package", ONE_OWNER)
def test_a_heavy_package_has_exactly_one_owner(package):
    assert len(users(package)) == 1


def test_torch_is_used_by_the_sandbox():
    assert any(user.startswith("sandbox/") for user in users("torch"))
