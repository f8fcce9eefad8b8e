"""The grids of GGUF's IQ1 to IQ3 types as formats/weights/grids.cc has them: sets of points, from the tables of PyPI gguf.

`python tests/formats/weights/grid_words.py` prints the arrays; test_gguf_oracle.py compares them with the file."""
import re

import gguf.quants
import numpy as np

NAMES = {"IQ1_S": "kIq1", "IQ2_XXS": "kIq2Xxs", "IQ2_XS": "kIq2Xs", "IQ2_S": "kIq2S", "IQ3_XXS": "kIq3Xxs", "IQ3_S": "kIq3S"}


def words(kind):
    """Bit n of word w: whether the point is in the grid whose levels' indices are the digits, least first, of 64 w + n."""
    quant = getattr(gguf.quants, kind)
    quant.init_grid()
    levels = list(quant.grid_map)
    indices = np.searchsorted(levels, quant.grid.reshape(quant.grid_shape))
    points = (indices * len(levels) ** np.arange(indices.shape[1])).sum(1)
    assert np.all(np.diff(points) > 0)  # entries are in the order of their points: the set is the table
    bits = np.zeros(-(-len(levels) ** indices.shape[1] // 64) * 64, np.uint8)
    bits[points] = 1
    return np.packbits(bits, bitorder="little").view("<u8")


def source():
    return "\n".join(f"constexpr uint64_t {NAMES[kind]}[] = {{{', '.join(f'{w:#018x}' for w in words(kind))}}};" for kind in NAMES)


def read(text):
    """The arrays of a C++ source by their names."""
    found = re.findall(r"constexpr uint64_t (\w+)\[\] = \{(.*?)\};", text, re.S)
    return {name: [int(w, 16) for w in body.replace("\n", " ").split(",")] for name, body in found}


if __name__ == "__main__":
    print(source())
