"""A library's operators inside a user's model, put there and taken out again.

`Patch` stands before the model's forward. At the first call with inputs it has not seen it traces
the model, looks for places where an operator fits, and keeps a graph with the operators in them; a
later call with such inputs runs that graph on the model's present parameters. Everything else runs
the model's own forward: train mode, autocast, other shapes, hooks inside the model or on all
modules, a model whose modules, forwards or attributes were exchanged or whose parameters were
added, removed or untied, a model that torch.export refuses (then its children are tried, each by
itself).

It replaces what is proven elsewhere to be right and fast; that the whole is, `warpsmith apply`
shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from agent.export.runtime import graphs, locks, places, twins
from agent.export.runtime.attributes import PLAIN, Attributes
from agent.export.runtime.models import home_of
from agent.export.runtime.operators import Custom
from agent.export.runtime.places import Place, Variant
from agent.export.runtime.records import LibraryError
from agent.export.runtime.structure import Structure, forwards

KEPT_PLANS = 32
"""Of one module: beyond so many kinds of inputs the module's own forward runs."""
TRACING = locks.rlock()
STOOD = ("forward", "_replicate_for_data_parallel", "__prepare_scriptable__")
"""What a module has of its own while it is patched."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Plan:
    """What runs for one kind of inputs."""

    run: Callable[..., Any]
    state: tuple[tuple[Mapping[str, Any], str, torch.dtype, torch.Size], ...]
    """Where each parameter, buffer and constant is looked up at every call, and its dtype and
    shape: a graph holds for no others (a model cast to half, say)."""
    out_spec: TreeSpec
    single: bool
    """Whether the result is one tensor by itself."""

    def present(self) -> list[torch.Tensor] | None:
        """Parameters and buffers as they are now; None where they are of another kind."""
        found = []
        for home, name, dtype, shape in self.state:
            tensor = home.get(name)
            if tensor is None or tensor.dtype is not dtype or tensor.shape != shape:
                return None
            found.append(tensor)
        return found

    def __call__(self, state: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
        found = self.run(*state, *values)
        return found[0] if self.single else tree_unflatten(list(found), self.out_spec)


class Site:
    """One module whose forward is stood in for: the model, or a part of it."""

    def __init__(self, patch: Patch, module: torch.nn.Module, name: str) -> None:
        self.patch, self.module, self.name = patch, module, name
        self.own: Callable[..., Any] = module.forward
        with suppress(ValueError, TypeError):  # some have none
            self.__signature__ = inspect.signature(self.own)
        self.plans: dict[Key, Plan | None] = {}
        """By whether gradients are on, and the kind of inputs."""
        self.modules = [(m, list(m._modules.values())) for m in module.modules()]
        """With their children."""
        self.modal = [m for m in module.modules() if _has_mode(m)]
        self.attributes: Attributes | None = None
        """As they were when a graph was first made, which holds their values."""
        self.structure: Structure | None = None
        """Likewise."""
        self.before = {name: vars(module)[name] for name in STOOD if name in vars(module)}
        """What the module itself had of these beside its class's."""
        self.put_back()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not self._ready():
            return self.own(*arguments, **named)
        values, key = _key(arguments, named)
        if (True, *key) not in self.plans and not torch.compiler.is_compiling():
            self.patch.plan(self, key, arguments, named)
        plan = self.plans.get((torch.is_grad_enabled(), *key))
        state = None if plan is None or self.hooked() else plan.present()
        if plan is None or state is None:
            return self.own(*arguments, **named)
        return plan(state, values)

    def _ready(self) -> bool:
        """Outside autocast, torch.export and torch.jit.trace, in eval mode, and made of what it was
        traced with.
        """
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return False
        # What is exported or traced goes where the library may not be, and with other sizes.
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            return False
        if _has_any_global_hook():  # which sees the modules inside, or changes what they return
            return False
        for module in self.modal:
            if module.training:
                return False
        for module, children in self.modules:
            if list(module._modules.values()) != children:
                return False
        if self.attributes is None or self.structure is None:
            return True
        return self.structure.holds() and self.attributes.hold()

    def note(self) -> None:
        """What a graph that is made now takes for granted."""
        if self.attributes is None or self.structure is None:
            modules = [module for module, _ in self.modules]
            self.attributes, self.structure = Attributes(modules), Structure(modules)

    def hooked(self) -> bool:
        """Whether somebody watches a module inside, which a graph would pass by."""
        return any(_hooked(module) for module, _ in self.modules[1:])

    def covered(self) -> bool:
        """Whether another library's operators were put before this."""
        return any(each is self for each in [*forwards(self.module)][1:])

    @property
    def stands_for(self) -> Any:
        """What the module had beside its class's forward."""
        return self.before.get("forward")

    def remove(self) -> None:
        if vars(self.module).get("forward") is self:
            _give_back(self.module, self.before)

    def put_back(self) -> None:
        found = self, self._replica, self._unscriptable
        vars(self.module).update(zip(STOOD, found, strict=True))

    def _replica(self) -> torch.nn.Module:
        """For DataParallel: with its own forward, since a graph reads this module's parameters."""
        before = self.before
        while hasattr(before.get("forward"), "stands_for"):  # of another library
            before = before["forward"].before
        kind = type(self.module)
        made: torch.nn.Module = kind._replicate_for_data_parallel(self.module)
        _give_back(made, before)
        return made

    def _unscriptable(self) -> torch.nn.Module:
        raise LibraryError(
            "torch.jit.script takes no patched model: unpatch it first, and patch what calls it"
        )

    @property
    def __code__(self) -> Any:
        """Of the model's own forward: torch.export asks where its inputs are named."""
        return self.own.__code__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("a patched model cannot be copied: unpatch it first, patch the copy")

    def __reduce__(self) -> Any:
        raise TypeError("a patched model cannot be pickled: unpatch it first")


