"""What a converted `cuda` kernel carries in place of cupy: everything below these lines, as text.

The device source goes to nvcc through `load_inline` unchanged; LAUNCH_BINDING is the host side, a
CPython module without torch's headers, so that it compiles in seconds. Arguments are laid out as
cupy lays them out: a Python int is 64 bits, a float a double, a numpy scalar its own bytes.

Not here: what else cupy has (arrays, global symbols, cooperative launches, kernel attributes).
`agent.export.inline.convert` refuses sources that use it.
"""

import contextvars
import hashlib
import re
import types
from typing import Any

import torch
from torch.utils.cpp_extension import load_inline

LAUNCH_BINDING = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstring>

extern "C" const void* const exported_kernels[];

namespace {
constexpr Py_ssize_t MAX_ARGUMENTS = 128, MAX_BYTES = 16;

bool failed(cudaError_t status) {
  if (status == cudaSuccess) return false;
  PyErr_Format(PyExc_RuntimeError, "%s: %s", cudaGetErrorName(status), cudaGetErrorString(status));
  return true;
}

bool sizes(PyObject* given, dim3* out) {
  unsigned found[3] = {1, 1, 1};
  PyObject* items = PySequence_Fast(given, "a grid and a block are tuples");
  if (items == nullptr) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  for (Py_ssize_t i = 0; i < count && i < 3; ++i) {
    const long long size = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items, i));
    found[i] = size < 1 ? 1u : static_cast<unsigned>(size);
  }
  Py_DECREF(items);
  *out = dim3(found[0], found[1], found[2]);
  return PyErr_Occurred() == nullptr;
}

bool pack(PyObject* given, unsigned char* out) {
  if (PyBool_Check(given)) {
    out[0] = given == Py_True;
  } else if (PyLong_Check(given)) {
    // A pointer over 2^63 keeps its bits.
    const unsigned long long value = PyLong_AsUnsignedLongLongMask(given);
    std::memcpy(out, &value, sizeof(value));
  } else if (PyFloat_Check(given)) {
    const double value = PyFloat_AS_DOUBLE(given);
    std::memcpy(out, &value, sizeof(value));
  } else {
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_SIMPLE) != 0) return false;
    const bool fits = view.len <= MAX_BYTES;
    if (fits) std::memcpy(out, view.buf, view.len);
    PyBuffer_Release(&view);
    if (!fits) PyErr_SetString(PyExc_TypeError, "a kernel's argument is a number or a pointer");
    return fits;
  }
  return PyErr_Occurred() == nullptr;
}

// launch(kernel, grid, block, arguments, shared_bytes, stream)
PyObject* launch(PyObject*, PyObject* const* given, Py_ssize_t) {
  dim3 grid, block;
  const Py_ssize_t kernel = PyLong_AsSsize_t(given[0]);
  const size_t shared = PyLong_AsSize_t(given[4]);
  const auto stream = reinterpret_cast<cudaStream_t>(PyLong_AsVoidPtr(given[5]));
  if (PyErr_Occurred() || !sizes(given[1], &grid) || !sizes(given[2], &block)) return nullptr;
  PyObject* items = PySequence_Fast(given[3], "a kernel's arguments are a tuple");
  if (items == nullptr) return nullptr;
  alignas(16) unsigned char values[MAX_ARGUMENTS][MAX_BYTES];
  void* pointers[MAX_ARGUMENTS];
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  bool packed = count <= MAX_ARGUMENTS;
  if (!packed) PyErr_SetString(PyExc_TypeError, "too many arguments for a kernel");
  for (Py_ssize_t i = 0; packed && i < count; ++i) {
    pointers[i] = values[i];
    packed = pack(PySequence_Fast_GET_ITEM(items, i), values[i]);
  }
  Py_DECREF(items);
  if (!packed) return nullptr;
  cudaError_t status;
  Py_BEGIN_ALLOW_THREADS
  status = cudaLaunchKernel(exported_kernels[kernel], grid, block, pointers, shared, stream);
  Py_END_ALLOW_THREADS
  if (failed(status)) return nullptr;
  Py_RETURN_NONE;
}

// attribute(kernel, which, value)
PyObject* attribute(PyObject*, PyObject* const* given, Py_ssize_t) {
  const Py_ssize_t kernel = PyLong_AsSsize_t(given[0]);
  const long which = PyLong_AsLong(given[1]), value = PyLong_AsLong(given[2]);
  if (PyErr_Occurred()) return nullptr;
  const auto name = static_cast<cudaFuncAttribute>(which);
  if (failed(cudaFuncSetAttribute(exported_kernels[kernel], name, static_cast<int>(value))))
    return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launch)), METH_FASTCALL,
     nullptr},
    {"attribute", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(attribute)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernels", nullptr, -1, methods};
}  // namespace

