"""Asks Inductor, when it is imported, which vector instructions it can compile for on this CPU.

It compiles and loads a probe for each kind, for seconds where none is kept and for one where all
are, in every process that generates C++, and generates for the first kind that passes. The others
are asked for only where something is set that may choose among them. Forked from one that has
asked, workers know.
"""

from __future__ import annotations

import os

from torch._inductor import config, cpu_vec_isa

every = cpu_vec_isa.valid_vec_isa_list


def first() -> list[cpu_vec_isa.VecISA]:
    """The first kind alone, of those that `every` finds."""
    if not _found:
        kinds = cpu_vec_isa.supported_vec_isa_list
        known = list(kinds)
        try:
            for count in range(1, len(known) + 1):
                kinds[:] = known[:count]
                if found := every.__wrapped__():
                    _found.extend(found)
                    break
        finally:
            kinds[:] = known
    return list(_found)


def valid_vec_isa_list() -> list[cpu_vec_isa.VecISA]:
    """What Inductor's own of this name is asked for: the first kind, or the one that is set."""
    chosen = config.cpp.simdlen is not None or os.environ.get("ATEN_CPU_CAPABILITY")
    return every() if chosen else first()


_found: list[cpu_vec_isa.VecISA] = []
cpu_vec_isa.valid_vec_isa_list = valid_vec_isa_list
cpu_vec_isa.pick_vec_isa()
