"""One candidate through KernelBench's own evaluation, in an interpreter without our code.

    echo REQUEST | PYTHONPATH=CHECKOUT/src python -P benchmarks/harness_script.py

REQUEST is a JSON object with `reference`, `candidate`, `backend`, `build_dir`, `gpu_arch`, `trials`
and `perf_trials`; where it holds `static`, KernelBench's static checker looks at the candidate too,
and `refused` holds what it refuses. The last line of the output is the reply. Packages that
KernelBench imports and that evaluation never calls (its model providers) get placeholders where
they are absent; the reply names them. Whatever evaluation does call must be installed.
"""

import importlib.machinery
import importlib.util
import json
import sys
import time
import types

PLACEHOLDERS = ("dotenv", "openai", "litellm", "tqdm")
"""Imported by kernelbench/utils.py for generating candidates."""


class Placeholder(types.ModuleType):
    """Any name can be imported from it; only `load_dotenv` can be called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "load_dotenv":
            return lambda *_, **__: False

        def refuse(*_, **__):
            raise ImportError(f"{self.__name__} is not installed: a placeholder stands for it")

        return refuse


def main():
    request = json.load(sys.stdin)
    absent = [name for name in PLACEHOLDERS if importlib.util.find_spec(name) is None]
    for name in absent:
        sys.modules[name] = Placeholder(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    import torch
    from kernelbench.eval import eval_kernel_against_ref
    from kernelbench.utils import set_gpu_arch

    refused = None
    if request.get("static"):
        from kernelbench.kernel_static_checker import validate_kernel_static

        code, backend = request["candidate"], request["backend"]
        _, refused, _ = validate_kernel_static(code, backend=backend, precision="fp32")
    set_gpu_arch([request["gpu_arch"]])
    ready = time.time()
    result = eval_kernel_against_ref(
        original_model_src=request["reference"],
        custom_model_src=request["candidate"],
        measure_performance=True,
        timing_method="cuda_event",
        num_correct_trials=request["trials"],
        num_perf_trials=request["perf_trials"],
        build_dir=request["build_dir"],
        device=torch.device("cuda:0"),
        backend=request["backend"],
        precision=torch.float32,
    )
    reply = {"placeholders": absent, "evaluation_s": time.time() - ready, "result": None}
    if refused is not None:
        reply["refused"] = refused
    if result is not None:
        reply["result"] = {
            "compiled": result.compiled,
            "correct": result.correctness,
            "runtime_ms": result.runtime,
            "reference_ms": result.ref_runtime,
            "metadata": {key: str(value)[:300] for key, value in result.metadata.items()},
        }
    sys.stdout.flush()
    print("\n" + json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
