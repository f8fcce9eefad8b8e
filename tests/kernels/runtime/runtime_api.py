"""The C API by ctypes, and artifacts made by NumPy, in the words of formats/spec/codebook.md."""
import ctypes
import hashlib

import numpy as np
from safetensors.numpy import save_file
from support import BUILD, SOURCE

LIBRARY = BUILD / "lib" / "libkvcc_runtime.so"
SCHEME = ("k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1,residual=0,codebook=head,weight=fs2,"
          "first-thresholds=out,first-kmeans=out")
SCHEME_JSON = ('{"k":{"grid":"nuq","bits":3,"site":"prerope","axis":"channel"},"v":{"grid":"nuq","bits":3,"axis":"token"},'
               '"sparse":0.01,"sink":1,"residual":0,"codebook":"head","weight":"fs2","first-thresholds":"out","first-kmeans":"out"}')


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("threads", ctypes.c_int32), ("max_tokens", ctypes.c_int64),
                ("arithmetic", ctypes.c_int32), ("reserved", ctypes.c_int32), ("units", ctypes.c_char_p)]


def options(**members):
    return Options(size=ctypes.sizeof(Options), **members)


def make_artifact(path, layers=2, query_heads=6, heads=2, dim=64, seed=0):
    """A random artifact's safetensors export at `path`. Returns its tensors and metadata."""
    random = np.random.default_rng(seed)
    levels = lambda: np.sort(random.uniform(-1, 1, (layers, heads, 8)).astype(np.float32), axis=-1)
    channel = lambda low, high: random.uniform(low, high, (layers, heads, dim)).astype(np.float32)
    tensors = {"layer_index": np.arange(layers, dtype=np.uint16)}
    for name in ("key", "value"):
        tensors[f"{name}/bits"] = np.full((layers, heads), 3, np.uint8)
        tensors[f"{name}/codebook"] = levels()
    tensors["key/scale"], tensors["key/zero"] = channel(2, 2.6), channel(-0.2, 0.2)
    tensors["key/threshold_lower"] = tensors["key/zero"] - tensors["key/scale"]
    tensors["key/threshold_upper"] = tensors["key/zero"] + tensors["key/scale"]
    content = hashlib.sha256(b"".join(t.tobytes() for _, t in sorted(tensors.items()))).hexdigest()
    metadata = {"format": "kvcc-codebook", "format_version": "1.0", "content_sha256": content, "scheme": SCHEME,
                "scheme_json": SCHEME_JSON, "model.name": "made", "model.layers": str(layers),
                "model.query_heads": str(query_heads), "model.kv_heads": str(heads), "model.head_dim": str(dim),
                "model.value_head_dim": str(dim), "model.rope_theta": "10000", "model.rope_kind": "half-split",
                "model.rope_scaling": "none", "model.rope_scaling_json": "", "model.rope_rotary_dim": str(dim)}
    save_file(tensors, path, metadata)
    return tensors, metadata


class Runtime:
    """The library with the types of its arguments; a code that is not KVCC_OK is an error with the library's message."""

    def __init__(self, library=LIBRARY):
        self.library = ctypes.CDLL(str(library))
        self.library.kvcc_error_message.restype = ctypes.c_char_p
        self.library.kvcc_version.restype = ctypes.c_char_p
        self.library.kvcc_length.restype = ctypes.c_int64

    def message(self):
        return self.library.kvcc_error_message().decode()

    def call(self, name, *arguments, code=0):
        done = getattr(self.library, "kvcc_" + name)(*map(argument, arguments))
        assert done == code, f"{name}: {done}, wanted {code}: {self.message()}"

    def made(self, name, *arguments):
        """The object that a function makes as its last argument."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle


def argument(value):
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return value.ctypes.data_as(ctypes.c_void_p)
    if isinstance(value, float):
        return ctypes.c_float(value)
    if isinstance(value, int):  # layers are 32 bits; on these machines an argument takes a whole register
        return ctypes.c_int64(value)
    if isinstance(value, Options):
        return ctypes.byref(value)
    return str(value).encode() if hasattr(value, "__fspath__") else value


def functions_of_header():
    """Names of the functions that kvcc_runtime.h declares."""
    import re
    text = (SOURCE / "kernels/host/kvcc_runtime.h").read_text()
    return set(re.findall(r"KVCC_API [^;]*?\b(kvcc_\w+)\(", text))
