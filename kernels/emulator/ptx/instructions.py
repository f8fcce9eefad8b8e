"""One PTX instruction to one C++ statement. Every opcode and every modifier is named in these modules: what is not is an error, so that
nothing is executed as something else."""
import arithmetic  # noqa: F401
import control  # noqa: F401
import data  # noqa: F401
from writer import C_TYPES, Writer  # noqa: F401
