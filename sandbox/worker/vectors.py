"""Asks Inductor, when it is imported, which vector instructions it can compile for on this CPU.

It compiles and loads a probe for each kind, for seconds where none is kept and for one where all
are, in every process that generates C++. Forked from one that has asked, workers know.
"""

from __future__ import annotations

from torch._inductor import cpu_vec_isa

cpu_vec_isa.valid_vec_isa_list()
