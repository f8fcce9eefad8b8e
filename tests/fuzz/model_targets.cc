// Files of models: safetensors and their index, GGUF, config.json, tokenizer.json and tokenizer.model; ids and texts
// that are encoded.
#include <stdexcept>

#include "calib/text/corpus.h"
#include "calib/text/jinja/template.h"
#include "calib/text/tokenizer.h"
#include "formats/core/json.h"
#include "formats/weights/config.h"
#include "formats/weights/model_files.h"
#include "formats/weights/safetensors_file.h"
#include "tests/fuzz/targets.h"

namespace kvcc::fuzz {
namespace {

constexpr const char* kTinyConfig =
    R"({"model_type":"llama","hidden_size":4,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":2,)"
    R"("vocab_size":2,"tie_word_embeddings":true})";

/// A safetensors file with the tensors of kTinyConfig, all zero.
std::string tiny_weights() {
  std::string header = "{";
  size_t at = 0;
  const auto add = [&](const std::string& name, const std::string& shape, size_t elements) {
    header += (at == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[)" +
              std::to_string(at) + "," + std::to_string(at + 4 * elements) + "]}";
    at += 4 * elements;
  };
  add("model.embed_tokens.weight", "[2,4]", 8);
  add("model.norm.weight", "[4]", 4);
  const std::string layer = "model.layers.0.";
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(layer + name + ".weight", "[4]", 4);
  for (const char* name : {"q", "k", "v", "o"}) add(layer + "self_attn." + name + "_proj.weight", "[4,4]", 16);
  for (const char* name : {"gate", "up"}) add(layer + "mlp." + name + "_proj.weight", "[2,4]", 8);
  add(layer + "mlp.down_proj.weight", "[4,2]", 8);
  header += "}";
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(at, '\0');
}

void read_all(const ModelFiles& files) {
  constexpr int64_t kMost = 1 << 20;
  for (const TensorInfo& tensor : files.tensors->tensors()) {
    if (tensor.elements() > kMost) continue;
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    files.tensors->read(tensor.name, values);
  }
}

/// Ids of a text are known to the tokenizer; with a token for each byte they are the text again.
void encode(const Tokenizer& tokenizer, std::string_view text, bool lossless) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids);
  if (lossless && back != text) throw std::logic_error("decoding gives another text");
}

/// All 256 bytes and some merges, as GGUF's metadata has them.
TokenizerSource byte_source(const char* pre) {
  TokenizerSource source;
  source.place = "tokenizer";
  source.gguf_model = "gpt2";
  source.gguf_pre = pre;
  source.gguf_add_bos = 0;
  int moved = 0;
  for (int byte = 0; byte < 256; ++byte) {  // GPT-2's alphabet
    const bool shown = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int code = shown ? byte : 256 + moved++;
    source.gguf_tokens.push_back(
        code < 0x80 ? std::string(1, static_cast<char>(code))
                    : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))});
  }
  for (const char* pair : {"t h", "th e", "a a", "aa aa", "aaaa aaaa", "1 2"}) {
    source.gguf_merges.emplace_back(pair);
    std::string merged(pair);
    source.gguf_tokens.push_back(merged.erase(merged.find(' '), 1));
  }
  source.gguf_token_types.assign(source.gguf_tokens.size(), 1);
  for (const char* mark : {"<|im_start|>", "<|im_end|>", "<|"}) {
    source.gguf_tokens.emplace_back(mark);
    source.gguf_token_types.push_back(3);
  }
  return source;
}

}  // namespace
}  // namespace kvcc::fuzz

using namespace kvcc;
using namespace kvcc::fuzz;

KVCC_FUZZ(safetensors) {
  const SafetensorsFile file("fuzz.safetensors", std::as_bytes(std::span(input)));
  unsigned sum = 0;
  for (const SafeTensor& tensor : file.tensors()) {
    for (const std::byte b : tensor.bytes) sum += static_cast<unsigned>(b);
  }
  if (sum == 1) put_file("sum", "1");  // so that the bytes are read
}

