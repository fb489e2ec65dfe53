"""Binaries compiled ahead, what the runtime makes of them, and what happens without them."""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import warpsmith
from agent.export.binaries import DeviceSource, Unknown, architectures, binding_of, device_sources
from agent.export.manifest import read_manifest
from agent.export.package import export_package
from agent.export.runtime import nvrtc, raw, records
from agent.export.runtime.arguments import Packed
from agent.export.runtime.driver import DriverError, Launch
from sandbox.errors import ConfigError
from tests.agent.export_cuda import cuda_artefact, gathered

CODE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


def no_nvrtc() -> bool:
    try:
        nvrtc.library()
    except nvrtc.NvrtcError:
        return True
    return False


needs_nvrtc = pytest.mark.skipif(no_nvrtc(), reason="there is no NVRTC here")


@dataclass
class FakeDriver:
    """A device of some architecture; refuses what does not begin as a binary for it would."""

    capability: tuple[int, int] = (9, 0)
    current: int = 0
    loaded: list[bytes] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    """Bytes of the arguments of launches, which are read where there are any."""

    def device(self) -> int:
        return self.current

    def arch(self, device: int) -> tuple[int, int]:
        return self.capability

    def load(self, cubin: bytes) -> int:
        if not cubin.startswith(b"good"):
            raise DriverError("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU")
        self.loaded.append(cubin)
        return len(self.loaded)

    def function(self, module: int, symbol: str) -> int:
        self.calls.append(("function", module, symbol))
        return 100 * module

    def configure(self, function: int, attribute: int, value: int) -> None:
        self.calls.append(("configure", function, attribute, value))

    def launch(self, function: int, addresses: int, at: Launch) -> None:
        pointers = (ctypes.c_void_p * len(self.sizes)).from_address(addresses)
        data = [ctypes.string_at(p or 0, n) for p, n in zip(pointers, self.sizes, strict=True)]
        self.calls.append(("launch", function, at, data if self.sizes else addresses))


def compiler(code: str, options: Sequence[str], arch: str, expressions: Sequence[str]) -> Any:
    """Stands for NVRTC."""
    return f"good {arch} from source".encode(), {e: f"mangled {e}" for e in expressions}


def binary(folder: Path, data: bytes, arch: str = "sm_90", told: bytes | None = None) -> Any:
    import hashlib

    file = f"{arch}-{len(list(folder.iterdir()))}.cubin"
    (folder / file).write_bytes(data)
    sha256 = hashlib.sha256(data if told is None else told).hexdigest()
    return records.Binary(raw.source_key(CODE, (), ()), arch, file, sha256, {})


def module(folder: Path, driver: FakeDriver, *binaries: records.Binary) -> raw.RawModule:
    return raw.Cupy(folder, binaries, driver, compiler).RawModule(code=CODE)


def test_the_shipped_binary_of_the_device_is_loaded_once(tmp_path):
    driver = FakeDriver()
    shipped = [binary(tmp_path, b"good 80", "sm_80"), binary(tmp_path, b"good 90")]
    kernel = module(tmp_path, driver, *shipped).get_function("twice")
    assert not driver.loaded  # not before it is called
    for _ in range(2):
        kernel((1,), (32,), ())
    assert driver.loaded == [b"good 90"]


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("sm_100", (10, 3), True),
        ("sm_120f", (12, 0), True),
    ],
)
def test_a_binary_fits_its_own_generation(arch, capability, runs):
    assert raw.fits(arch, *capability) is runs


@pytest.mark.parametrize("damage", ["refused", "truncated", "gone"])
def test_a_binary_that_cannot_be_used_is_compiled_from_source_with_one_warning(
    tmp_path, caplog, damage
):
    shipped = {
        "refused": lambda: binary(tmp_path, b"for another device"),
        "truncated": lambda: binary(tmp_path, b"good", told=b"good 90"),
        "gone": lambda: binary(tmp_path, b"good"),
    }[damage]()
    if damage == "gone":
        (tmp_path / shipped.file).unlink()
    driver = FakeDriver()
    kernel = module(tmp_path, driver, shipped).get_function("twice")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            kernel((1,), (32,), ())
    assert driver.loaded == [b"good sm_90 from source"]
    [record] = caplog.records
    assert shipped.file in record.message
    assert "NVRTC compiles its source" in record.message


