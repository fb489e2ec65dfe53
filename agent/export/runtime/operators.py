"""One reference and its kernels as a `torch.library` custom operator.

The operator's result is contiguous, whoever computed it. Its fake kernel and its gradient run the
reference; the gradient of a kernel's result recomputes the forward pass. So do transforms of calls.
Inside autocast it works in the dtype that it was measured with. Calls that nobody watches go past
torch's dispatcher (runtime/direct.py), with the same results.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from agent.export.runtime import direct, models, records
from agent.export.runtime.dispatch import Arguments, Chosen, Dispatch
from agent.export.runtime.driver import CURRENT
from agent.export.runtime.switches import DEFAULT, Switches

Result = Any
"""One tensor, or a tuple of tensors."""
AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


class Custom:
    """Defines the operator; call it with forward's arguments, then the state."""

    def __init__(
        self,
        package: str,
        folder: Path,
        operator: records.Operator,
        switches: Switches = DEFAULT,
    ) -> None:
        self.operator = operator
        self.dispatch = Dispatch(package, folder, operator, switches)
        self.package, self._folder = package, folder
        self.names = (*(name for name, _ in operator.inputs), *operator.state)
        self._inputs = len(operator.inputs)
        self._kinds = (
            *(direct.KINDS[kind] for _, kind in operator.inputs),
            *(direct.TENSORS for _ in operator.state),
        )
        self._plain_types: set[tuple[type, ...]] = set()
        """Of arguments, as they were found to be plain."""
        self._first = next((i for i, k in enumerate(self._kinds) if k is direct.TENSORS), 0)
        self._init = operator.init
        self._inference_only = operator.autograd == "none"
        self._references: models.Instances[models.Stateless] = models.Instances()
        self._kind: Any = None
        self.qualified = f"{operator.namespace}::{operator.name}"
        self.op = self._define()
        self.call = _function(self)

    def __call__(self, *arguments: Any, init: str | None = None, **named: Any) -> Result:
        """`init` is JSON of the constructor's arguments, by default those that were measured."""
        init = self._init if init is None else init
        if named:
            arguments = placed(self.operator.name, self.names, arguments, named)
        compiling = torch.compiler.is_compiling()
        if not compiling and self._alone(arguments, init):
            return self._direct(arguments, init)
        self._check(arguments)
        if not compiling and direct.transformed() and len(arguments) == len(self._kinds):
            return self._transformed(arguments, init)
        found: Result = self.op(*arguments, init)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is the operator itself; from a pickle the library is imported."""
        return _found, (self.package, self.operator.name)

    def _check(self, arguments: Sequence[Any]) -> None:
        """Raises TypeError for what torch's own words would not make clear."""
        names = self.names
        if len(arguments) < len(names):
            raise TypeError(
                f"{self.operator.name} takes {len(names)} arguments ({', '.join(names)}), "
                f"not {len(arguments)}"
            )
        for name, argument in zip(names, arguments, strict=False):
            if argument is None:
                raise TypeError(f"{self.operator.name}: {name} is None; expected a tensor")

    @property
    def reference(self) -> Any:
        """The class Model; raises LibraryError where its file is not the one that was proven."""
        if self._kind is None:
            operator = self.operator
            text = records.checked_source(
                self._folder, operator.reference, operator.reference_sha256
            )
            name = f"{self.package}._reference_{operator.namespace}"
            path = self._folder / operator.reference
            self._kind = models.import_source(text, path, name).Model
        return self._kind

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
        arguments, init = everything[:-1], everything[-1]
        self._refuse_forward_mode()
        chosen = self.dispatch.find(arguments, init, arguments[self._first].device)
        if chosen is not None:
            found = self._kernel(chosen, arguments, init)
            if found is not None:
                return found
        with torch.no_grad():
            return self._own(self.refer(arguments, init), arguments)

    def _refuse_forward_mode(self) -> None:
        """Torch drops the tangents of what an operator is given, without a word."""
        if forward_ad._current_level >= 0:
            raise RuntimeError(
                f"{self.qualified} has no forward-mode gradients in compiled code or by its torch "
                "name: call the library's operator in eager code"
            )

    def _fake(self, *everything: Any) -> Result:
        self._refuse_forward_mode()
        # Torch asks below autograd, where fake tensors meet composite operations whole. There, with
        # symbolic sizes, torch 2.11 and 2.13 sum a cross entropy that is to be of every row.
        with torch._C._SetExcludeDispatchKeyGuard(AUTOGRAD, False):
            found = self._plain(self.refer(everything[:-1], everything[-1]))
        outputs = [
            torch.empty_like(f, memory_format=torch.contiguous_format) for f in _listed(found)
        ]
        return outputs[0] if self.operator.outputs is None else tuple(outputs)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Result) -> None:
        tensors = [a for a in inputs if isinstance(a, torch.Tensor)]
        # Autograd keeps no tensor of inference mode; the reference may have no need to.
        ctx.save_for_backward(*(t.clone() if t.is_inference() else t for t in tensors))
        ctx.others = [None if isinstance(a, torch.Tensor) else a for a in inputs]

    def _backward(self, ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """`ctx.needs_input_grad` says it of the operator's arguments, the last ones of those.

        Where the gradient is to be differentiated itself, the arguments stay in the graph.
        """
        if self._inference_only:
            raise RuntimeError(
                f"{self.qualified} is for inference only: call it under torch.no_grad()"
            )
        saved = iter(ctx.saved_tensors)
        needs = ctx.needs_input_grad[-len(ctx.others) :]
        again = torch.is_grad_enabled()
        arguments: list[Any] = []
        for needed, other in zip(needs, ctx.others, strict=True):
            if other is None:
                tensor = next(saved)
                # Also where it is another argument too: each has a gradient of its own.
                kept = tensor.view_as(tensor) if again and needed else tensor.detach()
                arguments.append(kept.requires_grad_(needed))
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
                [o for o, _ in pairs],
                wanted,
                [g for _, g in pairs],
                create_graph=again,
                allow_unused=True,
            )
        )
        return tuple(
            next(found) if isinstance(a, torch.Tensor) and a.requires_grad else None
            for a in arguments
        )

    # --- past the dispatcher ---------------------------------------------------------------------

    def _alone(self, arguments: Sequence[Any], init: Any) -> bool:
        """Whether the dispatcher would do nothing but call `_run`, and autograd note it."""
        types = tuple(map(type, arguments))
        if types not in self._plain_types:
            if not direct.plain(self._kinds, types):
                return False
            self._plain_types.add(types)
        if direct.watched() or type(init) is not str:
            return False
        if arguments[self._first].device.type not in direct.DEVICES:
            return False
        # What raises in the backward pass is left to the operator that torch knows.
        return not (self._inference_only and torch.is_grad_enabled() and _needs(arguments))

    def _direct(self, arguments: Arguments, init: str) -> Result:
        chosen = self.dispatch.find(arguments, init, arguments[self._first].device)
        if chosen is not None:
            if torch.is_grad_enabled() and _needs(arguments):
                return _Recomputed.apply(self, chosen, *arguments, init)
            found = self._kernel(chosen, arguments, init)
            if found is not None:
                return found
        # With gradients of its own: nothing is computed twice for them.
        return self._own(self._refer(arguments, init), arguments)

    def _transformed(self, arguments: Arguments, init: str) -> Result:
        """The reference by torch's own operators, which every transform knows."""
        forward = forward_ad._current_level >= 0
        self.dispatch.counts.add("forward-mode gradients" if forward else "inside a transform")
        given = arguments
        kind = arguments[self._first].device.type
        if kind in direct.DEVICES and torch.is_autocast_enabled(kind):
            given = direct.cast(arguments, kind, getattr(torch, self.operator.dtype))
        return self._plain(self.refer(given, init))

    # --- the two ways to compute it --------------------------------------------------------------

    def _kernel(self, chosen: Chosen, arguments: Arguments, init: str) -> Result | None:
        """Without gradients, on the arguments' device; None where the kernel fails."""
        if torch.is_inference_mode_enabled():
            # A later call, outside of it, may write to what the kernel keeps.
            with torch.inference_mode(False):
                return self._kernel(chosen, arguments, init)
        device = arguments[self._first].device
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            if device.index is None or device.index == CURRENT():
                return self._launched(chosen, arguments, init)
            with torch.cuda.device(device):
                return self._launched(chosen, arguments, init)
        except torch.OutOfMemoryError:
            raise  # says nothing about the kernel
        except Exception as error:  # noqa: BLE001  whatever a kernel raises
            self.dispatch.give_up(chosen.row.kernel, error)
            return None
        finally:
            torch._C._set_grad_enabled(before)

    def _launched(self, chosen: Chosen, arguments: Arguments, init: str) -> Result:
        state = arguments[self._inputs :]
        key = models.place(state)
        kept = chosen.instances.find(key)
        # Storage that was freed and filled again lies elsewhere, and others where it was.
        if kept is None or models.place(kept.state) != key:
            made = self._instance(chosen, state, init, arguments[self._first].device)
            kept = chosen.instances.keep(key, models.Instance(made, state))
        model = kept.model
        if chosen.order is None:
            return self._own(model(*arguments[: self._inputs]), arguments)

        def call() -> Result:
            return self._own(model(*arguments[: self._inputs]), arguments)

        return chosen.order.run(call, arguments[self._first].device)

    def _instance(
        self, chosen: Chosen, state: Arguments, init: str, device: torch.device
    ) -> torch.nn.Module:
        loaded = chosen.loaded
        if loaded is None:  # another thread gave it up since
            raise RuntimeError("it failed in another thread")
        model = models.construct(loaded.kind, init, device, self.operator.dtype)
        names = models.matched(loaded.kernel.match, self.operator.state, models.state_names(model))
        models.give_state(model, names, state)
        return model

    def refer(self, arguments: Arguments, init: str) -> Any:
        """What the reference returns, in its own dtype."""
        kind = arguments[self._first].device.type
        off = torch.is_autocast_enabled(kind) if kind in ("cpu", "cuda") else False
        with torch.autocast(kind, enabled=False) if off else nullcontext():
            return self._refer(arguments, init)

    def _refer(self, arguments: Arguments, init: str) -> Any:
        found = self._references.find(init)
        if found is None:
            # Its own parameters are never read: every call brings them.
            meta = torch.device("meta")
            built = models.construct(self.reference, init, meta, self.operator.dtype)
            found = self._references.keep(init, models.Stateless(built, self.operator.state))
        return found(arguments[: self._inputs], arguments[self._inputs :])

    def _plain(self, found: Any) -> Result:
        """Contiguous, and in the structure of the schema."""
        if self.operator.outputs is None:
            return _one(found).contiguous()
        return tuple(f.contiguous() for f in found)

    def _own(self, found: Any, arguments: Arguments) -> Result:
        """Plain, and no result shares memory with an argument or another result."""
        if self.operator.outputs is None:
            one = _one(found).contiguous()
            return one.clone() if _shares(one, arguments) else one
        results: list[torch.Tensor] = []
        for each in found:
            one = each.contiguous()
            results.append(one.clone() if _shares(one, (*arguments, *results)) else one)
        return tuple(results)


