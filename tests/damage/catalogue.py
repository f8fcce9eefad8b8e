"""Broken files, each a good one with one edit: (name, edit, parts of the message that name place and rule).

An edit gets the good file in parts (good_files.py, or the document of a JSON file) and changes it, or returns the bytes to
write in its place. Artifacts as trees are spoilt in tests/formats/store/broken_codebook_test.cc, and packed cache files,
with the checksum put right, in tests/kernels/runtime/damage_test.cc.
"""
import struct

from good_files import ARRAY, BOOL, F32, F64, I32, I64, STRING, U8, U32, U64, Safetensors, shapes

NORM, Q = "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
DEEP = b"[" * 200_000 + b"]" * 200_000
HUGE = 1 << 62


def put(*path):
    """put("a", "b", 3): sets document["a"]["b"] = 3."""
    def edit(document):
        for name in path[:-2]:
            document = document[name]
        document[path[-2]] = path[-1]
    return edit


def drop(*path):
    def edit(document):
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]
    return edit


def replace(old, new):
    """Of the document's text."""
    import json

    def edit(document):
        text = json.dumps(document).encode()
        assert text.count(old) >= 1, old
        return text.replace(old, new, 1)
    return edit


def nested(name):
    """A member with so many brackets that reading, copying or printing it by recursion would overflow the stack."""
    import json
    return lambda document: json.dumps(document).encode()[:-1] + b', "' + name.encode() + b'": ' + DEEP + b"}"


JSON_FILES = [  # hold for every JSON file that is read
    ("empty", lambda d: b"", ["not JSON, or truncated"]),
    ("a list", lambda d: b"[]", ["not a JSON object"]),
    ("a number", lambda d: b"1", ["not a JSON object"]),
    ("two documents", lambda d: b"{}{}", ["not JSON"]),
    ("a comma too many", lambda d: b'{"a":1,}', ["not JSON"]),
    ("comments", lambda d: b"/* */{}", ["not JSON"]),
    ("NaN", lambda d: b'{"a":NaN}', ["not JSON"]),
    ("a number beyond the largest double", lambda d: b'{"a":1e999}', ["not JSON"]),
    ("bytes that are no UTF-8", lambda d: b'{"a":"\xff\xfe"}', ["not JSON", "UTF-8"]),
    ("half a surrogate pair", lambda d: b'{"a":"\\ud800"}', ["not JSON"]),
    ("a NUL", lambda d: b'{"a":1\0}', ["not JSON"]),
    ("UTF-16", lambda d: '{"a":1}'.encode("utf-16"), ["not JSON"]),
    ("deep nesting", nested("deep"), ["deep", "nests more than 64 deep"]),
    ("deep nesting of objects", lambda d: b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ["a.a", "nests more than 64 deep"]),
    ("a name twice", lambda d: b'{"b":{"a":1,"a":2}}', ["b.a", "appears twice"]),
    ("a name twice, spelt otherwise", lambda d: b'{"a":1,"\\u0061":2}', ["a: appears twice"]),
]


def header(text):
    """The header's bytes in place of the document."""
    def edit(file):
        file.header = text
    return edit


def tensor(name, **members):
    def edit(file):
        file.header[name].update(members)
    return edit


def without(*names):
    return lambda file: Safetensors([name for name in shapes() if name not in names]).bytes()


def offsets(name, begin, end):
    return tensor(name, data_offsets=[begin, end])


