"""How the likeliest token becomes a drawn one, and how likely it was."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.generation.logits_process import LogitsProcessor, TopPLogitsWarper

from rl.config import SamplingConfig


class Draw(LogitsProcessor):  # type: ignore[misc]
    """Gumbel noise on logits, from each row's own seed: the likeliest token with it is a draw from
    their softmax (Gumbel-max), and the same one in every batch. None where sampling is greedy.
    """

    def __init__(
        self, sampling: SamplingConfig, seeds: Sequence[int], device: torch.device
    ) -> None:
        greedy = sampling.greedy
        self._dice = [torch.Generator(device).manual_seed(s) for s in seeds if not greedy]
        self._temperature = 1.0 if greedy else sampling.temperature
        self._narrow = TopPLogitsWarper(sampling.top_p) if sampling.top_p < 1 else None
        self._log_probabilities: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """On (rows, vocabulary) logits; `input_ids` are not looked at."""
        scaled = scores.float() / self._temperature
        drawn = self._noisy(scaled, input_ids) if self._dice else scaled
        chosen = scaled.gather(-1, drawn.argmax(-1, keepdim=True))[:, 0]
        self._log_probabilities.append(chosen - scaled.logsumexp(-1))
        return drawn

    @property
    def log_probabilities(self) -> torch.Tensor:
        """(rows, tokens): of each token drawn so far, at this temperature, by all that could be
        (as TRL takes them, `top_p` left out).
        """
        return torch.stack(self._log_probabilities, -1)

    def _noisy(self, scaled: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        kept = scaled if self._narrow is None else self._narrow(input_ids, scaled)
        noise = torch.empty_like(kept)
        for row, dice in zip(noise, self._dice, strict=True):
            row.exponential_(generator=dice)
        return kept - noise.log()
