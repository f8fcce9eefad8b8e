// SentencePiece's own library on one piece of text: its normalizer, its BPE, its byte fallback. T. Kudo and J.
// Richardson, "SentencePiece: A simple and language independent subword tokenizer", 2018.
//
// The library's Unigram adds up a text's scores in float, from its first to its last token (as of 0.1.97, Debian 12's),
// which after some ten thousand tokens no longer tells one segmentation from another. Later releases start again from
// time to time. So Debian's only makes the normal form, and the segmentation is ours, with the sums of the later ones:
// ids are those of PyPI's 0.2.3, whose rounding decides between segmentations that are all but equally probable.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>

#include "calib/text/sentencepiece_proto.h"
#include "calib/text/word_model.h"

namespace kvcc {
namespace {

class SentencePieceWords : public WordModel {
 public:
  explicit SentencePieceWords(const TokenizerSpec& spec) : place_(spec.place) {
    // The library follows the table of replacements without looking where it leads.
    const SentencePieceFacts facts = read_facts(spec.sentencepiece, place_);
    if (!facts.charsmap.empty()) Charsmap(facts.charsmap, place_);
    // It logs to stderr what it returns as well.
    const std::string why = load(spec.sentencepiece);
    if (!why.empty()) throw tokenizer_error(place_, "a SentencePiece model that does not load: " + why);
    std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (!std::isfinite(processor_.GetScore(id))) {
        throw tokenizer_error(place_, "the score of token " + std::to_string(id), "a finite number");
      }
      if (!processor_.IsByte(id)) continue;
      if (const int byte = byte_of_token(processor_.IdToPiece(id)); byte >= 0) byte_ids_[byte] = id;
    }
    if (facts.unigram) make_segmenter(facts);
  }

  void encode(std::string_view word, std::vector<int32_t>& out) const override {
    if (word.size() > INT32_MAX / 4) {  // the library counts characters, and thrice as many bytes, by int
      throw tokenizer_error(place_, "a text of " + std::to_string(word.size()) + " bytes", "at most 512 MiB");
    }
    if (segmenter_) return segmenter_->encode(normalised(word), out);
    std::vector<int> ids;
    check(processor_.Encode(word, &ids));
    out.insert(out.end(), ids.begin(), ids.end());
  }

  void encode_byte(unsigned char byte, std::vector<int32_t>& out) const override {
    out.push_back(byte_ids_[byte] >= 0 ? byte_ids_[byte] : processor_.unk_id());
  }

  std::string text(int32_t id) const override {
    const std::string& piece = processor_.IdToPiece(id);
    const int byte = processor_.IsByte(id) ? byte_of_token(piece) : -1;
    return byte >= 0 ? std::string(1, static_cast<char>(byte)) : piece;
  }
  int64_t size() const override { return processor_.GetPieceSize(); }

 private:
  /// What the library says is wrong; "" where it takes the model. Its tries throw what its status does not tell, of a
  /// token with a zero byte.
  std::string load(std::string_view model) {
    try {
      const auto status = processor_.LoadFromSerializedProto(model);
      return status.ok() ? "" : status.message();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) throw Error(ErrorKind::failed, place_, std::string("sentencepiece: ") + status.message());
  }

  // The pieces of a text are its normalised form, cut.
  std::string normalised(std::string_view word) const {
    sentencepiece::ImmutableSentencePieceText pieces;
    check(processor_.Encode(word, pieces.mutable_proto()));
    std::string text;
    for (size_t i = 0; i < pieces.pieces_size(); ++i) {
      const auto piece = pieces.pieces(static_cast<int>(i));
      const int byte = processor_.IsByte(static_cast<int>(piece.id())) ? byte_of_token(piece.piece()) : -1;
      byte >= 0 ? text += static_cast<char>(byte) : text += piece.piece();
    }
    return text;
  }

  void make_segmenter(const SentencePieceFacts& facts) {
    unigram_.place = place_;
    unigram_.kind = ModelKind::unigram;
    unigram_.byte_fallback = byte_ids_[0] >= 0;
    unigram_.byte_ids.assign(std::begin(byte_ids_), std::end(byte_ids_));
    unigram_.unknown = processor_.unk_id();
    unigram_.tokens.resize(facts.texts.size());
    unigram_.scores.resize(facts.texts.size());
    unigram_.float_sums = true;
    double least = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < facts.texts.size(); ++id) {
      if (facts.types[id] == PieceType::normal) least = std::min<double>(least, facts.scores[id]);
    }
    if (std::isfinite(least)) unigram_.least_score = least;
    for (size_t id = 0; id < facts.texts.size(); ++id) {
      const bool chosen = facts.types[id] == PieceType::user_defined;
      if (!chosen && facts.types[id] != PieceType::normal) continue;
      unigram_.tokens[id] = facts.texts[id];
      // A symbol's own score does not count (0.2.3): the longer the better, whatever else the text could be cut into.
      const double bonus = 0.1 * static_cast<double>(facts.texts[id].size() - 1);
      unigram_.scores[id] = chosen ? static_cast<float>(bonus) : facts.scores[id];
    }
    segmenter_ = make_unigram(unigram_);
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::string place_;
  int32_t byte_ids_[256];
  TokenizerSpec unigram_;                 // what segmenter_ refers to
  std::unique_ptr<WordModel> segmenter_;  // null: the library does it
};

}  // namespace

// A BPE whose text stays as it is but for its spaces (Llama 2, Mistral, Gemma, Phi-3) is run word by word: what the
// library would do with the spaces of the whole text is done before.
void set_sentencepiece(std::string model, TokenizerSpec& spec) {
  SentencePieceFacts facts = read_facts(model, spec.place);
  if (facts.texts.empty()) throw tokenizer_error(spec.place, "no pieces", "a SentencePiece model");
  spec.kind = ModelKind::sentencepiece;
  spec.normalises_whole =
      !facts.bpe || !facts.charsmap.empty() || facts.removes_spaces || !facts.marks_spaces || facts.mark_after;
  if (!spec.normalises_whole) {
    using Kind = NormalizerStep::Kind;
    spec.normalizers.push_back({.kind = Kind::replace, .pattern = " ", .content = kSpaceMark});
    if (facts.space_before) spec.normalizers.push_back({.kind = Kind::prepend, .content = kSpaceMark});
    model = without_spaces_changed(std::move(model));
  }
  for (size_t id = 0; id < facts.types.size(); ++id) {
    if (facts.types[id] == PieceType::unknown) spec.unknown = static_cast<int32_t>(id);
    if (facts.types[id] == PieceType::byte) spec.byte_fallback = true;
    // Control symbols are no text to SentencePiece; here they are looked for, as transformers and llama.cpp do.
    if (facts.types[id] == PieceType::control || facts.types[id] == PieceType::unknown) {
      spec.added.push_back({.content = facts.texts[id], .id = static_cast<int32_t>(id), .special = true});
    }
  }
  spec.fuse_unknown = !spec.byte_fallback;
  spec.tokens = std::move(facts.texts);
  spec.sentencepiece = std::move(model);
}

std::unique_ptr<WordModel> make_sentencepiece(const TokenizerSpec& spec) {
  return std::make_unique<SentencePieceWords>(spec);
}

}  // namespace kvcc