def test_a_device_that_nothing_was_shipped_for_compiles_the_source(tmp_path, caplog):
    driver = FakeDriver(capability=(10, 0))
    kernel = module(tmp_path, driver, binary(tmp_path, b"good 90")).get_function("twice")
    kernel((1,), (32,), ())
    assert driver.loaded == [b"good sm_100 from source"]
    assert not caplog.records


def test_every_device_loads_its_own(tmp_path):
    driver = FakeDriver()
    kernel = module(tmp_path, driver, binary(tmp_path, b"good 90")).get_function("twice")
    for driver.current in (0, 1, 0):
        kernel((1,), (32,), ())
    assert driver.loaded == [b"good 90"] * 2
    assert [c[1] for c in driver.calls if c[0] == "launch"] == [100, 200, 100]


def test_arguments_have_the_bytes_that_cupy_gives_them(tmp_path):
    driver = FakeDriver()
    cupy = raw.Cupy(tmp_path, (), driver, compiler)
    kernel = cupy.RawKernel(CODE, "twice")
    driver.sizes = (8, 8, 1, 4, 4, 8)
    with cupy.cuda.ExternalStream(7):
        kernel((4,), (32, 2), (-1, 1.0, True, numpy.float32(1), numpy.int32(5), 1 << 63))
    driver.sizes = (8, 8, 1)
    for grid in ((4,), [4]):
        kernel(grid, (32, 2), (-1, 1.0, True))
    driver.sizes = (8, 8)
    kernel((4,), (32, 2), (1 << 63, 2))
    (_, _, at, data), *others, (_, _, _, large) = launches(driver)
    assert at == Launch((4, 1, 1), (32, 2, 1), shared_bytes=0, stream=7)
    one = numpy.float32(1).tobytes()
    assert data[0] == b"\xff" * 8
    assert data[1:4] == [numpy.float64(1).tobytes(), b"\x01", one]
    assert data[4:] == [numpy.int32(5).tobytes(), b"\x00" * 7 + b"\x80"]
    assert [other[3] for other in others] == [data[:3]] * 2
    assert large == [b"\x00" * 7 + b"\x80", b"\x02" + b"\x00" * 7]
    driver.sizes = ()
    with pytest.raises(TypeError):
        kernel((1,), (1,), ("text",))


@pytest.mark.parametrize(
    "scalar",
    [
        numpy.int8(-3), numpy.int16(-300), numpy.int32(-(1 << 31)), numpy.int64(-(1 << 63)),
        numpy.uint8(255), numpy.uint16(65535), numpy.uint32(0xFFFFFFFF), numpy.uint64(1 << 63),
        numpy.float16(-0.1), numpy.float32(0.1), numpy.float32("inf"), numpy.float64(0.1),
        numpy.bool_(True),
    ],
    ids=lambda s: f"{type(s).__name__} {s}",
)  # fmt: skip
def test_numpys_scalars_are_packed_as_they_are(tmp_path, monkeypatch, scalar):
    def boxed(self: Packed, args: object) -> int:
        raise AssertionError("boxing takes four times as long, at every call")

    monkeypatch.setattr(Packed, "_boxed", boxed)
    driver = FakeDriver()
    driver.sizes = (8, scalar.nbytes, 8)
    raw.Cupy(tmp_path, (), driver, compiler).RawKernel(CODE, "twice")((1,), (1,), (1, scalar, 2))
    [(_, _, _, data)] = launches(driver)
    assert data[1] == scalar.tobytes()
    assert [data[0][:1], data[2][:1]] == [b"\x01", b"\x02"]