SAFETENSORS = [
    ("empty", lambda f: b"", ["truncated: needs 8 bytes, has 0 bytes"]),
    ("5 bytes", lambda f: f.bytes()[:5], ["truncated: needs 8 bytes, has 5 bytes"]),
    ("header cut in half", lambda f: f.bytes()[:300], ["truncated: needs", "has 300 bytes"]),
    ("data cut short", lambda f: f.bytes()[:-1], ["truncated: needs"]),
    ("no data", lambda f: setattr(f, "data", b""), ["truncated: needs"]),
    ("bad magic", lambda f: b"PK\3\4" + f.bytes(), ["claims a header of"]),
    ("header of 2^64 - 1 bytes", lambda f: setattr(f, "length", 2**64 - 1), ["claims a header of 18446744073709551615"]),
    ("header of 100 MB", lambda f: setattr(f, "length", 100_000_000), ["truncated: needs 100000008"]),
    ("header of 0 bytes", lambda f: setattr(f, "length", 0), ["header", "not JSON"]),
    ("header too short", lambda f: setattr(f, "length", 10), ["header", "not JSON"]),
    ("header no object", header(b"[1,2]"), ["header", "not a JSON object"]),
    ("header of spaces", header(b" " * 64), ["header", "not JSON"]),
    ("header no UTF-8", header(b'{"\xff":1}'), ["header", "UTF-8"]),
    ("header nests deeply", header(b'{"w":' + DEEP + b"}"), ["header: w", "nests more than 64 deep"]),
    ("metadata no object", lambda f: f.header.update(__metadata__=[]), ["__metadata__", "object"]),
    ("metadata of numbers", lambda f: f.header["__metadata__"].update(format=1), ["__metadata__", "format is 1"]),
    ("missing tensor", without(Q), ["missing tensors: " + Q]),
    ("missing tensors", without(Q, NORM), [Q, NORM]),
    ("extra tensor", lambda f: f.header.update(extra={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
     ["does not use: extra"]),
    ("bias without attention_bias", lambda f: f.header.update(
        {"model.layers.0.self_attn.q_proj.bias": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
     ["does not use: model.layers.0.self_attn.q_proj.bias"]),
    ("axes exchanged", tensor("model.layers.0.mlp.up_proj.weight", shape=[8, 4]), ["up_proj.weight is [8, 4], not [4, 8]"]),
    ("another rank", tensor(NORM, shape=[8, 1]), [NORM + " is [8, 1], not [8]"]),
    ("no shape", lambda f: f.header[NORM].pop("shape"), ["tensor " + NORM, "no dtype, shape and data_offsets"]),
    ("shape no list", tensor(NORM, shape=8), ["tensor " + NORM, "shape is not a list"]),
    ("shape of texts", tensor(NORM, shape=["8"]), ["tensor " + NORM, "an extent of the shape"]),
    ("shape of lists", tensor(NORM, shape=[[8]]), ["tensor " + NORM, "an extent of the shape"]),
    ("negative extent", tensor(NORM, shape=[-8]), ["tensor " + NORM, "is -8"]),
    ("fractional extent", tensor(NORM, shape=[8.5]), ["tensor " + NORM, "is 8.5"]),
    ("extent beyond 2^63", tensor(NORM, shape=[2**64 - 1]), ["tensor " + NORM, "a natural number"]),
    ("product of extents wraps", tensor(NORM, shape=[2**32, 2**32]), ["tensor " + NORM, "more than can be"]),
    ("product wraps to the right size", tensor(NORM, shape=[HUGE, 4, 8]), ["tensor " + NORM, "more than can be"]),
    ("17 axes", tensor(NORM, shape=[1] * 16 + [8]), ["tensor " + NORM, "at most 16"]),
    ("unknown dtype", tensor(NORM, dtype="F7"), [NORM + " has type F7"]),
    ("dtype of another size", tensor(NORM, dtype="F16"), ["tensor " + NORM, "cover 32 bytes", "16 bytes"]),
    ("dtype no text", tensor(NORM, dtype=32), ["tensor " + NORM, "dtype is not a string"]),
    ("dtype kvcc does not read", tensor(NORM, dtype="I32"), [NORM + " has type I32"]),
    ("offsets beyond the file", offsets(NORM, 1 << 40, (1 << 40) + 32), ["tensor " + NORM, "truncated: needs"]),
    ("offsets backwards", offsets(NORM, 64, 32), ["tensor " + NORM, "run backwards, from 64 to 32"]),
    ("offsets overlap", offsets(NORM, 16, 48), ["overlap those of"]),
    ("offsets wrap", offsets(NORM, 2**64 - 32, 0), ["tensor " + NORM, "a natural number"]),
    ("three offsets", tensor(NORM, data_offsets=[0, 32, 64]), ["tensor " + NORM, "not a pair"]),
    ("offsets negative", offsets(NORM, -32, 0), ["tensor " + NORM, "data_offsets is -32"]),
    ("a hole in the data", lambda f: (offsets(NORM, len(f.data), len(f.data) + 32)(f), setattr(f, "data", f.data + b"\0" * 32)),
     ["belong to no tensor"]),
    ("bytes after the data", lambda f: setattr(f, "data", f.data + b"\0" * 4), ["4 bytes", "belong to no tensor"]),
    ("a tensor twice", lambda f: header(b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                                        b'"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}')(f), ["header: w", "appears twice"]),
    ("offsets twice", header(b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,4]}}'),
     ["header: w.data_offsets", "appears twice"]),
]

INDEX = [
    ("no map", drop("weight_map"), ["no weight_map"]),
    ("map no object", put("weight_map", []), ["no weight_map"]),
    ("shard no text", put("weight_map", NORM, 1), ["the shard of " + NORM + " is not a string"]),
    ("F01 shard that is not there", put("weight_map", NORM, "model-3.safetensors"), ["1 of 3 shards missing: model-3.safetensors"]),
    ("shard outside the folder", put("weight_map", NORM, "../model-1.safetensors"), ["the name of a file beside the index"]),
    ("shard with an absolute path", put("weight_map", NORM, "/etc/passwd"), ["the name of a file beside the index"]),
    ("shard that is the folder", put("weight_map", NORM, "."), ["the name of a file beside the index"]),
    ("shard without a name", put("weight_map", NORM, ""), ["the name of a file beside the index"]),
    ("shard with a NUL", put("weight_map", NORM, "model-1.safetensors\0"), ["the name of a file beside the index"]),
    ("tensor in another shard", put("weight_map", NORM, "model-2.safetensors"), ["model-2.safetensors: no tensor " + NORM]),
    ("tensor of no shard", put("weight_map", "extra", "model-2.safetensors"), ["no tensor extra"]),
    ("shard that is no safetensors file", put("weight_map", NORM, "config.json"), ["config.json: claims a header"]),
] + JSON_FILES

ROPE = {"rope_type": "linear", "factor": 2.0}
CONFIG = [
    ("no architecture", drop("model_type"), ["no architecture is named", "llama"]),
    ("architecture no text", put("model_type", 1), ["model_type is 1", "a string"]),
    ("unknown architecture", put("model_type", "lama"), ["architecture lama", "llama"]),
    ("no hidden size", drop("hidden_size"), ["hidden_size is absent"]),
    ("null layers", put("num_hidden_layers", None), ["num_hidden_layers is absent"]),
    ("hidden size a text", put("hidden_size", "8"), ['hidden_size is "8"', "an integer"]),
    ("hidden size a fraction", put("hidden_size", 8.5), ["hidden_size is 8.5", "an integer"]),
    ("hidden size a list", put("hidden_size", [8]), ["hidden_size is [8]", "an integer"]),
    ("hidden size true", put("hidden_size", True), ["hidden_size is true", "an integer"]),
    ("no heads", put("num_attention_heads", 0), ["hidden_size 8 with 0 heads"]),
    ("negative layers", put("num_hidden_layers", -1), ["number of layers is -1"]),
    ("absurdly many layers", put("num_hidden_layers", 2**31), ["number of layers is 2147483648"]),
    ("layers beyond 2^63", put("num_hidden_layers", 2**64 - 1), ["num_hidden_layers is 18446744073709551615"]),
    ("layers beyond 2^64", replace(b'"num_hidden_layers": 2', b'"num_hidden_layers": 2' + b"0" * 30), ["num_hidden_layers"]),
    ("absurd vocabulary", put("vocab_size", HUGE), ["vocabulary is 4611686018427387904"]),
    ("product of sizes wraps", put("intermediate_size", 2**61), ["feed-forward size is"]),
    ("heads that do not divide", put("num_attention_heads", 3), ["hidden_size 8 with 3 heads"]),
    ("key heads that do not divide", put("num_key_value_heads", 3), ["2 query heads and 3 key/value heads"]),
    ("odd head dimension", put("head_dim", 5), ["head dimension is 5", "even"]),
    ("other vocabulary than the weights'", put("vocab_size", 201), ["embed_tokens.weight is [200, 8], not [201, 8]"]),
    ("more layers than the weights'", put("num_hidden_layers", 3), ["missing tensors: model.layers.2."]),
    ("fewer layers than the weights'", put("num_hidden_layers", 1), ["does not use: model.layers.1."]),
    ("epsilon negative", put("rms_norm_eps", -1e-5), ["norm epsilon"]),
    ("epsilon a text", put("rms_norm_eps", "1e-5"), ["rms_norm_eps", "a number"]),
    ("theta zero", put("rope_theta", 0), ["rope theta is 0"]),
    ("no positions", put("max_position_embeddings", 0), ["maximal position is 0"]),
    ("absurd positions", put("max_position_embeddings", HUGE), ["maximal position is"]),
    ("BOS beyond 2^31", put("bos_token_id", 2**40), ["bos token id is 1099511627776"]),
    ("BOS a text", put("bos_token_id", "<s>"), ["bos_token_id", "a token id"]),
    ("tied no boolean", put("tie_word_embeddings", "no"), ['tie_word_embeddings is "no"', "true or false"]),
    ("unknown activation", put("hidden_act", "gelu"), ["hidden_act is gelu", "silu"]),
    ("scaling no object", put("rope_scaling", 2.0), ["rope_scaling is 2.0", "an object"]),
    ("unknown scaling", put("rope_scaling", {**ROPE, "rope_type": "spiral"}), ["rope_scaling: rope type spiral"]),
    ("scaling per kind of layer", put("rope_parameters", {"full": ROPE}), ["parameters per kind of layer (full)"]),
    ("interleaved pairs", put("rope_interleaved", True), ["rope_interleaved is true"]),
    ("part of the head beyond 1", put("partial_rotary_factor", 1.5), ["partial_rotary_factor is 1.5"]),
    ("GPTQ groups of 2^63 - 1", put("quantization_config", {"quant_method": "gptq", "bits": 4, "group_size": 2**63}), ["group_size"]),
    ("FP8 blocks of 0", put("quantization_config", {"quant_method": "fp8", "weight_block_size": [0, 1]}), ["weight_block_size of 0"]),
    ("quantised weights", put("quantization_config", {"quant_method": "hqq"}), ['weights quantised by "hqq"']),
] + JSON_FILES

TOKENIZER = [
    ("no model", drop("model"), ["tokenizer model without a type"]),
    ("another model", put("model", "type", "WordPiece"), ["tokenizer model WordPiece", "BPE or Unigram"]),
    ("Unigram without its list", put("model", "type", "Unigram"), ["a Unigram model with ByteLevel"]),
    ("model type no text", put("model", "type", 1), ["type is not a string"]),
    ("no vocabulary", drop("model", "vocab"), ["without vocab and merges"]),
    ("vocabulary a list", put("model", "vocab", []), ["without vocab and merges"]),
    ("id a text", put("model", "vocab", "abc", "1"), ["the id of token abc"]),
    ("id a fraction", put("model", "vocab", "abc", 1.5), ["the id of token abc"]),
    ("id negative", put("model", "vocab", "abc", -1), ["the id of token abc"]),
    ("id beyond 2^63", put("model", "vocab", "abc", 2**64 - 1), ["the id of token abc"]),
    ("id of an absurd vocabulary", put("model", "vocab", "abc", (1 << 24) - 1), ["the id of token abc is 16777215", "few ids without token"]),
    ("token twice", replace(b'"ab": ', b'"abc": 7, "ab": '), ["model.vocab.abc", "appears twice"]),
    ("merges no list", put("model", "merges", {}), ["without vocab and merges"]),
    ("merge of one token", put("model", "merges", 1, "abc"), ['merge 1 "abc ', "two tokens of the vocabulary"]),
    ("merge of three", put("model", "merges", 0, ["a", "b", "c"]), ["merge 0", "two tokens of the vocabulary"]),
    ("merge of an unknown token", put("model", "merges", 1, "ab x?"), ['merge 1 "ab x?"', "two tokens of the vocabulary"]),
    ("merge that makes no token", put("model", "merges", 1, "b a"), ["merge 1", "makes no token of the vocabulary"]),
    ("byte fallback", put("model", "byte_fallback", True), ["byte_fallback"]),
    ("dropout", put("model", "dropout", 0.1), ["dropout"]),
    ("unknown token that is none", put("model", "unk_token", "<unk>"), ['unk_token "<unk>" is not in the vocabulary']),
    ("added tokens no list", put("added_tokens", {}), ["added_tokens is not a list"]),
    ("added token without id", drop("added_tokens", 0, "id"), ["the id of added token <end>"]),
    ("added token of absurd length", put("added_tokens", 0, "content", "x" * 5000), ["added token 199 of 5000 bytes", "at most 1024"]),
    ("added tokens of absurd size", put("added_tokens", [{"id": i, "content": f"{i:01000}"} for i in range(3000)]),
     ["at most 1024 bytes, and 2097152 in all"]),
    ("special no boolean", put("added_tokens", 0, "special", 1), ["special is not true or false"]),
    ("a normalizer", put("normalizer", {"type": "BertNormalizer"}), ["normalizer BertNormalizer", "NFKC"]),
    ("broken table of replacements", put("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}), ["precompiled_charsmap: 3 bytes"]),
    ("no pre-tokenizer", put("pre_tokenizer", None), ["a pre_tokenizer without ByteLevel"]),
    ("F12 unknown pre-tokenizer", put("pre_tokenizer", "type", "Nonsense"), ["pre_tokenizer Nonsense", "ByteLevel"]),
    ("sequence in a sequence", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": []}]}),
     ["not a list of plain steps"]),
    ("absurdly many steps", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 100_000}),
     ["at most 64 of them"]),
    ("pattern that does not compile", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(a"}}, {"type": "ByteLevel"}]}),
     ["splitting pattern (a"]),
    ("pattern that matches nothing", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "a*"}}, {"type": "ByteLevel"}]}), ["matches nothing at all"]),
    ("pattern that cuts characters", put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": r"\C"}}, {"type": "ByteLevel"}]}), [r"splitting pattern \C"]),
    ("split without a pattern", put("pre_tokenizer", {"type": "Split", "behavior": "Isolated"}), ["Split without a pattern"]),
    ("unknown post-processor", put("post_processor", {"type": "Nonsense"}), ["post_processor Nonsense"]),
    ("post-processors no list", put("post_processor", {"type": "Sequence", "processors": 1}), ["without a list of processors"]),
    ("BOS without an id", put("post_processor", {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}),
     ['begins with "<s>", which has no id']),
] + JSON_FILES