class Patch:
    """The operators of a library in one model; `unpatch` takes them out again."""

    def __init__(self, model: torch.nn.Module, customs: Mapping[str, Custom]) -> None:
        self.model = model
        self.variants: list[Variant] = []
        self.missing: dict[str, str] = {}
        """Operators that have no graph to look for here, and why."""
        self.places: list[Place] = []
        """Every occurrence that was looked at, the replaced ones among them."""
        self.untraceable: dict[str, str] = {}
        """Modules that could not be traced, and why; their children were tried."""
        for name, custom in customs.items():
            found, reason = places.variants(custom)
            self.variants += found
            if reason:
                self.missing[name] = reason
        self.called = False
        """Whether the model was, as long as it was patched."""
        self.sites: list[Site] = [Site(self, model, "")] if self.variants else []

    @property
    def replaced(self) -> list[Place]:
        return [place for place in self.places if place.replaced]

    def on(self) -> None:
        """Again, after `off`."""
        for site in self.sites:
            site.put_back()

    def off(self) -> None:
        """For a while; what was traced is kept."""
        for site in self.sites:
            site.remove()

    def unpatch(self) -> None:
        """Give the model its own forward back; may be called again.

        Raises LibraryError, and changes nothing, where another library was put in after this one.
        """
        if any(site.covered() for site in self.sites):
            raise LibraryError("another library's operators were put into it later: unpatch those")
        self.called = self.called or any(site.plans for site in self.sites)
        self.off()
        self.sites.clear()

    def plan(self, site: Site, key: Key, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Trace the site's module for inputs of this kind, with gradients and without, and keep
        what is to run for them.
        """
        with TRACING:
            if (True, *key) in site.plans or len(site.plans) >= 2 * KEPT_PLANS:
                return
            site.plans[(True, *key)] = site.plans[(False, *key)] = None
            site.note()
            try:
                if site.hooked():
                    raise graphs.Untraceable("modules inside it have hooks")
                made: dict[str, Plan | None] = {}
                for gradients in (True, False):  # most compute the same
                    traced = self._traced(site, arguments, named, gradients)
                    text = str(traced.graph)
                    if text not in made:
                        made[text] = self._made(site, traced)
                    site.plans[(gradients, *key)] = made[text]
            except graphs.Untraceable as error:
                self.untraceable.setdefault(site.name, str(error))
                self._descend(site)

    def _made(self, site: Site, traced: graphs.Traced) -> Plan | None:
        fits, told = places.find(traced, graphs.decompose(traced), self.variants)
        graph = None
        if fits:
            try:
                graph = places.rewrite(traced, fits)
            except places.Unfit as error:
                told = [replace(p, state=str(error)) if p.replaced else p for p in told]
        self._note(site, told)
        if graph is None:
            return None
        homes = [
            ({"": s}, "") if isinstance(s, torch.Tensor) else home_of(site.module, s)
            for s in traced.state
        ]
        state = tuple((h, name, h[name].dtype, h[name].shape) for h, name in homes)
        return Plan(graph.forward, state, traced.out_spec, traced.out_spec.is_leaf())

    def _traced(
        self, site: Site, arguments: tuple[Any, ...], named: dict[str, Any], gradients: bool
    ) -> graphs.Traced:
        """Of a twin where there can be one: calls of the module in other threads go on."""
        sites = self.sites
        for each in sites:
            each.remove()
        try:
            twin = twins.twin(site.module)
        finally:
            for each in sites:
                each.put_back()
        if twin is not None:
            kept, changed = Attributes(list(twin.modules())), list[bool]()
            with twins.unhooked(twin):
                # Here: torch.export puts the module's own attributes back before it returns.
                twin._forward_hooks[0] = lambda *_: changed.append(not kept.hold())
                traced = graphs.trace(twin, arguments, named, gradients)
            if any(changed):
                raise graphs.Untraceable("its forward changes its attributes")
            if not twins.shared(traced.state, site.module):
                return traced
        site.remove()
        try:
            with twins.unhooked(site.module):
                return graphs.trace(site.module, arguments, named, gradients)
        finally:
            site.put_back()

    def _note(self, site: Site, told: Sequence[Place]) -> None:
        prefix = f"{site.name}." if site.name else ""
        for place in told:
            module = f"{prefix}{place.module}".rstrip(".")
            noted = replace(place, module=module)
            if noted not in self.places:
                self.places.append(noted)

    def _descend(self, site: Site) -> None:
        """Children with a forward of their own become sites; they are traced when called."""
        known = {id(s.module) for s in self.sites}
        for name, child in _callable_children(site.module, site.name):
            if id(child) not in known:
                self.sites.append(Site(self, child, name))

    def __str__(self) -> str:
        """What was replaced, what was not and why."""
        told = [
            f"{p.operator}: {p.module or 'the model'} ({', '.join(p.nodes)}): {p.state}"
            for p in sorted(self.places, key=lambda p: not p.replaced)
        ]
        return "\n".join([*told, *(f"{name}: {why}" for name, why in self.reasons().items())])

    def reasons(self) -> dict[str, str]:
        """Operators without any place, and modules that could not be traced, and why."""
        seen = {p.operator for p in self.places} | set(self.missing)
        why = "nothing in the model has its graph"
        if not self.called and not any(site.plans for site in self.sites):
            why = "the model was not called in eval mode yet"
        rest = {v.name: why for v in self.variants if v.name not in seen}
        untraced = {n or "the model": f"not traced: {why}" for n, why in self.untraceable.items()}
        return self.missing | rest | untraced


def _give_back(module: torch.nn.Module, before: Mapping[str, Any]) -> None:
    for name in STOOD:
        vars(module).pop(name, None)
    vars(module).update(before)


def _key(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Key]:
    """The flattened inputs, and what a graph made for them depends on."""
    if not named and all(isinstance(a, torch.Tensor) for a in arguments):
        return list(arguments), tuple(map(_of_tensor, arguments))
    values, spec = tree_flatten((arguments, named))
    parts = [_of_tensor(v) if isinstance(v, torch.Tensor) else _of_value(v) for v in values]
    # As text: Dynamo cannot hash a spec, and meets the keys of every other call too.
    return values, (repr(spec), *parts)


def _of_tensor(tensor: torch.Tensor) -> Key:
    layout = tensor.stride() if tensor.layout is torch.strided else tensor.layout
    return type(tensor), tensor.dtype, tensor.shape, layout, tensor.device


def _of_value(value: Any) -> Key:
    if isinstance(value, PLAIN):
        return type(value), value
    return type(value), id(value)


def _hooked(module: torch.nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _has_mode(module: torch.nn.Module) -> bool:
    """Graphs, exported ones say, compute the same in train and in eval mode."""
    kind = type(module)
    return not (
        kind is torch.nn.Module or kind.__module__.startswith(("torch.fx.", "torch.export."))
    )


def _callable_children(module: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Through containers, which are indexed and not called."""
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _callable_children(child, path)
        else:
            yield path, child