def launches(driver: FakeDriver) -> list[tuple[Any, ...]]:
    return [call for call in driver.calls if call[0] == "launch"]


def test_the_function_that_cupy_has_loaded_is_launched_like_it(tmp_path):
    driver = FakeDriver()
    cupy = raw.Cupy(tmp_path, (), driver, compiler)
    function = cupy.RawModule(code=CODE).get_function("twice").kernel
    assert driver.loaded, "cupy loads it here"
    function((2,), (32,), (7,), 64, cupy.cuda.ExternalStream(9))
    function((2,), (32,), (7,), stream=cupy.cuda.ExternalStream(8))
    assert [call[2] for call in launches(driver)] == [
        Launch((2, 1, 1), (32, 1, 1), 64, 9),
        Launch((2, 1, 1), (32, 1, 1), 0, 8),
    ]


def test_a_stream_that_is_used_serves_its_own_source_and_thread_alone(tmp_path):
    driver = FakeDriver()
    first, second = (raw.Cupy(tmp_path, (), driver, compiler) for _ in range(2))
    kernels = [cupy.RawKernel(CODE, "twice") for cupy in (first, second)]
    stream = first.cuda.ExternalStream(7).use()
    for kernel in kernels:
        kernel((1,), (1,), ())
    with first.cuda.ExternalStream(9), stream, ThreadPoolExecutor(1) as pool:
        kernels[0]((1,), (1,), ())
        pool.submit(kernels[0], (1,), (1,), ()).result()
    kernels[0]((1,), (1,), ())
    assert [call[2].stream for call in launches(driver)] == [7, 0, 7, 0, 7]


@pytest.mark.parametrize(
    "line",
    [
        "from cupy_backends.cuda.api import driver",
        "import cupy_backends.cuda.api.driver as driver",
        "from cupy_backends.cuda.api.driver import launchKernel\n"
        "class driver: launchKernel = staticmethod(launchKernel)",
    ],
)
def test_a_source_launches_by_the_handle_as_by_cupys_backend(tmp_path, line):
    driver = FakeDriver()
    cupy = raw.Cupy(tmp_path, (), driver, compiler)
    names: dict[str, Any] = {"__builtins__": cupy.importing(), "CODE": CODE}
    exec(f"import cupy\n{line}\nF = cupy.RawKernel(CODE, 'twice').kernel.ptr", names)
    for driver.current in (0, 1):
        exec("driver.launchKernel(F, 5, 1, 1, 128, 2, 1, 16, 7, 4321, 0)", names)
    at = Launch((5, 1, 1), (128, 2, 1), 16, 7)
    assert launches(driver) == [
        ("launch", 100, at, 4321),
        ("launch", 200, at, 4321),
    ], "each device has a handle of its own"


def test_what_the_runtime_lacks_of_cupy_is_named(tmp_path):
    names: dict[str, Any] = {
        "__builtins__": raw.Cupy(tmp_path, (), FakeDriver(), compiler).importing()
    }
    with pytest.raises(ImportError, match=r"no cupy_backends\.cuda\.libs"):
        exec("from cupy_backends.cuda.libs import nvrtc", names)


def test_blocks_that_wait_for_each_other_are_launched_together(tmp_path):
    driver = FakeDriver()
    cupy = raw.Cupy(tmp_path, (), driver, compiler)
    cupy.RawKernel(CODE, "twice", enable_cooperative_groups=True)((1,), (1,), ())
    assert [call[2].cooperative for call in launches(driver)] == [True]


def test_threads_have_memory_of_their_own_for_arguments(tmp_path):
    packed = Packed()
    with ThreadPoolExecutor(1) as pool:
        mine, other = packed.addresses((1, 2)), pool.submit(packed.addresses, (3, 4)).result()
        assert mine != other
        assert packed.addresses((5, 6)) == mine, "used again"


