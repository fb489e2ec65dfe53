"""What a failed request means: whether to try again and when, whether the next would fail as well,
and what it may have cost. Pure: it reads what the SDK raised.
"""

from __future__ import annotations

import random

import openai

from agent.models.ledger import Spend

BACKOFF_S = (0.5, 8.0)
"""First and longest wait before a retry; it doubles in between."""
LONGEST_WAIT_S = 60.0
"""That a server's Retry-After is honoured for."""
RETRIED = frozenset((408, 409, 429))
"""Statuses below 500 that may pass by themselves."""
LASTING = (
    openai.APIConnectionError,
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""What the SDK raises where it is the server, the key or the model's name, after all retries."""
DOWN = frozenset((502, 503, 504))
"""Statuses of who stands before a server that is not there; 500 may be of one request alone."""
UNSENT = frozenset(("ConnectError", "ConnectTimeout"))
"""What the HTTP library raises where nothing was sent, so nothing can be billed."""


def passes(error: openai.APIError | TimeoutError) -> bool:
    """Whether trying again may help."""
    # The HTTP library's own time-outs are of the first type too.
    if isinstance(error, openai.APIConnectionError | TimeoutError):
        return True
    if not isinstance(error, openai.APIStatusError) or error.code == "insufficient_quota":
        return False
    return error.status_code >= 500 or error.status_code in RETRIED


def stays(error: Exception) -> bool:
    """Whether the next request, whatever it asks, would fail likewise: unlike where this one was
    refused or took too long, or there were too many.
    """
    if isinstance(error, openai.APITimeoutError):
        return type(error.__cause__).__name__ in UNSENT
    if isinstance(error, openai.InternalServerError):
        return error.status_code in DOWN
    spent = isinstance(error, openai.RateLimitError) and error.code == "insufficient_quota"
    return spent or isinstance(error, LASTING)


def cost_of_failure(error: openai.APIError | TimeoutError, most: Spend) -> Spend:
    """A refusal costs no tokens; where the answer was lost or is garbled it may have cost all."""
    refused = isinstance(error, openai.APIStatusError)
    if refused or type(error.__cause__).__name__ in UNSENT:
        return Spend(requests=1)
    return most


def pause_s(error: openai.APIError | TimeoutError, retry: int) -> float:
    """As long as the server asks for, else doubling; a quarter is chance, against stampedes."""
    if isinstance(error, openai.APIStatusError):
        asked = str(error.response.headers.get("retry-after", ""))
        if asked.replace(".", "", 1).isdecimal():  # isdigit takes "²", which float does not
            return min(float(asked), LONGEST_WAIT_S)
    first, longest = BACKOFF_S
    return float(min(first * 2**retry, longest)) * random.uniform(0.75, 1.0)
