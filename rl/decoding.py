"""A batch of replies token by token: the prompts in pieces, then steps whose shapes never change.

`generate` launches some two thousand small kernels a token from Python: at 1.5 billion parameters
with adapters, 16 replies at once, that took 156 ms on an H100, whose arithmetic takes a tenth of it
(h100_train_size.json). With a static cache of keys every step is the same work on the same memory,
and a GPU replays it as one CUDA graph.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

log = logging.getLogger(__name__)

GRAIN = 256
"""Tokens to which the cache's length is rounded up: like batches then use memory that there is."""
PREFILLED = 1 << 15
"""Tokens of prompts at a time: 64 of 6,600 at once took 14 GiB for one product of a model of 1.5
billion parameters with adapters, and an H200 ran out of memory."""
LOOKED_AT = 8
"""Steps between two looks whether all replies have ended: a look waits for the GPU."""
_refused: WeakSet[Any] = WeakSet()
"""Models that no graph held."""
Choose = Callable[[torch.Tensor], torch.Tensor]
"""(rows, vocabulary) logits to (rows,) tokens."""


def wanted(model: Any) -> bool:
    """Whether launches are what takes the time, and steps can be of one shape. On a CPU attention
    to the cache's whole length takes more than they do (the toy model twice as long in all).
    """
    return model.device.type == "cuda" and able(model)


def able(model: Any) -> bool:
    """Whether every layer sees all tokens before its own, at places that stay."""
    if not getattr(model, "_can_compile_fullgraph", False) or model in _refused:
        return False
    layers = StaticCache(config=model.config, max_cache_len=GRAIN).layers
    return all(type(layer) is StaticLayer for layer in layers)


def decode(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, most: int, choose: Choose, end: int
) -> torch.Tensor:
    """(rows, at most `most`) tokens after (rows, width) `ids`, padded on the left where `mask` is
    0. What a row holds behind its `end` says nothing.
    """
    steps = _Steps(model, ids, mask, most)
    found = torch.full((len(ids), most), end, dtype=ids.dtype, device=ids.device)
    over = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for number in range(most):
        token = choose(steps.logits)
        found[:, number] = token
        over |= token == end
        looked_at = number % LOOKED_AT == LOOKED_AT - 1
        if number + 1 == most or (looked_at and bool(over.all())):
            return found[:, : number + 1]
        steps.take(token)
    return found


class _Steps:
    """`logits`, (rows, vocabulary), of what comes next."""

    def __init__(self, model: Any, ids: torch.Tensor, mask: torch.Tensor, most: int) -> None:
        rows, width = ids.shape
        length = -(-(width + most) // GRAIN) * GRAIN
        self.model, self.device = model, ids.device
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        piece = max(1, PREFILLED // rows)
        for first in range(0, width, piece):
            seen, own = mask[:, : first + piece], slice(first, first + piece)
            self.logits = self._next(ids[:, own], seen, positions[:, own])
        self.token = torch.zeros(rows, 1, dtype=ids.dtype, device=self.device)
        self.position = positions[:, -1:] + 1
        self.place = torch.tensor([width], device=self.device)
        # Added to attention: a mask of two dimensions would be made into this one at every step.
        hidden = torch.finfo(model.dtype).min
        self.seen = torch.full((rows, 1, 1, length), hidden, dtype=model.dtype, device=self.device)
        self.seen[:, 0, 0, :width].masked_fill_(mask.bool(), 0.0)
        self.replay: Callable[[], torch.Tensor] | None = None
        self.alike = self.device.type != "cuda"
        """Every step is like the last: there is no graph to capture any more."""

    def take(self, token: torch.Tensor) -> None:
        """One more token, (rows,), of each row."""
        self.token.copy_(token[:, None])
        if self.replay is not None:
            self.logits = self.replay()
        elif self.alike:
            self.logits = self._step()
        else:
            self.logits, self.alike = self._beside(), True
            self.replay = self._captured()

    def _beside(self) -> torch.Tensor:
        """A step on another stream, as the warm-up of a capture has to be."""
        usual, aside = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        aside.wait_stream(usual)
        with torch.cuda.stream(aside):
            logits = self._step()
        usual.wait_stream(aside)
        return logits

    def _captured(self) -> Callable[[], torch.Tensor] | None:
        """A step to be replayed; None where the model does what no graph holds."""
        graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        try:
            # Other threads of this process may go on: what they do is no part of it.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                logits = self._step()
        except RuntimeError as error:
            torch.cuda.set_stream(usual)  # A capture that fails does not come back from its own.
            _refused.add(self.model)
            log.warning("sampling goes on without a CUDA graph: %s", error)
            return None

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay

    def _step(self) -> torch.Tensor:
        self.seen.index_fill_(3, self.place, 0.0)
        logits = self._next(self.token, self.seen, self.position)
        self.place += 1
        self.position += 1
        return logits

    def _next(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        kept = {_cache_argument(self.model): self.cache}
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **kept,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits


def _cache_argument(model: Any) -> str:
    """As this version of transformers calls it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "cache" if "cache" in inspect.signature(inner.forward).parameters else "past_key_values"
