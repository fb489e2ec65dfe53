"""A uid of its own for every living worker on this machine, where we are root.

Killing a slot's leftovers means killing whatever runs under its uid, and the process limit counts
by uid: two workers that shared one would end each other.
"""

from __future__ import annotations

import secrets
import socket

from sandbox.errors import SandboxFault

FIRST_UID = 61000
"""Above ordinary users, below nobody (65534)."""
UIDS = 3000


class Slot:
    """A uid that no other supervisor uses until `close`, or until this process ends."""

    def __init__(self) -> None:
        """Raises SandboxFault when every uid is taken."""
        self._claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        start = secrets.randbelow(UIDS)
        for step in range(UIDS):
            self.uid = FIRST_UID + (start + step) % UIDS
            try:
                # An abstract name is unique on the machine and goes with its holder (unix(7)).
                self._claim.bind(f"\0warpsmith-uid-{self.uid}")
            except OSError:
                continue  # taken by another worker
            return
        self._claim.close()
        raise SandboxFault(f"all {UIDS} worker uids are taken: end other evaluators")

    def close(self) -> None:
        self._claim.close()