#define INIT(name) PyInit_##name
#define INIT_OF(name) INIT(name)
PyMODINIT_FUNC INIT_OF(TORCH_EXTENSION_NAME)(void) { return PyModule_Create(&definition); }
"""
NVCC_FLAGS = (
    "-O3",
    "-ftz=true",  # As cupy compiles.
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
DYNAMIC_SHARED, CARVEOUT = 8, 9  # cudaFuncAttribute
LAUNCH_STREAMS: contextvars.ContextVar[Any] = contextvars.ContextVar("LAUNCH_STREAMS", default=(0,))


def kernels_of(code: str) -> list[str]:
    """Names of the `__global__` functions that are no templates."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", " ", code, flags=re.S)
    found = []
    for match in re.finditer(r"__global__", plain):
        before = re.split(r"[;{}]", plain[: match.start()])[-1]
        after = re.split(r"[;{]", plain[match.end() :])[0]
        after = re.sub(r"__(?:launch_bounds|cluster_dims|maxnreg)__\s*\([^)]*\)", " ", after)
        name = re.search(r"(\w+)\s*\(", after)
        if name is not None and "template" not in before:
            found.append(name[1])
    return list(dict.fromkeys(found))


def nvcc_flags(options: tuple[str, ...]) -> list[str]:
    """NVRTC's options as nvcc has them."""
    found = list(NVCC_FLAGS)
    for option in options:
        name, _, value = option.partition("=")
        if name.lstrip("-") in ("arch", "gpu-architecture"):
            number = value.rpartition("_")[2]
            found.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        elif name.lstrip("-") == "std":
            found.append(f"-std={value}")
        else:
            found.append(option)
    return found


class ExternalStream:
    """Launches inside `with`, or after `use`, go to this stream."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.ptr = ptr

    def use(self) -> Any:
        LAUNCH_STREAMS.set((*LAUNCH_STREAMS.get()[:-1], self.ptr))
        return self

    def __enter__(self) -> Any:
        LAUNCH_STREAMS.set((*LAUNCH_STREAMS.get(), self.ptr))
        return self

    def __exit__(self, *error: Any) -> None:
        LAUNCH_STREAMS.set(LAUNCH_STREAMS.get()[:-1])


class RawModule:
    """The kernels of one device source, built together."""

    def __init__(
        self,
        *,
        code: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        name_expressions: Any = None,
    ) -> None:
        self.names = list(name_expressions or kernels_of(code))
        pointers = ", ".join(f"reinterpret_cast<const void*>(&{name})" for name in self.names)
        table = f'\nextern "C" const void* const exported_kernels[] = {{{pointers}}};\n'
        table = f'\nextern "C" {{ extern const void* const exported_kernels[]; }}{table}'
        digest = hashlib.sha256(repr((code, options, self.names)).encode()).hexdigest()
        self.built = load_inline(
            name=f"kernels_{digest[:16]}",
            cpp_sources=[LAUNCH_BINDING],
            cuda_sources=[code + table],
            extra_cuda_cflags=nvcc_flags(options),
            no_implicit_headers=True,
        )

    def get_function(self, name: str) -> Any:
        if name not in self.names:
            raise AttributeError(f"no kernel {name!r} among {self.names}")
        return LaunchedKernel(self.built, self.names.index(name))


class LaunchedKernel:
    """One kernel, launched as cupy launches it."""

    def __init__(self, built: Any, index: int) -> None:
        self.launch, self.attribute, self.index = built.launch, built.attribute, index
        self.wanted: dict[int, int] = {}
        self.devices: set[int] = set()

    def __call__(
        self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None
    ) -> None:
        if self.wanted:
            self.configure()
        pointer = LAUNCH_STREAMS.get()[-1] if stream is None else stream.ptr
        self.launch(self.index, grid, block, args, shared_mem, pointer)

    def configure(self) -> None:
        """Attributes belong to a device, and are set before its first launch."""
        device = torch.cuda.current_device()
        if device not in self.devices:
            for which, value in self.wanted.items():
                self.attribute(self.index, which, value)
            self.devices.add(device)

    def want(self, which: int, value: int) -> None:
        self.wanted[which] = int(value)
        self.devices.clear()

    kernel = property(lambda self: self)
    """What cupy has loaded of it, which is launched alike."""
    max_dynamic_shared_size_bytes = property(
        lambda self: self.wanted.get(DYNAMIC_SHARED, 48 << 10),
        lambda self, value: self.want(DYNAMIC_SHARED, value),
    )
    preferred_shared_memory_carveout = property(
        lambda self: self.wanted.get(CARVEOUT, -1),
        lambda self, value: self.want(CARVEOUT, value),
    )


def RawKernel(code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> Any:
    """The only kernel that is asked for, of a source by itself."""
    return RawModule(code=code, options=options).get_function(name)


cupy = types.SimpleNamespace(
    RawModule=RawModule,
    RawKernel=RawKernel,
    cuda=types.SimpleNamespace(ExternalStream=ExternalStream),
)
