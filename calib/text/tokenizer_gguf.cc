// The tokenizer in a GGUF file's metadata: byte-level BPE ("gpt2"), SentencePiece's BPE ("llama") and Unigram ("t5").
#include <unordered_map>

#include "calib/text/gguf_pre_tokenizers.h"
#include "calib/text/sentencepiece_proto.h"
#include "calib/text/tokenizer_spec.h"

namespace kvcc {
namespace {

// A list with one entry a token; some may be absent.
void check_length(const TokenizerSource& source, const char* of, size_t found, bool needed) {
  if (found == source.gguf_tokens.size() || (found == 0 && !needed)) return;
  throw tokenizer_error(source.place, std::to_string(found) + " token " + of,
                        std::to_string(source.gguf_tokens.size()) + ", one a token");
}

int32_t type_of(const TokenizerSource& source, size_t id) {
  return source.gguf_token_types.empty() ? static_cast<int32_t>(PieceType::normal) : source.gguf_token_types[id];
}

void add_bpe(const TokenizerSource& source, const GgufPreTokenizer& pre, TokenizerSpec& spec) {
  const std::vector<std::string>& tokens = source.gguf_tokens;
  for (const char* pattern : pre.patterns) spec.stages.push_back({.pattern = pattern});
  spec.byte_level = true;
  spec.ignore_merges = pre.ignore_merges;
  std::unordered_map<std::string_view, int32_t> ids;
  spec.tokens.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    ids.emplace(tokens[i], id);
    const int32_t type = type_of(source, i);
    const bool control = type == static_cast<int32_t>(PieceType::control);
    if (control || type == static_cast<int32_t>(PieceType::user_defined)) {
      spec.added.push_back({.content = tokens[i], .id = id, .special = control});
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
}

void add_sentencepiece(const TokenizerSource& source, TokenizerSpec& spec) {
  check_length(source, "scores", source.gguf_scores.size(), true);
  check_length(source, "types", source.gguf_token_types.size(), true);
  SentencePieceModel model;
  model.unigram = source.gguf_model == "t5";
  model.charsmap = source.gguf_charsmap;
  model.space_before = source.gguf_space_prefix != 0;
  model.removes_spaces = source.gguf_removes_spaces > 0;
  for (size_t i = 0; i < source.gguf_tokens.size(); ++i) {
    const auto type = static_cast<PieceType>(type_of(source, i));
    SentencePieceModel::Piece piece{source.gguf_tokens[i], static_cast<float>(source.gguf_scores[i]), type};
    if (type < PieceType::normal || type > PieceType::byte) {
      throw tokenizer_error(source.place, "token type " + std::to_string(type_of(source, i)), "1 to 6");
    }
    if (piece.text.empty()) {  // never met in a text; the library wants a name
      piece.text = "[EMPTY_" + std::to_string(i) + "]";
      piece.type = PieceType::unused;
    }
    // llama.cpp writes the marks of these as the spaces that they stand for.
    for (size_t at = 0; type == PieceType::user_defined && (at = piece.text.find(' ', at)) != std::string::npos;) {
      piece.text.replace(at, 1, kSpaceMark);
    }
    model.pieces.push_back(std::move(piece));
  }
  set_sentencepiece(serialise(model), spec);
}

}  // namespace

TokenizerSpec spec_from_gguf(const TokenizerSource& source) {
  TokenizerSpec spec;
  spec.place = source.place;
  spec.bos_id = source.bos_id;
  bool adds_bos = false;  // where the file does not say: llama.cpp's habit
  const bool bpe = source.gguf_model == "gpt2";
  if (!bpe && source.gguf_model != "llama" && source.gguf_model != "t5") {
    throw tokenizer_error(source.place, "tokenizer.ggml.model \"" + source.gguf_model + "\"",
                          "gpt2 (byte-level BPE), llama (SentencePiece BPE) or t5 (SentencePiece Unigram)");
  }
  const GgufPreTokenizer* pre = bpe ? &find_gguf_pre_tokenizer(source.gguf_pre, source.place) : nullptr;
  if (source.gguf_tokens.empty()) throw tokenizer_error(source.place, "no tokenizer.ggml.tokens");
  check_length(source, "types", source.gguf_token_types.size(), false);
  if (bpe) {
    adds_bos = pre->adds_bos;
    add_bpe(source, *pre, spec);
  } else {
    adds_bos = source.gguf_model == "llama";
    add_sentencepiece(source, spec);
  }
  spec.adds_bos = source.gguf_add_bos < 0 ? adds_bos : source.gguf_add_bos == 1;
  if (spec.adds_bos && (spec.bos_id < 0 || static_cast<size_t>(spec.bos_id) >= source.gguf_tokens.size())) {
    throw tokenizer_error(source.place,
                          "a BOS token is wanted, and tokenizer.ggml.bos_token_id is " + std::to_string(spec.bos_id));
  }
  return spec;
}

}  // namespace kvcc
