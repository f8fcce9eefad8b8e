// What a byte-level BPE does not have is not added, so that its hash is that of artifacts made when there was nothing
// else.
#include "calib/text/tokenizer_spec.h"
#include "formats/core/hash.h"

namespace kvcc {

std::string hash_of(const TokenizerSpec& spec) {
  Sha256 hash;
  const auto number = [&](int64_t n) { hash.update(&n, sizeof n); };
  const auto string = [&](std::string_view s) {
    number(static_cast<int64_t>(s.size()));
    hash.update(s);
  };
  number(static_cast<int64_t>(spec.tokens.size()));
  for (const std::string& token : spec.tokens) string(token);
  number(static_cast<int64_t>(spec.merges.size()));
  for (const auto& [left, right] : spec.merges) number((int64_t{left} << 32) | right);
  number(static_cast<int64_t>(spec.added.size()));
  for (const AddedToken& t : spec.added) {
    string(t.content);
    number(t.id);
    number(t.lstrip | t.rstrip << 1 | t.single_word << 2 | t.normalized << 3);
  }
  number(static_cast<int64_t>(spec.stages.size()));
  for (const SplitStage& s : spec.stages) {
    string(s.pattern);
    const bool removes = s.behaviour == Behaviour::removed, isolates = s.behaviour == Behaviour::isolated;
    const bool gaps = isolates || (removes && !s.invert), matches = isolates || (removes && s.invert);
    const int other = removes || isolates ? 0 : 2 * static_cast<int>(s.behaviour) + s.invert;
    number(gaps | matches << 1 | (s.prefix == " ") << 2 | other << 3);
    if (!s.space.empty()) {
      string(s.space);
      string(s.prefix);
      number(s.prefix_first);
    }
  }
  number(spec.ignore_merges | spec.fuse_unknown << 1);
  number(spec.unknown);
  if (spec.kind == ModelKind::bpe && spec.byte_level && spec.normalizers.empty()) return hash.hex();
  number(static_cast<int64_t>(spec.kind));
  number(spec.byte_level | spec.byte_fallback << 1);
  hash.update(spec.scores.data(), spec.scores.size() * sizeof(double));
  string(spec.sentencepiece);
  for (const NormalizerStep& s : spec.normalizers) {
    number(static_cast<int64_t>(s.kind) | s.left << 8 | s.right << 9);
    string(s.pattern);
    string(s.content);
    string(s.table ? s.table->bytes() : "");
  }
  return hash.hex();
}

}  // namespace kvcc