class _Recomputed(torch.autograd.Function):  # type: ignore[misc]
    """A kernel's result, for calls past the dispatcher."""

    @staticmethod
    def forward(ctx: Any, custom: Custom, chosen: Chosen, *everything: Any) -> Result:
        arguments, init = everything[:-1], everything[-1]
        found = custom._kernel(chosen, arguments, init)
        if found is None:
            found = custom._own(custom._refer(arguments, init), arguments)
        custom._save(ctx, everything, found)
        ctx.custom = custom
        return found

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Any:
        return (None, None, *ctx.custom._backward(ctx, *given))


def _function(custom: Custom) -> Callable[..., Result]:
    """For graphs: a function with a name, that takes the constructor's arguments at the end."""

    def call(*everything: Any) -> Result:
        return custom(*everything[:-1], init=everything[-1])

    call.__name__ = custom.operator.name
    return call


def placed(
    operator: str, names: Sequence[str], arguments: Arguments, named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Arguments that were given by name, put in their places; raises TypeError where they have
    none. All have to be given: a default is known to the reference alone.
    """
    rest = list(names[len(arguments) :])
    if set(rest) != named.keys():
        raise TypeError(
            f"{operator} takes {len(names)} arguments ({', '.join(names)}), "
            f"not {len(arguments)} and {', '.join(named)}"
        )
    return (*arguments, *(named[name] for name in rest))


def _found(package: str, name: str) -> Custom:
    found: Custom = importlib.import_module(package).operator(name)
    return found


def _needs(arguments: Sequence[Any]) -> bool:
    """Whether a gradient of any of them may be asked for."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and argument.requires_grad:
            return True
    return False


def _shares(result: torch.Tensor, known: Sequence[Any]) -> bool:
    """Whether it has memory in common with one of the tensors among these."""
    for other in known:
        if isinstance(other, torch.Tensor) and torch._C._is_alias_of(result, other):
            return True
    return False


def _one(found: Any) -> torch.Tensor:
    tensor: torch.Tensor = found
    return tensor


def _listed(found: Result) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)
