"""One candidate with the verdict it must get, and the ways to spoil a right one."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.types import Language, Status


@dataclass(frozen=True)
class Probe:
    problem: str
    """Selection of one problem, such as `level1/19`."""
    language: Language
    variant: str
    expected: Status
    source: str


def fill(template: str, **parts: str) -> str:
    """The template with every @NAME@ replaced; an unknown or missing name is an error here."""
    for name, text in parts.items():
        if f"@{name}@" not in template:
            raise ValueError(f"the template has no @{name}@")
        template = template.replace(f"@{name}@", text)
    return template


def spoil(source: str, how: str) -> str:
    """A right candidate made wrong in one of the ways of SPOILS, with its kernel left as it is."""
    return source.replace("class ModelNew(", "class Honest(") + "\n\n" + SPOILS[how]


SPOILS = {
    "stale buffer": """class ModelNew(Honest):
    kept = None

    def forward(self, *inputs):
        out = super().forward(*inputs)
        if self.kept is None:
            self.kept = torch.empty_like(out)
        return self.kept.copy_(out)
""",
    "cached by address": """class ModelNew(Honest):
    known = {}

    def forward(self, *inputs):
        key = inputs[-1].data_ptr()
        if key not in self.known:
            self.known[key] = super().forward(*inputs)
        return self.known[key].clone()
""",
    "half output": """class ModelNew(Honest):
    def forward(self, *inputs):
        return super().forward(*inputs).half()
""",
    "output without a dimension": """class ModelNew(Honest):
    def forward(self, *inputs):
        return super().forward(*inputs).flatten(0, 1)
""",
    "input mutated": """class ModelNew(Honest):
    def forward(self, *inputs):
        out = super().forward(*inputs)
        inputs[-1].view(-1)[-1:].add_(1.0)
        return out
""",
    "parameters frozen": """class ModelNew(Honest):
    frozen = None

    def forward(self, *inputs):
        now = [p.clone() for p in self.parameters()]
        if self.frozen is None:
            self.frozen = now
        for parameter, value in zip(self.parameters(), self.frozen, strict=True):
            parameter.data.copy_(value)
        out = super().forward(*inputs)
        for parameter, value in zip(self.parameters(), now, strict=True):
            parameter.data.copy_(value)
        return out
""",
    "rounded to half": """class ModelNew(Honest):
    def forward(self, *inputs):
        return super().forward(*inputs).half().float()
""",
}
