// The little of protobuf's wire format that lies outside sentencepiece's library: its header declares ModelProto but
// not the members, so a model is put together, and looked into, as bytes. Fields: sentencepiece_model.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcc {

enum class PieceType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// What a ModelProto is made from; GGUF has the same numbers for the types.
struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::normal;
  };
  std::vector<Piece> pieces;
  bool unigram = false;         ///< else BPE
  std::string charsmap;         ///< precompiled_charsmap; "": text stays as it is
  bool space_before = true;     ///< a space is put before the text
  bool removes_spaces = false;  ///< at both ends, and of several one stays
};
std::string serialise(const SentencePieceModel& model);

/// What of a serialised ModelProto has to be known beside the library.
struct SentencePieceFacts {
  std::vector<std::string> texts;  ///< [pieces]
  std::vector<PieceType> types;    ///< [pieces]
  std::vector<float> scores;       ///< [pieces]
  std::string charsmap;            ///< "": none
  bool unigram = true, bpe = false;
  bool space_before = true, removes_spaces = true;
  bool marks_spaces = true;  ///< U+2581 for a space
  bool mark_after = false;   ///< the mark belongs to the word before it
};
/// Throws Error(bad_input) at `place` for what is no ModelProto. Linear.
SentencePieceFacts read_facts(std::string_view bytes, const std::string& place);

/// The same model with neither a space before the text nor spaces removed. Protobuf joins what is given twice.
std::string without_spaces_changed(std::string bytes);

}  // namespace kvcc