def gguf_tensor(name, at, value):
    def edit(file):
        file.tensor(name)[at] = value
    return edit


def array(key, kind, count, data=b""):
    """An array that claims `count` elements."""
    return lambda f: f.set(key, ARRAY, struct.pack("<IQ", kind, count) + data)


GQ = "blk.1.attn_q.weight"
GGUF = [
    ("empty", lambda f: b"", ["truncated in the magic number"]),
    ("bad magic", lambda f: setattr(f, "magic", b"GGML"), ["not a GGUF file"]),
    ("future version", lambda f: setattr(f, "version", 4), ["GGUF version 4", "version 2 or 3"]),
    ("version 1", lambda f: setattr(f, "version", 1), ["GGUF version 1"]),
    ("big-endian", lambda f: setattr(f, "version", 3 << 24), ["big-endian"]),
    ("2^64 - 1 tensors", lambda f: setattr(f, "tensor_count", 2**64 - 1), ["truncated: claims 18446744073709551615 tensors"]),
    ("2^61 metadata entries", lambda f: setattr(f, "value_count", 2**61), ["truncated: claims 2305843009213693952 metadata"]),
    ("one tensor too many", lambda f: setattr(f, "tensor_count", len(f.tensors) + 1), [""]),
    ("a key twice", lambda f: f.values.append(["general.alignment", U32, 32]), ["general.alignment appears twice"]),
    ("a key of 2^60 bytes", lambda f: f.values.insert(0, ["x", STRING, struct.pack("<Q", 2**60)]), ["truncated in metadata x"]),
    ("unknown value type", lambda f: f.set("general.alignment", 13, b""), ["general.alignment has value type 13"]),
    ("value type 2^32 - 1", lambda f: f.set("general.alignment", 2**32 - 1, b""), ["general.alignment has value type 4294967295"]),
    ("array of an unknown type", array("tokenizer.ggml.tokens", 99, 0), ["tokens is an array of value type 99"]),
    ("array of 2^60 texts", array("tokenizer.ggml.tokens", STRING, 2**60), ["truncated: claims 1152921504606846976 elements of"]),
    ("arrays in arrays without end", lambda f: f.set("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", ARRAY, 1) * 100_000),
     ["nests arrays more than 4 deep"]),
    ("boolean of 2", lambda f: f.values.append(["tokenizer.ggml.add_bos_token", BOOL, 2]), ["add_bos_token is 2", "0 or 1"]),
    ("alignment 0", lambda f: f.set("general.alignment", U32, 0), ["general.alignment is 0", "a power of two"]),
    ("alignment 48", lambda f: f.set("general.alignment", U32, 48), ["general.alignment is 48"]),
    ("alignment 2^31", lambda f: f.set("general.alignment", U32, 2**31), ["general.alignment is 2147483648"]),
    ("alignment a text", lambda f: f.set("general.alignment", STRING, "32"), ["general.alignment has another type"]),
    ("no architecture", lambda f: f.drop("general.architecture"), ["no architecture is named"]),
    ("unknown architecture", lambda f: f.set("general.architecture", STRING, "gpt9"), ["architecture gpt9", "llama"]),
    ("architecture a number", lambda f: f.set("general.architecture", U32, 1), ["general.architecture has another type"]),
    ("no layers", lambda f: f.drop("llama.block_count"), ["llama.block_count is absent"]),
    ("layers a text", lambda f: f.set("llama.block_count", STRING, "2"), ["llama.block_count has another type"]),
    ("layers negative", lambda f: f.set("llama.block_count", I32, -2), ["number of layers is -2"]),
    ("layers beyond 2^63", lambda f: f.set("llama.block_count", U64, 2**64 - 1), ["llama.block_count is 18446744073709551615"]),
    ("absurdly many layers", lambda f: f.set("llama.block_count", U64, 2**40), ["number of layers is 1099511627776"]),
    ("absurd embedding", lambda f: (f.set("llama.embedding_length", I64, HUGE), f.values.append(["llama.attention.key_length", U32, 4])),
     ["hidden size is 4611686018427387904"]),
    ("epsilon NaN", lambda f: f.set("llama.attention.layer_norm_rms_epsilon", F32, float("nan")), ["norm epsilon is"]),
    ("theta infinite", lambda f: f.values.append(["llama.rope.freq_base", F64, float("inf")]), ["rope theta is inf"]),
    ("theta negative", lambda f: f.values.append(["llama.rope.freq_base", F32, -1.0]), ["rope theta is -1"]),
    ("rotary dimension odd", lambda f: f.values.append(["llama.rope.dimension_count", U32, 3]), ["rotary dimension is 3"]),
    ("no positions", lambda f: f.set("llama.context_length", U32, 0), ["maximal position is 0"]),
    ("key heads that do not divide", lambda f: f.set("llama.attention.head_count_kv", U32, 3), ["2 query heads and 3 key/value heads"]),
    ("experts without their number", lambda f: f.values.append(["llama.expert_count", U32, 8]), ["num_experts_per_tok is absent"]),
    ("missing tensor", lambda f: f.tensors.remove(f.tensor(GQ)), ["missing tensors: " + GQ]),
    ("extra tensor", lambda f: f.tensor(GQ).__setitem__(0, "blk.1.attn_x.weight"), ["missing tensors: " + GQ, "does not use: blk.1.attn_x.weight"]),
    ("a tensor twice", gguf_tensor("blk.0.attn_q.weight", 0, GQ), ["tensor " + GQ, "its name appears twice"]),
    ("a name of 2^60 bytes", lambda f: f.bytes().replace(struct.pack("<Q", len(GQ)) + GQ.encode(), struct.pack("<Q", 2**60) + GQ.encode()),
     ["the name of tensor", "claims 1152921504606846976 bytes"]),
    ("axes exchanged", gguf_tensor("blk.0.ffn_up.weight", 1, [4, 8]), ["blk.0.ffn_up.weight is [8, 4], not [4, 8]"]),
    ("5 axes", gguf_tensor(GQ, 1, [8, 8, 1, 1, 1]), ["tensor " + GQ, "5 dimensions", "at most 4"]),
    ("2^32 - 1 axes", lambda f: f.bytes().replace(GQ.encode() + struct.pack("<I", 2), GQ.encode() + struct.pack("<I", 2**32 - 1)),
     ["tensor " + GQ, "4294967295 dimensions"]),
    ("extent 0", gguf_tensor(GQ, 1, [8, 0]), ["tensor " + GQ, "a dimension of 0"]),
    ("extent 2^63", gguf_tensor(GQ, 1, [8, 2**63]), ["tensor " + GQ, "a dimension of 9223372036854775808"]),
    ("product of extents wraps", gguf_tensor(GQ, 1, [2**32, 2**32]), ["tensor " + GQ, "overflows"]),
    ("product wraps to the right size", gguf_tensor(GQ, 1, [8, 2**61 + 1, 8]), ["tensor " + GQ, "overflows"]),
    ("half a block", lambda f: (gguf_tensor(GQ, 2, 2)(f)), ["tensor " + GQ, "rows of 8 values in Q4_0", "a multiple of 32"]),
    ("type that kvcc does not read", gguf_tensor(GQ, 2, 15), ["tensor " + GQ, "weight type Q8_K", "one of F32"]),
    ("unknown type", gguf_tensor(GQ, 2, 4000), ["tensor " + GQ, "weight type number 4000"]),
    ("F15 offset 2^40", gguf_tensor(GQ, 3, 2**40), ["tensor " + GQ, "truncated: needs 256 bytes at offset 1099511627776"]),
    ("offset that wraps", gguf_tensor(GQ, 3, 2**64 - 32), ["tensor " + GQ, "truncated: needs 256 bytes"]),
    ("offset not aligned", gguf_tensor(GQ, 3, 1), ["tensor " + GQ, "offset 1", "a multiple of 32"]),
    ("tensors overlap", gguf_tensor(GQ, 3, 0), ["its bytes overlap those of"]),
    ("data cut short", lambda f: f.bytes()[:-1], ["truncated: needs"]),
    ("no data", lambda f: f.bytes()[:f.boundaries[-1] + 8], ["truncated: needs"]),
    ("no tokens", lambda f: f.drop("tokenizer.ggml.tokens"), ["no tokenizer.ggml.tokens"]),
    ("tokens no texts", lambda f: f.set("tokenizer.ggml.tokens", ARRAY, (I32, [1, 2])), ["tokenizer.ggml.tokens has another type"]),
    ("tokens no array", lambda f: f.set("tokenizer.ggml.tokens", STRING, "a"), ["tokenizer.ggml.tokens has another type"]),
    ("fewer token types than tokens", lambda f: f.set("tokenizer.ggml.token_type", ARRAY, (I32, [1] * 5)), ["5 token types", "200"]),
    ("another tokenizer", lambda f: f.set("tokenizer.ggml.model", STRING, "bert"), ['tokenizer.ggml.model "bert"', "gpt2"]),
    ("SentencePiece without scores", lambda f: f.set("tokenizer.ggml.model", STRING, "llama"), ["0 token scores", "200, one a token"]),
    ("F12 unknown pre-tokenizer", lambda f: f.set("tokenizer.ggml.pre", STRING, "nonsense"), ['tokenizer.ggml.pre "nonsense"', "smollm"]),
    ("merge of an unknown token", lambda f: f.set("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "x? y"])), ['merge 1 "x? y"']),
    ("merge without a blank", lambda f: f.set("tokenizer.ggml.merges", ARRAY, (STRING, ["ab"])), ['merge 0 "ab"']),
    ("BOS that is none", lambda f: f.values.extend([["tokenizer.ggml.add_bos_token", U8, 1]]), ["add_bos_token has another type"]),
    ("BOS beyond the vocabulary", lambda f: f.values.extend([["tokenizer.ggml.add_bos_token", BOOL, 1], ["tokenizer.ggml.bos_token_id", U32, 200]]),
     ["a BOS token is wanted, and tokenizer.ggml.bos_token_id is 200"]),
    ("rope factors of another number", lambda f: (f.tensors.append(["rope_freqs.weight", [3], 0, f.size]), setattr(f, "size", f.size + 32)),
     ["tensor rope_freqs.weight", "one factor per rotary pair"]),
]

SETTINGS = "settings"
MANIFEST = [
    ("no version", drop("schema_version"), ["'schema_version' is missing"]),
    ("F55 future version", put("schema_version", 4), ["activations format 4, this build reads up to 3"]),
    ("version 2^40", put("schema_version", 2**40), ["activations format 1099511627776"]),
    ("version 0", put("schema_version", 0), ["'schema_version' is 0"]),
    ("version a text", put("schema_version", "1"), ["'schema_version' is \"1\"", "a whole number"]),
    ("version a fraction", put("schema_version", 1.5), ["'schema_version' is 1.5", "a whole number"]),
    ("another format", put("format", "gguf"), ["format is 'gguf'"]),
    ("complete no boolean", put("complete", 1), ["'complete' is 1", "true or false"]),
    ("no settings", drop(SETTINGS), ["'settings' is missing"]),
    ("settings a list", put(SETTINGS, []), ["settings", "an object with a member 'model'"]),
    ("no model", drop(SETTINGS, "model"), ["settings: 'model' is missing"]),
    ("no layers", put(SETTINGS, "model", "layers", 0), ["settings: model", "'layers' is 0"]),
    ("layers beyond 2^31", put(SETTINGS, "model", "layers", 2**32 + 3), ["settings: model", "'layers' is 4294967299", "in range"]),
    ("negative heads", put(SETTINGS, "model", "kv_heads", -2), ["settings: model", "'kv_heads' is -2"]),
    ("heads that do not divide", put(SETTINGS, "model", "query_heads", 5), ["'query_heads' is 5", "a multiple of the 2 kv_heads"]),
    ("absurd head dimension", put(SETTINGS, "model", "head_dim", 2**30), ["'head_dim' is 1073741824"]),
    ("theta a text", put(SETTINGS, "model", "rope", "theta", "1e5"), ["model rope", "'theta' is \"1e5\"", "a number"]),
    ("theta 0", put(SETTINGS, "model", "rope", "theta", 0), ["rope.theta' is 0", "a finite number above 0"]),
    ("unknown scaling", put(SETTINGS, "model", "rope", "scaling", "spiral"), ["'rope.scaling': is 'spiral'"]),
    ("scaling no JSON", put(SETTINGS, "model", "rope", "scaling_json", "{"), ["'rope.scaling_json': not JSON"]),
    ("scaling a list", put(SETTINGS, "model", "rope", "scaling_json", "[1]"), ["'rope.scaling_json': not a JSON object"]),
    ("decoder a list", put(SETTINGS, "decoder", [1]), ["'decoder' is [1]", "an object"]),
    ("unknown rope", put(SETTINGS, "model", "rope", "kind", "spiral"), ["rope.kind", "half-split or interleaved"]),
    ("rotary dimension beyond the head", put(SETTINGS, "model", "rope", "rotary_dim", 10), ["rope.rotary_dim' is 10"]),
    ("window layer beyond the last", put(SETTINGS, "model", "sliding_window_layers", [1, 3]), ["'sliding_window_layers' has 3"]),
    ("window layer a fraction", put(SETTINGS, "model", "sliding_window_layers", [1.5]), ["'sliding_window_layers' is 1.5"]),
    ("no samples", put(SETTINGS, "samples", 0), ["0 samples"]),
    ("absurdly many samples", put(SETTINGS, "samples", 10**9), ["1000000000 samples"]),
    ("more samples than offsets", put(SETTINGS, "samples", 3), ["offsets has 2 entries", "3, one a sample"]),
    ("absurdly many shards", lambda d: d[SETTINGS].update(samples=999_999, offsets=[0] * 999_999, sample_sha256=[""] * 999_999),
     ["999999 samples of 3 layers", "at most 1048576 shards"]),
    ("sequence of 2^40 tokens", put(SETTINGS, "seqlen", 2**40), ["samples of 1099511627776 tokens"]),
    ("negative sequence", put(SETTINGS, "seqlen", -5), ["samples of -5 tokens"]),
    ("offsets of fractions", put(SETTINGS, "offsets", [7.5, 8]), ["'offsets' is 7.5", "a whole number"]),
    ("offsets of texts", put(SETTINGS, "offsets", ["7", "8"]), ["'offsets' is \"7\""]),
    ("unknown stored type", put(SETTINGS, "acts_dtype", "f8"), ["acts_dtype is 'f8'", "f32 or bf16"]),
    ("layers not ascending", put(SETTINGS, "layer_index", [0, 2, 1]), ["layer_index is not ascending"]),
    ("a layer twice", put(SETTINGS, "layer_index", [0, 1, 1]), ["layer_index is not ascending"]),
    ("a layer too many", put(SETTINGS, "layer_index", [0, 1, 2, 3]), ["layer_index has 4 entries", "3"]),
    ("layer 2^40", put(SETTINGS, "layer_index", [0, 1, 2**40]), ["'layer_index' is 1099511627776", "in range"]),
    ("no shards", drop("shards"), ["'shards' is missing"]),
    ("shards a list", put("shards", []), ["'shards' is []", "an object"]),
    ("missing shard", drop("shards", "s0001/l0001.h5"), ["s0001/l0001.h5: not listed"]),
    ("extra shard", put("shards", "s0002/l0000.h5", {"bytes": 1, "sha256": "0" * 64}), ["shard 's0002/l0000.h5' is not of these settings"]),
    ("F50 shard of another spelling", put("shards", "s1/l1.h5", {"bytes": 1, "sha256": "0" * 64}), ["shard 's1/l1.h5' is not of these settings"]),
    ("shard outside the folder", put("shards", "../x.h5", {"bytes": 1, "sha256": "0" * 64}), ["shard '../x.h5' is not of these settings"]),
    ("shard without size", drop("shards", "s0000/l0000.h5", "bytes"), ["s0000/l0000.h5", "'bytes' is missing"]),
    ("negative size", put("shards", "s0000/l0000.h5", "bytes", -1), ["s0000/l0000.h5", "'bytes' is -1"]),
    ("another size", put("shards", "s0000/l0000.h5", "bytes", 10**15), ["s0000/l0000.h5: truncated or changed: needs 1000000000000000"]),
    ("another checksum", put("shards", "s0000/l0000.h5", "sha256", "0" * 64), ["s0000/l0000.h5: its sha256 is not the manifest's"]),
    ("checksum of another form", put("shards", "s0000/l0000.h5", "sha256", "abc"), ["s0000/l0000.h5", "'sha256' is 'abc'", "64 lower-case"]),
    ("a shard twice", replace(b'"s0000/l0001.h5"', b'"s0000/l0000.h5"'), ["shards.s0000/l0000.h5", "appears twice"]),
    ("left out a sample that is none", put("left_out", [{"sample": 2, "reason": ""}]), ["left out sample 2", "0 to 1"]),
    ("sources without numbers", put(SETTINGS, "sources", [{"text_name": "", "text_sha256": "", "text_flavour": "", "seed": 1}]),
     ["'sample_source' is missing"]),
    ("not complete", put("complete", False), ["not complete"]),
] + JSON_FILES

KERNELS = [
    ("no version", drop("schema_version"), ["'schema_version' is missing"]),
    ("F55 future version", put("schema_version", 2), ["kernels format 2, this build reads up to 1"]),
    ("version 0", put("schema_version", 0), ["'schema_version' is 0"]),
    ("version a text", put("schema_version", "1"), ["'schema_version' is \"1\""]),
    ("unknown layout", put("layout", "mma-9"), ["'layout' is \"mma-9\"", "linear-1, mma-1 or vector-1"]),
    ("no files", drop("files"), ["'files' is missing"]),
    ("files a list", put("files", []), ["'files' is []", "an object"]),
    ("file outside the folder", put("files", "../x", "0" * 64), ["files", "file '../x'", "inside the folder"]),
    ("file with an absolute path", put("files", "/etc/passwd", "0" * 64), ["files", "file '/etc/passwd'", "inside the folder"]),
    ("file without a name", put("files", "", "0" * 64), ["files", "inside the folder"]),
    ("checksum of another form", put("files", "x.cu", "abc"), ["the sha256 of x.cu is 'abc'"]),
    ("file that is not there", put("files", "x.cu", "0" * 64), ["x.cu: missing"]),
    ("another checksum", lambda d: d["files"].update({next(iter(d["files"])): "0" * 64}), ["its sha256 is not the manifest's"]),
    ("kernels an object", put("kernels", {}), ["'kernels' is {}", "a list"]),
    ("kernel a number", put("kernels", 0, 1), ["an object with a member 'name'"]),
    ("kernel without symbol", drop("kernels", 0, "symbol"), ["'symbol' is missing"]),
    ("kernel twice", lambda d: d["kernels"].append(d["kernels"][0]), ["listed twice"]),
    ("file that is not listed", put("kernels", 0, "source", "y.cu"), ["file y.cu is not listed"]),
    ("source outside the folder", put("kernels", 0, "source", "a/../../y.cu"), ["file 'a/../../y.cu'", "inside the folder"]),
    ("negative registers", put("kernels", 0, "registers", -1), ["'registers' is -1"]),
    ("registers beyond 2^31", put("kernels", 0, "registers", 2**31), ["'registers' is 2147483648", "in range"]),
    ("spills a fraction", put("kernels", 0, "spill_bytes", 0.5), ["'spill_bytes' is 0.5"]),
    ("spills", put("kernels", 0, "spill_bytes", 8), ["spills 8 bytes"]),
    ("block of two", put("kernels", 0, "launch", "block", [1, 1]), ["'block' is [1,1]"]),
    ("block of fractions", put("kernels", 0, "launch", "block", [1.5, 1, 1]), ["'block' is 1.5"]),
    ("negative block", put("kernels", 0, "launch", "block", [-1, 1, 1]), ["'block' has -1"]),
    ("no launch", drop("kernels", 0, "launch"), ["'launch' is missing"]),
    ("arguments of texts", put("kernels", 0, "arguments", ["x"]), ["arguments", "an object with a member 'name'"]),
    ("spec a text", put("kernels", 0, "spec", "x"), ["'spec' is \"x\"", "an object"]),
    ("pages a text", put("pages", "key", "x"), ["pages of key", "an object with a member 'function'"]),
    ("words beyond 2^31", put("pages", "key", "code_words", [2**40]), ["pages of key", "'code_words' is 1099511627776"]),
] + JSON_FILES
