#include <unordered_map>

#include "calib/text/bpe_spec.h"

namespace kvcc {
namespace {

// Token types of GGUF.
constexpr int32_t kControl = 3, kUserDefined = 4;

struct PreTokenizer {
  const char* names;  ///< values of tokenizer.ggml.pre, each between blanks
  std::vector<const char*> patterns;
  bool ignore_merges, adds_bos;
};

constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The patterns are those that the models' own tokenizer.json publish; names share a row where the patterns are the
// same.
const PreTokenizer kPreTokenizers[] = {
    {" smollm starcoder refact command-r ", {kDigit, kByteLevelPattern}, false, false},
    {" gpt-2 phi-2 ", {kByteLevelPattern}, false, false},
    {" llama-bpe llama3 llama-v3 ", {kLlama3}, true, true},
    {" qwen2 deepseek-r1-qwen ", {kQwen2}, false, false},
};

const PreTokenizer& find_pre_tokenizer(const TokenizerSource& source) {
  std::string known;
  for (const PreTokenizer& row : kPreTokenizers) {
    const std::string names = row.names;
    if (!source.gguf_pre.empty() && source.gguf_pre.find(' ') == std::string::npos &&
        names.find(" " + source.gguf_pre + " ") != std::string::npos) {
      return row;
    }
    for (size_t at = 1; at < names.size();) {
      const size_t end = names.find(' ', at);
      known += (known.empty() ? "" : ", ") + names.substr(at, end - at);
      at = end + 1;
    }
  }
  throw tokenizer_error(source.place,
                        source.gguf_pre.empty() ? "no tokenizer.ggml.pre, so the splitting of words is not known"
                                                : "tokenizer.ggml.pre \"" + source.gguf_pre + "\"",
                        "one of " + known);
}

}  // namespace

BpeSpec spec_from_gguf(const TokenizerSource& source) {
  if (source.gguf_model != "gpt2") {
    throw tokenizer_error(source.place, "tokenizer.ggml.model \"" + source.gguf_model + "\"", "gpt2 (byte-level BPE)");
  }
  const PreTokenizer& pre = find_pre_tokenizer(source);
  BpeSpec spec;
  spec.place = source.place;
  for (const char* pattern : pre.patterns) spec.stages.push_back({pattern, true, true, false});
  spec.ignore_merges = pre.ignore_merges;
  spec.bos_id = source.bos_id;
  spec.adds_bos = source.gguf_add_bos < 0 ? pre.adds_bos : source.gguf_add_bos == 1;
  const std::vector<std::string>& tokens = source.gguf_tokens;
  if (tokens.empty()) throw tokenizer_error(source.place, "no tokenizer.ggml.tokens");
  if (!source.gguf_token_types.empty() && source.gguf_token_types.size() != tokens.size()) {
    throw tokenizer_error(source.place, std::to_string(source.gguf_token_types.size()) + " token types",
                          std::to_string(tokens.size()) + ", one a token");
  }
  if (spec.adds_bos && (spec.bos_id < 0 || static_cast<size_t>(spec.bos_id) >= tokens.size())) {
    throw tokenizer_error(source.place,
                          "a BOS token is wanted, and tokenizer.ggml.bos_token_id is " + std::to_string(spec.bos_id));
  }
  std::unordered_map<std::string_view, int32_t> ids;
  spec.tokens.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    ids.emplace(tokens[i], id);
    const int32_t type = source.gguf_token_types.empty() ? 1 : source.gguf_token_types[i];
    if (type == kControl || type == kUserDefined) {
      spec.added.push_back({tokens[i], id, type == kControl, false, false, false, false});
    }
    if (!bytes_of_alphabet(tokens[i], spec.tokens[i])) spec.tokens[i].clear();
  }
  for (size_t rank = 0; rank < source.gguf_merges.size(); ++rank) {
    const std::string& merge = source.gguf_merges[rank];
    const size_t blank = merge.find(' ', 1);  // a token may begin with a blank's stand-in, never with a blank
    const auto left = ids.find(std::string_view(merge).substr(0, std::min(blank, merge.size())));
    const auto right = blank == std::string::npos ? ids.end() : ids.find(std::string_view(merge).substr(blank + 1));
    if (left == ids.end() || right == ids.end()) {
      throw tokenizer_error(source.place, "merge " + std::to_string(rank) + " \"" + merge + "\"",
                            "two tokens of the vocabulary");
    }
    spec.merges.emplace_back(left->second, right->second);
  }
  return spec;
}

}  // namespace kvcc
