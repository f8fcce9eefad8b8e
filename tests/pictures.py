"""Screenshots compared with kept ones, blurred so that how a machine draws letters makes no difference but a missing chart,
another colour or another layout does. KVCC_UPDATE_GOLDEN=1 keeps the present ones."""
import os
from pathlib import Path

import numpy as np
from support import SOURCE

KEPT = SOURCE / "tests/calib/report/pictures"
WIDTH, COLUMNS = 240, 40
# A cell is a COLUMNS-th of the width, square; levels are 0 to 255.
FAR, SHARE = 36, 0.01


def small(picture):
    """WIDTH wide, as kept: few colours."""
    from PIL import Image
    return picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.Resampling.BOX)


def cells(picture, rows):
    """Mean colours of a grid of `rows` by COLUMNS, whatever the height: text that wraps otherwise moves little."""
    from PIL import Image
    return np.asarray(picture.resize((COLUMNS, rows), Image.Resampling.BOX), np.float32)


def difference(a, b):
    """Why the pictures differ; "" when they look the same."""
    if abs(a.height / a.width - b.height / b.width) > 0.04 * b.height / b.width:
        return f"{a.width} x {a.height}, kept {b.width} x {b.height}"
    rows = max(1, round(b.height / b.width * COLUMNS))
    distance = np.abs(cells(a, rows) - cells(b, rows)).max(-1)
    share = float((distance > FAR).mean())
    return f"{100 * share:.1f} % of the cells differ, mean {distance.mean():.1f}" if share > SHARE or distance.mean() > 6 else ""


def compare(picture, name):
    from PIL import Image
    path = KEPT / f"{name}.png"
    if os.environ.get("KVCC_UPDATE_GOLDEN"):
        KEPT.mkdir(exist_ok=True)
        small(picture).quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    why = difference(small(picture), Image.open(path).convert("RGB"))
    if why:
        kept = Path(os.environ.get("KVCC_BUILD", "build")) / f"differs-{name}.png"
        picture.save(kept)
        raise AssertionError(f"{name}: {why}; the picture is in {kept}")
