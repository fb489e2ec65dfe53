"""One reference and its kernels as a `torch.library` custom operator.

The operator's result is contiguous, whoever computed it. Its fake kernel and its gradient run the
reference; the gradient recomputes the forward pass, and has none of its own. Inside autocast it
works in the dtype that it was measured with.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from agent.export.runtime import models, records
from agent.export.runtime.dispatch import Arguments, Dispatch, Loaded

Result = Any
"""One tensor, or a tuple of tensors."""


class Custom:
    """Defines the operator; call it with forward's arguments, then the state."""

    def __init__(self, package: str, folder: Path, operator: records.Operator) -> None:
        self.operator = operator
        self.dispatch = Dispatch(package, folder, operator)
        self._package, self._folder = package, folder
        self._references = models.Instances()
        self._bound = models.Instances()
        self._kind: Any = None
        self.qualified = f"{operator.namespace}::{operator.name}"
        self.op = self._define()

    def __call__(self, *arguments: Any, init: str | None = None) -> Result:
        """`init` is JSON of the constructor's arguments, by default those that were measured."""
        found: Result = self.op(*arguments, self.operator.init if init is None else init)
        return found

    @property
    def reference(self) -> Any:
        """The class Model; raises LibraryError where its file is not the one that was proven."""
        if self._kind is None:
            operator = self.operator
            text = records.checked_source(
                self._folder, operator.reference, operator.reference_sha256
            )
            name = f"{self._package}._reference_{operator.namespace}"
            path = self._folder / operator.reference
            self._kind = models.import_source(text, path, name).Model
        return self._kind

    @property
    def overload(self) -> Any:
        """For graphs: called without the checks of `op`."""
        return getattr(getattr(torch.ops, self.operator.namespace), self.operator.name).default

    # --- what torch calls ------------------------------------------------------------------------

    def _define(self) -> Any:
        names = [f"{kind} {name}" for name, kind in self.operator.inputs]
        names += [f"Tensor state{i}" for i in range(len(self.operator.state))]
        count = self.operator.outputs
        returns = "Tensor" if count is None else f"({', '.join(['Tensor'] * count)})"
        schema = f"({', '.join([*names, 'str init'])}) -> {returns}"
        op = torch.library.custom_op(self.qualified, self._run, mutates_args=(), schema=schema)
        op.register_fake(self._fake)
        op.register_autograd(self._backward, setup_context=self._save)
        for device in ("cpu", "cuda"):
            op.register_autocast(device, getattr(torch, self.operator.dtype))
        return op

    def _run(self, *everything: Any) -> Result:
        arguments, init = list(everything[:-1]), everything[-1]
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        device = tensors[0].device
        with torch.no_grad(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel = self.dispatch.find(arguments, init, device)
            if kernel is not None:
                try:
                    return self._plain(self._kernel(kernel, arguments, init, device))
                except torch.OutOfMemoryError:
                    raise  # says nothing about the kernel
                except Exception as error:  # noqa: BLE001  whatever a kernel raises
                    self.dispatch.give_up(kernel.kernel, error)
            return self._own(self._plain(self.refer(arguments, init)), tensors)

    def _fake(self, *everything: Any) -> Result:
        found = self._plain(self.refer(list(everything[:-1]), everything[-1]))
        outputs = [
            torch.empty_like(f, memory_format=torch.contiguous_format) for f in _listed(found)
        ]
        return outputs[0] if self.operator.outputs is None else tuple(outputs)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Result) -> None:
        tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.others = [None if isinstance(a, torch.Tensor) else a for a in inputs]

    def _backward(self, ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if self.operator.autograd == "none":
            raise RuntimeError(
                f"{self.qualified} is for inference only: call it under torch.no_grad()"
            )
        saved = iter(ctx.saved_tensors)
        arguments: list[Any] = []
        for needed, other in zip(ctx.needs_input_grad, ctx.others, strict=True):
            if other is None:
                arguments.append(next(saved).detach().requires_grad_(needed))
            else:
                arguments.append(other)
        wanted = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
        with torch.enable_grad():
            outputs = _listed(self._plain(self.refer(arguments[:-1], arguments[-1])))
        pairs = [
            (o, g) for o, g in zip(outputs, given, strict=True) if o.requires_grad and g is not None
        ]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True
            )
        )
        return tuple(
            next(found) if isinstance(a, torch.Tensor) and a.requires_grad else None
            for a in arguments
        )

    # --- the two ways to compute it --------------------------------------------------------------

    def _kernel(self, loaded: Loaded, arguments: Arguments, init: str, device: torch.device) -> Any:
        inputs, state = self._split(arguments)
        key = (init, device, models.place(state))
        model = loaded.instances.find(key)
        if model is None:
            model = models.construct(loaded.kind, init, device, self.operator.dtype)
            own = models.state_names(model)
            names = models.matched(loaded.kernel.match, self.operator.state, own)
            models.give_state(model, names, state)
            loaded.instances.keep(key, model)
        return model(*inputs)

    def refer(self, arguments: Arguments, init: str) -> Any:
        """What the reference returns."""
        inputs, state = self._split(arguments)
        model = self._references.find(init)
        if model is None:
            # Its own parameters are never read: every call brings them.
            meta = torch.device("meta")
            built = models.construct(self.reference, init, meta, self.operator.dtype)
            model = self._references.keep(init, built)
        named = dict(zip(self.operator.state, state, strict=True))
        kind = next(a.device.type for a in arguments if isinstance(a, torch.Tensor))
        off = torch.is_autocast_enabled(kind) if kind in ("cpu", "cuda") else False
        with torch.autocast(kind, enabled=False) if off else nullcontext():
            return torch.func.functional_call(model, named, tuple(inputs))

    def _split(self, arguments: Arguments) -> tuple[Arguments, list[torch.Tensor]]:
        count = len(self.operator.inputs)
        return arguments[:count], [a for a in arguments[count:] if isinstance(a, torch.Tensor)]

    def _plain(self, found: Any) -> Result:
        """Contiguous, and in the structure of the schema."""
        if self.operator.outputs is None:
            return _one(found).contiguous()
        return tuple(f.contiguous() for f in found)

    def _own(self, found: Result, tensors: Sequence[torch.Tensor]) -> Result:
        """No result may share memory with an argument, as some references do for some shapes."""
        known = {t.untyped_storage().data_ptr() for t in tensors}
        copied = [
            f.clone() if f.untyped_storage().data_ptr() in known else f for f in _listed(found)
        ]
        return copied[0] if self.operator.outputs is None else tuple(copied)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """The reference's module, parameters and all, whose forward is the operator."""

    def __init__(self, custom: Custom, *init: Any) -> None:
        super().__init__()
        self._init = models.init_text(init) if init else custom.operator.init
        built = custom.reference(*models.init_values(self._init))
        self._op = custom.op
        self.model = built.to(getattr(torch, custom.operator.dtype))
        self._names = models.state_names(built)

    def forward(self, *inputs: Any) -> Any:
        state = [_tensor(self.model, name) for name in self._names]
        return self._op(*inputs, *state, self._init)


def _tensor(model: torch.nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(path), last)
    return found


def _one(found: Any) -> torch.Tensor:
    tensor: torch.Tensor = found
    return tensor


def _listed(found: Result) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)
