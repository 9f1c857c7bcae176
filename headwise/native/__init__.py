"""headwise's own CPU kernels, in C++ behind a plain C interface (`headwise.h`), for every version of torch.

`src/` has the sources. `build.py` compiles them when headwise is installed. `library.py` loads the compiled library,
for the best instruction set of the machine. `attend.py` passes calls (`AttentionCall`) to it. Without a compiler there
is no library, and kernels of torch operators are used. HEADWISE_NATIVE=avx2 (or another instruction set, or "off")
overrides the choice of the instruction set.
"""