def test_attributes_are_set_before_the_first_launch(tmp_path):
    driver = FakeDriver()
    kernel = raw.Cupy(tmp_path, (), driver, compiler).RawKernel(CODE, "twice")
    kernel.max_dynamic_shared_size_bytes = 100_000
    assert kernel.max_dynamic_shared_size_bytes == 100_000
    assert not driver.calls
    kernel((1,), (32,), ())
    assert [call[0] for call in driver.calls] == ["function", "configure", "launch"]


def test_a_name_expression_finds_its_symbol(tmp_path):
    driver = FakeDriver()
    cupy = raw.Cupy(tmp_path, (), driver, compiler)
    kernel = cupy.RawModule(code=CODE, name_expressions=["t<float>"]).get_function("t<float>")
    kernel((1,), (1,), ())
    assert driver.calls[0] == ("function", 1, "mangled t<float>")


@pytest.mark.parametrize(
    "line", ["import cupy", "import cupy.cuda", "from cupy import RawModule, cuda as c"]
)
def test_a_source_finds_the_runtime_where_it_imports_cupy(tmp_path, line):
    cupy = raw.Cupy(tmp_path, (), FakeDriver(), compiler)
    names: dict[str, Any] = {"__builtins__": cupy.importing()}
    exec(f"{line}\nfrom cupy.cuda import ExternalStream\nimport math", names)
    assert names["ExternalStream"] is cupy.cuda.ExternalStream
    assert names["math"].pi > 3
    assert "cupy" not in sys.modules or sys.modules["cupy"] is not cupy


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("RawModule(code='a')", "a"),
        ("S = 'a'\ncupy.RawModule(code=S + 'b')", "ab"),
        ("N = 4\nS = f'n{N}'\ncupy.RawKernel(S, 'f')", "n4"),
        ("S = 'x$'.replace('$', 'y')\nM = cupy.RawModule(code=S)", "xy"),
        ("S = 'n%d' % 3\ncupy.RawModule(code=S)", "n3"),
    ],
)
def test_device_sources_are_read_from_constants(text, code):
    assert list(device_sources(text)) == [DeviceSource(code)]


def test_options_and_name_expressions_are_read_too():
    text = "OPTIONS = ('-DX',)\nRawModule(code='a', options=OPTIONS, name_expressions=['t<int>'])"
    assert list(device_sources(text)) == [DeviceSource("a", ("-DX",), ("t<int>",))]


@pytest.mark.parametrize(
    "text",
    [
        "RawModule(code=open('x').read())",
        "S = 'a'\nS = 'b'\nRawModule(code=S)",
        "def f(s):\n    return RawModule(code=s)",
        "RawModule(path='x.cubin')",
    ],
)
def test_a_source_that_is_made_at_run_time_is_unknown(text):
    with pytest.raises(Unknown):
        list(device_sources(text))


@pytest.mark.slow
def test_only_a_kernel_that_needs_no_more_of_cupy_is_bound_to_the_driver():
    assert binding_of(cuda_artefact()) == "driver"
    assert binding_of(cuda_artefact(source="import cupy\ncupy.zeros(3)")) == "cupy"


@pytest.mark.parametrize(
    ("text", "binding"),
    [
        ("from cupy_backends.cuda.api import driver\ndriver.launchKernel(F)", "driver"),
        ("from cupy_backends.cuda.api.driver import launchKernel", "driver"),
        ("K.kernel.ptr; K.max_dynamic_shared_size_bytes = 9", "driver"),
        ("from cupy_backends.cuda.api import driver, runtime", "cupy"),
        ("from cupy_backends.cuda.api import driver\ndriver.funcSetAttribute(F)", "cupy"),
        ("print(K.num_regs)", "cupy"),
        ("M.get_global('x')", "cupy"),
    ],
)
def test_cupy_itself_is_asked_for_what_the_runtime_lacks(text, binding):
    assert binding_of(cuda_artefact(source=f"import cupy\n{text}")) == binding
    assert architectures(cuda_artefact(), ["sm_80"]) == ["sm_80", "sm_90"]


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_100"])
def test_nvrtc_compiles_for_architectures_that_are_not_here(arch):
    template = "template <class T> __global__ void t(T* x) { *x = 1; }"
    cubin, symbols = nvrtc.compile_cubin(CODE + template, (), arch, ("t<float>",))
    assert cubin.startswith(b"\x7fELF")
    assert symbols["t<float>"].encode() in cubin


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_999", "sm_80a"])
def test_an_architecture_that_there_is_not_is_refused_before_a_run_is_read(arch):
    words = rf"architecture is '{arch}', which the NVRTC here does not know; .* sm_90, "
    with pytest.raises(ConfigError, match=words):
        warpsmith.export("nowhere", "out", format="package", archs=["sm_90a", arch])