KVCC_FUZZ(gguf) {
  const ModelFiles files = open_model(put_file("model.gguf", input));
  read_all(files);
  encode(*make_tokenizer(files.tokenizer), "the <|x|> 12\xff", false);
}

KVCC_FUZZ(config_json) { decoder_json(config_from_json(put_file("config.json", input))); }

KVCC_FUZZ(index_json) {
  static const std::string config = put_file("indexed/config.json", kTinyConfig);
  static const std::string weights = put_file("indexed/a.safetensors", tiny_weights());
  put_file("indexed/model.safetensors.index.json", input);
  read_all(open_model(scratch_folder() + "/indexed"));
}

/// The first line is a quantization_config, the rest a safetensors file of such weights.
KVCC_FUZZ(packed_weights) {
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string config =
      R"({"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":8,)"
      R"("vocab_size":2,"tie_word_embeddings":true,"quantization_config":)";
  put_file("packed/config.json", config + std::string(input.substr(0, line)) + "}");
  put_file("packed/model.safetensors", input.substr(std::min(line + 1, input.size())));
  read_all(open_model(scratch_folder() + "/packed"));
}

KVCC_FUZZ(tokenizer_json) {
  TokenizerSource source;
  source.json_path = source.place = put_file("tokenizer.json", input);
  const auto tokenizer = make_tokenizer(source);
  encode(*tokenizer, "the <|x|>  12\n\xff \xd0\xb9 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", false);
  tokenizer->sha256();
}

/// SentencePiece's own format.
KVCC_FUZZ(tokenizer_model) {
  TokenizerSource source;
  source.sentencepiece_path = source.place = put_file("tokenizer.model", input);
  const auto tokenizer = make_tokenizer(source);
  encode(*tokenizer, "the <|x|>  12\n\xff \xd0\xb9 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", false);
  tokenizer->sha256();
}

KVCC_FUZZ(npy) { read_npy_ids(put_file("ids.npy", input)); }

/// The first line is a splitting pattern, the rest is text.
KVCC_FUZZ(pattern) {
  const size_t line = std::min(input.find('\n'), input.size());
  nlohmann::json split{{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", input.substr(0, line)}}}};
  nlohmann::json bytes{{"type", "ByteLevel"}, {"use_regex", false}, {"add_prefix_space", false}};
  nlohmann::json document{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", {}}}},
                          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}}};
  document["model"]["merges"] = nlohmann::json::array();
  const std::string text = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  TokenizerSource source;
  source.json_path = source.place = put_file("pattern.json", text);
  encode(*make_tokenizer(source), input.substr(std::min(line + 1, input.size())), false);
}

/// Texts under each of the patterns that kvcc knows.
KVCC_FUZZ(text) {
  static const std::vector<std::unique_ptr<Tokenizer>> tokenizers = [] {
    std::vector<std::unique_ptr<Tokenizer>> all;
    for (const char* pre : {"smollm", "gpt-2", "llama3", "qwen2"}) all.push_back(make_tokenizer(byte_source(pre)));
    return all;
  }();
  for (const auto& tokenizer : tokenizers) encode(*tokenizer, input, true);
}

KVCC_FUZZ(chat_template) {
  const auto messages = nlohmann::ordered_json::parse(
      R"([{"role":"system","content":" Be brief. "},{"role":"user","content":"Grüße?"},{"role":"assistant","content":""}])");
  const jinja::Template made(std::string(input), "template");
  made.render({{"messages", messages}, {"tools", nullptr}, {"bos_token", "<s>"}, {"add_generation_prompt", false}});
}

KVCC_FUZZ(json_lines) {
  DocumentsRequest request;
  request.path = put_file("lines.jsonl", input);
  request.chat = [](const nlohmann::ordered_json& messages, const nlohmann::ordered_json&) { return messages.dump(); };
  Sha256 hash;
  for (const std::string& text : read_documents(request, hash).texts) {
    if (text.empty()) throw std::logic_error("a document without text");
  }
}
