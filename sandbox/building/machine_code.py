"""A digest of what a candidate was compiled to, by which equal programs in other words are told.

Of cubins (SASS) and of libraries only instructions and constants count: a program with its
variables renamed has the same. Names of functions that a library tells, and those in the cubins
that it holds, are among its constants; what is no ELF file of a known form counts whole, as PTX
does. Files come from the candidate's process, so the digest is its claim, and reading them bounded.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

COUNTED = (".text", ".rodata", ".data", ".nv.constant", ".nv.global", ".nv_fatbin")
"""Beginnings of the names of sections."""
LEFT_OUT = (".data.rel",)
"""Addresses, which are relocated."""
BINARIES = ("*.cubin", "*.made", "*.so")
"""Of Triton, of NVRTC (sandbox/worker/nvrtc.py) and of extensions."""
MAGIC = b"\x7fELF\x02\x01"
NOBITS = 8
MOST_BYTES, MOST_FILES, MOST_SECTIONS, LONGEST_NAME = 64 << 20, 256, 2048, 64
"""Of all files, beyond which there is no digest; of one, beyond which it counts whole."""
HEADER, SECTION = struct.Struct("<40xQ10xHHH"), struct.Struct("<II16xQQ24x")
"""ELF-64: (section headers' offset; their size, count, and that of names), (name, type, offset,
size). Tool Interface Standard, Executable and Linking Format 1.2; little-endian."""


def digest_of(folders: list[Path]) -> str:
    """Of all binaries below; empty where there is none, or too much."""
    paths = (path for folder in folders for kind in BINARIES for path in folder.rglob(kind))
    files = list(itertools.islice((path for path in paths if path.is_file()), MOST_FILES + 1))
    if len(files) > MOST_FILES or sum(path.stat().st_size for path in files) > MOST_BYTES:
        return ""
    found = sorted({_digest(path.read_bytes()) for path in files})
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16] if found else ""


def _digest(binary: bytes) -> str:
    if binary.startswith(b"["):  # NVRTC's symbols, a line before what it made
        binary = binary.partition(b"\n")[2]
    try:
        parts = sorted(_sections(binary))
    except (struct.error, ValueError, OverflowError):
        parts = []
    return hashlib.sha256(b"".join(parts) if parts else binary).hexdigest()


def _sections(binary: bytes) -> Iterator[bytes]:
    """The digest of every section that counts. Raises ValueError where it is no ELF-64 file."""
    if not binary.startswith(MAGIC):
        raise ValueError("no ELF file")
    start, size, count, names = HEADER.unpack_from(binary)
    if size != SECTION.size or count > MOST_SECTIONS or names >= count:
        raise ValueError("no table of sections")
    table = [SECTION.unpack_from(binary, start + size * number) for number in range(count)]
    _, _, offset, length = table[names]
    labels = binary[offset : offset + length]
    if sum(length for _, kind, _, length in table if kind != NOBITS) > len(binary):
        raise ValueError("sections overlap")
    for label, kind, offset, length in table:
        name = labels[label : label + LONGEST_NAME].partition(b"\0")[0].decode(errors="replace")
        if kind == NOBITS or not name.startswith(COUNTED) or name.startswith(LEFT_OUT):
            continue
        general = next(beginning for beginning in COUNTED if name.startswith(beginning))
        yield hashlib.sha256(general.encode() + binary[offset : offset + length]).digest()
