"""Builds by real compilers behind walls, and their cache."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox.building.build import Builder
from sandbox.building.build_report import BuildReport
from sandbox.cache import locked
from sandbox.errors import SandboxFault
from sandbox.evaluator import LocalEvaluator
from sandbox.machine.device import arch_list
from sandbox.observation import FailureKind
from sandbox.subjects.stand import Stand
from sandbox.types import Candidate, Language, Task
from sandbox.worker.extensions import _known
from tests.sandbox.conftest import FAST

INLINE = """
from torch.utils.cpp_extension import load_inline
PATH = load_inline("one", cpp_sources=['extern "C" int one() {{ return {value}; }}'],
                   is_python_module=False, no_implicit_headers=True)
class ModelNew: pass
"""


def candidate(source: str) -> Candidate:
    return Candidate("test/build", Language.CPP, source)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    found = Builder(tmp_path_factory.mktemp("builds"))
    yield found
    found.close()


def test_a_build_is_made_once(builder: Builder) -> None:
    first = builder.build(candidate(INLINE.format(value=1)), FAST)
    assert (first.failure, first.cached) == (None, False)
    assert first.artifacts is not None
    assert (first.artifacts / "0" / "one.so").read_bytes()[:4] == b"\x7fELF"
    again = builder.build(candidate(INLINE.format(value=1)), FAST)
    assert (again.cached, again.artifacts) == (True, first.artifacts)


def test_beside_a_cache_that_may_only_be_read_it_is_built_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate that was new was a fault of ours."""
    builder = Builder(tmp_path)
    known, new = (candidate(INLINE.format(value=v)) for v in (1, 2))
    builder.build(known, FAST)
    held = locked

    def refused(path: Path) -> contextlib.AbstractContextManager[None]:
        if path.is_relative_to(tmp_path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return held(path)

    monkeypatch.setattr("sandbox.building.build.locked", refused)
    made = [builder.build(each, FAST) for each in (known, new, new, known)]
    assert [(m.failure, m.cached) for m in made] == [(None, c) for c in (True, False, True, True)]
    assert made[1].artifacts is not None
    apart = made[1].artifacts
    assert not apart.is_relative_to(tmp_path)
    builder.close()
    assert not apart.exists()


INCLUDING = """
from torch.utils.cpp_extension import load_inline
CODE = '#include <value.h>\\nextern "C" int one() {{ return VALUE; }}'
PATH = load_inline("one", cpp_sources=[CODE], is_python_module=False, no_implicit_headers=True,
                   {headers})
class ModelNew: pass
"""


@pytest.fixture
def headers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that workers may read, as those of packages."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        yield Path(folder)


@pytest.mark.parametrize("how", ["extra_include_paths=['{}']", "extra_cflags=['-I{}']"])
def test_a_library_is_built_again_once_a_header_that_it_includes_is_another(
    builder: Builder, headers: Path, how: str
) -> None:
    """A library of another version of CUTLASS was served for good."""
    header = headers / "value.h"
    source = candidate(INCLUDING.format(headers=how.format(header.parent)))
    missing = builder.build(source, FAST)
    assert missing.failure is not None
    assert "value.h" in missing.failure.message
    found = []
    for text in ("#define VALUE 2\n", "#define VALUE 2\n", "#define VALUE 33\n"):
        if not header.exists() or header.read_text() != text:
            header.write_text(text)
        report = builder.build(source, FAST)
        assert report.failure is None, report.log
        assert report.artifacts is not None
        [library] = report.artifacts.rglob("*.so")
        found.append((report.cached, library.read_bytes()))
    assert [cached for cached, _ in found] == [False, True, False]
    assert found[0][1] == found[1][1] != found[2][1]


def test_an_evaluators_zygote_serves_builds_unless_they_are_told_an_architecture(
    evaluator: LocalEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    builder = Builder(tmp_path, zygote=evaluator._zygote)
    assert builder._zygote is not evaluator._zygote
    assert (evaluator._builder._zygote is evaluator._zygote) is (not arch_list())


@pytest.mark.parametrize("left", [0, 100])
def test_a_library_that_is_not_whole_is_built_again(builder: Builder, left: int) -> None:
    source = INLINE.format(value=100 + left)
    library = _artifacts(builder.build(candidate(source), FAST)) / "0" / "one.so"
    whole = library.read_bytes()
    library.write_bytes(whole[:left])
    again = builder.build(candidate(source), FAST)
    assert not again.cached
    assert (_artifacts(again) / "0" / "one.so").read_bytes()[:4] == b"\x7fELF"
    assert builder.build(candidate(source), FAST).cached


def _artifacts(report: BuildReport) -> Path:
    assert report.artifacts is not None
    return report.artifacts


def test_an_error_is_remembered_with_the_compilers_words(builder: Builder) -> None:
    for cached in (False, True):
        found = builder.build(candidate(INLINE.format(value="nonsense")), FAST)
        assert found.failure is not None
        assert "BuildFailed" in found.failure.types
        assert "nonsense" in found.failure.message
        assert "-DTORCH_EXTENSION_NAME" not in found.failure.message
        assert "nonsense" in found.log
        assert found.cached is cached


def test_a_full_disk_is_neither_an_error_of_the_source_nor_remembered(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = candidate(INLINE.format(value="no_such_name"))
    monkeypatch.setattr(builder, "least_free_bytes", 1 << 60)
    with pytest.raises(SandboxFault, match="too little to compile"):
        builder.build(source, FAST)
    monkeypatch.undo()
    assert not builder.build(source, FAST).cached


def test_a_library_that_cannot_be_kept_is_our_fault(builder: Builder) -> None:
    source = candidate(INLINE.format(value=77))
    builder.warm()  # with the limits that there were
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(SandboxFault, match="cannot be kept"):
            builder.build(source, FAST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert builder.build(source, FAST).failure is None


def test_a_long_log_keeps_head_and_tail(builder: Builder) -> None:
    config = replace(FAST, log_limit_bytes=400)
    found = builder.build(candidate(INLINE.format(value="lost;" * 50)), config)
    assert len(found.log) <= 410
    assert "\n...\n" in found.log


@pytest.mark.parametrize(
    ("source", "kind"),
    [("import os; os._exit(1)", FailureKind.DIED), ("while True: pass", FailureKind.TIMEOUT)],
)
def test_a_death_or_time_out_is_not_remembered(
    builder: Builder, source: str, kind: FailureKind
) -> None:
    for _ in range(2):
        found = builder.build(candidate(source), replace(FAST, build_timeout_s=1))
        assert found.failure is not None
        assert (found.failure.kind, found.cached) == (kind, False)
    assert not list(builder._folder.glob(".*"))


ENDLESS = """
from torch.utils.cpp_extension import load_inline
SOURCE = "constexpr int f() {{ int s = 0; for (long i = 0; i < 1L << 60; ++i) s ^= i; return s; }}"
FLAGS = ["-fconstexpr-loop-limit=2147483647", "-fconstexpr-ops-limit=1" + 17 * "0"]
load_inline("endless", cpp_sources=[SOURCE + " constexpr int {name} = f();"],
            is_python_module=False, no_implicit_headers=True,
            extra_cflags=FLAGS)
class ModelNew: pass
"""


@pytest.mark.timeout(120)
def test_a_compiler_that_was_killed_is_not_remembered_as_a_refusal(builder: Builder) -> None:
    source, over = candidate(ENDLESS.format(name=f"at_{os.getpid()}")), threading.Event()
    killed = list[int]()

    def kill() -> None:
        while not over.wait(0.05):
            for pid in compilers(f"at_{os.getpid()}"):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        found = builder.build(source, FAST)
    finally:
        over.set()
        killer.join()
    assert killed
    assert found.failure is not None
    assert (found.failure.kind, found.cached) == (FailureKind.CLAIMED, False)
    assert "Killed signal" in found.failure.message
    again = builder.build(source, replace(FAST, build_timeout_s=2))
    assert again.failure is not None
    assert (again.failure.kind, again.cached) == (FailureKind.TIMEOUT, False)


def compilers(name: str) -> list[int]:
    """Processes of g++'s compiler whose source holds this name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(words[0]).name == "cc1plus" and any(
                name in Path(word).read_text() for word in words if word.endswith(".cpp")
            ):
                found.append(int(folder.name))
    return found


def test_an_import_that_fails_is_the_runs_to_judge(builder: Builder) -> None:
    found = builder.build(candidate(INLINE.format(value=2) + "raise OSError('no GPU')"), FAST)
    assert found.failure is None
    assert found.artifacts is not None


CLAIM = """
import gc, os
from sandbox.machine.channel import Channel
os.makedirs("artifacts/0", exist_ok=True)
{make}
channel = [c for c in gc.get_objects() if isinstance(c, Channel) and c._nonce != "zygote"][0]
channel.send({{"ok": {{"artifacts": {artifacts}}}}})
import time; time.sleep(5)
"""


@pytest.mark.parametrize(
    ("make", "artifacts"),
    [
        ("os.symlink('/etc/shadow', 'artifacts/0/a.so')", "[{'key': 'k', 'libraries': ['a.so']}]"),
        ("os.mkdir('artifacts/0/a.so')", "[{'key': 'k', 'libraries': ['a.so']}]"),
        ("", "[{'key': 'k', 'libraries': ['../../../../etc/passwd']}]"),
        (
            "os.rmdir('artifacts/0'); os.symlink('/etc', 'artifacts/0')",
            "[{'key': 'k', 'libraries': ['passwd']}]",
        ),
        (
            "os.rename('artifacts', 'a'); os.mkdir('b'); os.symlink('/', 'b/0'); "
            "os.symlink('b', 'artifacts')",
            "[{'key': 'k', 'libraries': ['passwd']}]",
        ),
        ("", "[{'key': 'k', 'libraries': ['']}]"),
        ("", "[{'libraries': []}]"),
        ("", "3"),
        ("", "[7]"),
    ],
    ids=[
        "link",
        "folder",
        "path",
        "linked folder",
        "linked parent",
        "no name",
        "no key",
        "number",
        "numbers",
    ],
)
def test_what_a_build_claims_to_have_made_is_checked(
    builder: Builder, make: str, artifacts: str
) -> None:
    found = builder.build(candidate(CLAIM.format(make=make, artifacts=artifacts)), FAST)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.PROTOCOL
    assert found.artifacts is None


def test_a_fifo_among_the_artefacts_does_not_block_us(builder: Builder) -> None:
    make, artifacts = "os.mkfifo('artifacts/0/a.so')", "[{'key': 'k', 'libraries': ['a.so']}]"
    found = builder.build(candidate(CLAIM.format(make=make, artifacts=artifacts)), FAST)
    assert found.failure is not None
    assert found.failure.kind is FailureKind.PROTOCOL


def test_two_builders_share_one_cache(builder: Builder, tmp_path: Path) -> None:
    other = Builder(builder._folder.parent)
    first = builder.build(candidate(INLINE.format(value=3)), FAST)
    assert other.build(candidate(INLINE.format(value=3)), FAST).artifacts == first.artifacts
    other.close()


def test_equal_sources_asked_for_at_once_are_built_once(builder: Builder) -> None:
    text = INLINE.format(value=4)
    asked = [Candidate(f"test/{n}", Language.CPP, text) for n in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda each: builder.build(each, FAST), asked))
    assert sorted(report.cached for report in found) == [False, True, True]
    assert len({report.artifacts for report in found}) == 1


TASK = Task(
    "test/late",
    """
import torch
class Model(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return x * self.factor
def get_inputs():
    return [torch.rand(64, 512)]
def get_init_inputs():
    return [3]
""",
    "cpu",
)
MODULE = """
#include <Python.h>
static PyObject* scale(PyObject*, PyObject* pair) {
  return PyNumber_Multiply(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
}
static PyMethodDef methods[] = {{"scale", scale, METH_VARARGS, nullptr}, {}};
static PyModuleDef described = {PyModuleDef_HEAD_INIT, "scale", nullptr, -1, methods};
#define JOINED(one, other) one##other
#define STARTS(name) JOINED(PyInit_, name)
PyMODINIT_FUNC STARTS(TORCH_EXTENSION_NAME)() { return PyModule_Create(&described); }
"""
"""An extension as torch's binding makes one. Without torch's headers it is compiled in a moment."""
PLAIN = "cpp_sources=MODULE, no_implicit_headers=True"
WITH_TENSORS = """
cpp_sources="at::Tensor scale(const at::Tensor& x, double f) { return x * f; }",
functions=["scale"]
"""
LATE = """
import torch
from torch.utils.cpp_extension import load_inline
MODULE = {module!r}
made = None
def extension(factor):
    global made
    if made is None:
        made = load_inline("late_" + str(factor), {given})
    return made
class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        {constructed}
    def forward(self, x):
        {called}
        return extension(self.factor).scale(x, float(self.factor))
"""
BEFORE = "bool(x.isnan().any())"
"""What no rehearsal comes past: there are no values."""


GUARDED = """
import sys, torch
from torch.utils.cpp_extension import load_inline
if "torch._subclasses.fake_tensor" in sys.modules and hasattr(torch, "rehearsed"):
    made = load_inline("late_3", cpp_sources=['extern "C" int one() { return 1; }'],
                       is_python_module=False, no_implicit_headers=True)
torch.rehearsed = True
class ModelNew(torch.nn.Module): ...
"""
"""Not built by the first import."""


def late(constructed: str = "pass", called: str = "pass", given: str = PLAIN) -> Candidate:
    parts = {"module": MODULE, "given": given, "constructed": constructed, "called": called}
    return Candidate(TASK.id, Language.CPP, LATE.format(**parts))


@pytest.mark.parametrize(
    "source",
    [
        late(constructed="self.scale = extension(factor).scale"),
        late(),
        replace(late(), source=GUARDED),
    ],
    ids=["constructed", "called", "guarded"],
)
@pytest.mark.slow
def test_what_is_built_when_a_model_is_constructed_or_called_is_built_ahead(
    builder: Builder, source: Candidate
) -> None:
    found = builder.build(source, FAST, TASK)
    assert (found.failure, found.artifacts is not None) == (None, True)
    assert [p.name for p in (found.artifacts or Path()).glob("*/*.so")] == ["late_3.so"]
    assert builder.build(source, FAST, TASK).cached
    assert not builder.build(source, FAST, replace(TASK, dtype="float64")).cached


@pytest.mark.slow
def test_an_extension_with_torchs_headers_is_built_ahead(builder: Builder) -> None:
    found = builder.build(late(given=WITH_TENSORS), FAST, TASK)
    assert (found.failure, found.artifacts is not None) == (None, True)
    assert [p.name for p in (found.artifacts or Path()).glob("*/*.so")] == ["late_3.so"]


@pytest.mark.slow
def test_a_rehearsal_that_comes_to_nothing_says_nothing(builder: Builder) -> None:
    found = builder.build(late(called=BEFORE), FAST, TASK)
    assert (found.failure, found.artifacts) == (None, None)
    died = "import os; os._exit(3)"
    assert builder.build(late(called=died), FAST, TASK).failure is None


REFUSED_LATE = """
import torch
from torch.utils.cpp_extension import load_inline
class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
    def forward(self, x):
        load_inline("late", cpp_sources=['extern "C" int one() { return nothing; }'],
                    is_python_module=False, no_implicit_headers=True)
        return x
"""


def test_what_does_not_compile_late_is_told_without_compiling_again(builder: Builder) -> None:
    source = replace(late(), source=REFUSED_LATE)
    found = builder.build(source, FAST, TASK)
    assert (found.failure, found.artifacts is not None) == (None, True)
    assert "nothing" in ((found.artifacts or Path()) / "0" / "failed").read_text()


FALLS_BACK = """
import torch
from torch.utils.cpp_extension import load_inline
try:
    made = load_inline("guarded", cpp_sources=['extern "C" int one() {{ return {value}; }}'],
                       is_python_module=False, no_implicit_headers=True)
except RuntimeError:
    made = None
class ModelNew(torch.nn.Module): ...
"""


def test_a_refusal_that_a_candidate_is_ready_for_is_remembered(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = builder.build(candidate(FALLS_BACK.format(value="no_such_name")), FAST)
    assert (found.failure, found.artifacts is not None) == (None, True)
    assert "no_such_name" in ((found.artifacts or Path()) / "0" / "failed").read_text()
    monkeypatch.setattr(builder, "least_free_bytes", 1 << 60)
    with pytest.raises(SandboxFault, match="too little to compile"):
        builder.build(candidate(FALLS_BACK.format(value="nor_this")), FAST)


def test_a_call_that_was_refused_first_and_built_later_is_found_built(tmp_path: Path) -> None:
    """Equal but for the environment, say."""
    for number, file in enumerate(("failed", "one.so", "failed")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / file).touch()
        (folder / "key").write_text("k")
    assert _known(tmp_path, "k") == tmp_path / "1"
    (tmp_path / "1" / "key").write_text("another")
    assert _known(tmp_path, "k") == tmp_path / "0"
    assert _known(tmp_path, "none") is None
    assert _known(tmp_path / "nowhere", "k") is None


OWN_PLACE = """
import os, torch
from torch.utils.cpp_extension import load{inline}
here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "own")
os.makedirs(here, exist_ok=True)
text = {module!r}
{call}
class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
    def forward(self, x):
        return made.scale(x, self.factor)
"""
CALLS = {
    "load_inline": """
made = load_inline(f"own_{os.getpid()}", text, no_implicit_headers=True, build_directory=here)
""",
    "load": """
open(os.path.join(here, "scale.cpp"), "w").write(text)
made = load(name=f"own_{os.getpid()}", sources=[here + "/scale.cpp"], build_directory=here)
""",
}


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many every worker of a candidate was given, in turn."""
    given: list[int] = []
    furnish = Stand._subject

    def counted(self: Stand, role: str, *arguments: Any, **options: Any) -> Any:
        folders = [path for path, name in arguments[3] if name == "artifacts"]
        if role == "candidate":
            given.append(len({library.name for f in folders for library in f.glob("*/*.so")}))
        return furnish(self, role, *arguments, **options)

    monkeypatch.setattr(Stand, "_subject", counted)
    return given


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.slow
def test_an_extension_with_a_name_and_a_place_of_the_processs_own_is_built_once(
    kind: str, evaluator: LocalEvaluator, libraries: list[int]
) -> None:
    inline = kind.removeprefix("load")
    source = OWN_PLACE.format(inline=inline, module=MODULE, call=CALLS[kind])
    found = evaluator.evaluate(TASK, Candidate(TASK.id, Language.CPP, source), FAST)
    assert found.passed, found.detail
    assert len(libraries) > 1
    assert set(libraries) == {1}  # none compiled another


@pytest.mark.slow
def test_what_only_the_run_could_compile_is_compiled_once_in_a_candidates_first_worker(
    evaluator: LocalEvaluator, libraries: list[int]
) -> None:
    found = evaluator.evaluate(TASK, late(called=BEFORE), FAST)
    assert found.passed, found.detail
    assert libraries[0] == 0
    assert len(libraries) > 1
    assert set(libraries[1:]) == {1}
