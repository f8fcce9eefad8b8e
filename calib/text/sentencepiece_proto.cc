#include "calib/text/sentencepiece_proto.h"

#include <cstring>

#include "calib/text/tokenizer_spec.h"

namespace kvcc {
namespace {

// Field numbers of ModelProto and of its parts.
constexpr uint32_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3;
constexpr uint32_t kPiece = 1, kScore = 2, kType = 3;
constexpr uint32_t kModelType = 3, kMarkAfter = 24, kByteFallback = 35;
constexpr uint32_t kName = 1, kCharsmap = 2, kSpaceBefore = 3, kRemovesSpaces = 4, kMarksSpaces = 5;
constexpr uint32_t kUnigram = 1, kBpe = 2;

// Wire types.
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3 | kVarint);
  put_varint(out, value);
}
void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_varint(out, field << 3 | kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}
void put_float(std::string& out, uint32_t field, float value) {
  put_varint(out, field << 3 | kFixed32);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The fields of one message, in order.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& place) : bytes_(bytes), place_(place) {}
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field = static_cast<uint32_t>(key >> 3);
    type = static_cast<uint32_t>(key & 7);
    number = 0;
    bytes = {};
    if (type == kVarint) {
      number = varint();
    } else if (type == kBytes) {
      bytes = take(varint());
    } else if (type == kFixed64 || type == kFixed32) {
      bytes = take(type == kFixed64 ? 8 : 4);
    } else {
      throw broken("a field of wire type " + std::to_string(type));
    }
    return true;
  }
  uint32_t field = 0, type = 0;
  uint64_t number = 0;     // of a varint
  std::string_view bytes;  // of any other field

 private:
  Error broken(const std::string& what) const {
    return tokenizer_error(place_, what + " at byte " + std::to_string(at_), "a SentencePiece model");
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) break;
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    throw broken("a number without end");
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) throw broken("truncated: " + std::to_string(count) + " bytes");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::string_view bytes_;
  const std::string& place_;
  size_t at_ = 0;
};

}  // namespace

std::string serialise(const SentencePieceModel& model) {
  std::string out, part;
  bool bytes = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    part.clear();
    put_bytes(part, kPiece, piece.text);
    put_float(part, kScore, piece.score);
    put_number(part, kType, static_cast<uint64_t>(piece.type));
    put_bytes(out, kPieces, part);
    bytes = bytes || piece.type == PieceType::byte;
  }
  part.clear();
  put_number(part, kModelType, model.unigram ? kUnigram : kBpe);
  put_number(part, kByteFallback, bytes);
  put_bytes(out, kTrainerSpec, part);
  part.clear();
  put_bytes(part, kName, "identity");
  if (!model.charsmap.empty()) put_bytes(part, kCharsmap, model.charsmap);
  put_number(part, kSpaceBefore, model.space_before);
  put_number(part, kRemovesSpaces, model.removes_spaces);
  put_bytes(out, kNormalizerSpec, part);
  return out;
}

std::string without_spaces_changed(std::string bytes) {
  std::string part;
  put_number(part, kSpaceBefore, 0);
  put_number(part, kRemovesSpaces, 0);
  put_bytes(bytes, kNormalizerSpec, part);
  return bytes;
}

SentencePieceFacts read_facts(std::string_view bytes, const std::string& place) {
  SentencePieceFacts facts;
  for (Fields model(bytes, place); model.next();) {
    if (model.type != kBytes) continue;
    if (model.field == kPieces) {
      auto type = static_cast<uint64_t>(PieceType::normal);
      std::string_view text;
      float score = 0;
      for (Fields piece(model.bytes, place); piece.next();) {
        if (piece.field == kPiece && piece.type == kBytes) text = piece.bytes;
        if (piece.field == kScore && piece.type == kFixed32) std::memcpy(&score, piece.bytes.data(), sizeof score);
        if (piece.field == kType && piece.type == kVarint) type = piece.number;
      }
      // The library keeps a type it does not know as a field it does not know: the piece is normal.
      if (type < 1 || type > 6) type = static_cast<uint64_t>(PieceType::normal);
      facts.texts.emplace_back(text);
      facts.scores.push_back(score);
      facts.types.push_back(static_cast<PieceType>(type));
    } else if (model.field == kTrainerSpec) {
      for (Fields spec(model.bytes, place); spec.next();) {
        if (spec.type != kVarint) continue;
        if (spec.field == kModelType) facts.unigram = spec.number == kUnigram, facts.bpe = spec.number == kBpe;
        if (spec.field == kMarkAfter) facts.mark_after = spec.number != 0;
      }
    } else if (model.field == kNormalizerSpec) {
      for (Fields spec(model.bytes, place); spec.next();) {
        if (spec.field == kCharsmap && spec.type == kBytes) facts.charsmap = spec.bytes;  // the last one counts
        if (spec.type != kVarint) continue;
        if (spec.field == kSpaceBefore) facts.space_before = spec.number != 0;
        if (spec.field == kRemovesSpaces) facts.removes_spaces = spec.number != 0;
        if (spec.field == kMarksSpaces) facts.marks_spaces = spec.number != 0;
      }
    }
  }
  return facts;
}

}  // namespace kvcc