def test_headers_that_the_packages_lack_come_from_a_toolkit_of_their_version(tmp_path, monkeypatch):
    wheels, old, new = (tmp_path / name for name in ("site", "cuda-12", "cuda-13"))
    cccl = wheels / nvrtc.CUPY_CCCL / "cub"
    own = wheels / "nvidia/cu13/include"
    for folder in (cccl, own, *(home / "include/crt" for home in (old, new))):
        folder.mkdir(parents=True)
    for include, number in ((own, 13000), (old / "include", 12080), (new / "include", 13010)):
        (include / "cuda.h").write_text(f"#define CUDA_VERSION {number}\n")
        (include / "cuda_fp16.h").touch()
    for home in (old, new):
        (home / "include/cccl").mkdir()
        (home / "include/crt/mma.h").touch()
    monkeypatch.setattr(nvrtc, "_sites", lambda: [wheels])
    monkeypatch.setenv("CUDA_HOME", str(old))
    monkeypatch.setenv("CUDA_PATH", str(new))
    folders = [cccl, own, new / "include/cccl", new / "include"]
    assert nvrtc.headers() == list(map(str, folders))


@needs_nvrtc
def test_a_source_that_nvrtc_refuses_is_told_with_its_log():
    with pytest.raises(nvrtc.NvrtcError, match="undefined"):
        nvrtc.compile_cubin("__global__ void f() { g(); }", (), "sm_90")


@needs_nvrtc
def test_a_package_holds_a_binary_for_each_architecture(tmp_path, monkeypatch):
    export_package(gathered(cuda_artefact()), tmp_path / "out", "cuda_ahead", ["sm_80"])
    root = tmp_path / "out" / "source" / "cuda_ahead"
    library = records.read_library(root)
    [kernel] = library.operators[0].kernels
    assert [b.arch for b in kernel.binaries] == ["sm_80", "sm_90"]
    for each in kernel.binaries:
        assert records.checked_bytes(root, each.file, each.sha256).startswith(b"\x7fELF")
        assert each.file in library.files
    manifest = read_manifest(tmp_path / "out")
    assert (manifest["archs"], manifest["without_binaries"]) == (["sm_80"], {})


def test_a_source_made_at_run_time_is_shipped_without_binaries_and_told(tmp_path):
    source = cuda_artefact().candidate.source.replace("code=SRC", "code=str(SRC)")
    artefact = cuda_artefact(source=source)
    export_package(gathered(artefact), tmp_path / "out", "cuda_late")
    [[reason]] = read_manifest(tmp_path / "out")["without_binaries"].values()
    assert "not a constant" in reason


@pytest.mark.slow
def test_a_gpu_library_serves_cpu_tensors_with_the_reference(tmp_path, monkeypatch):
    export_package(gathered(cuda_artefact()), tmp_path / "out", "cuda_here")
    monkeypatch.syspath_prepend(str(tmp_path / "out" / "source"))
    kernels = importlib.import_module("cuda_here")
    x, bias = torch.randn(64, 1024), torch.randn(1024)
    assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert kernels.counts()["bias_relu"] == {"not measured here": 1}
    assert "NVIDIA H200 sm_90" in kernels.table()
    record = json.loads((tmp_path / "out" / "source" / "cuda_here" / "library.json").read_text())
    assert record["operators"][0]["kernels"][0]["binding"] == "driver"
