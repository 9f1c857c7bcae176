"""headwise's own CPU kernels, in C++ behind a plain C interface (`headwise.h`), which every version of torch can call.

`src/` has the sources, `build.py` compiles them when headwise is installed, `library.py` loads what was compiled, on the
machine's best instruction set. Without a compiler there is no library, and the kernels of torch operators serve.
"""

from headwise.native.attend import DTYPES, backward, forward
from headwise.native.library import instruction_set, instruction_sets, library, use
from headwise.native.sight import sight_of

__all__ = ["DTYPES", "backward", "forward", "instruction_set", "instruction_sets", "library", "sight_of", "use"]
