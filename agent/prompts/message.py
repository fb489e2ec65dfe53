"""One chat message, as every chat API and chat template takes it: a plain dictionary."""

from typing import Literal, TypedDict


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str
