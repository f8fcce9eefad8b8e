// The part "normalizer" of tokenizer.json.
#include <openssl/evp.h>

#include "calib/text/json_fields.h"

namespace kvcc {
namespace {

using nlohmann::json;
using Kind = NormalizerStep::Kind;

constexpr size_t kMaxSteps = 64;

std::string from_base64(const std::string& text, const JsonFields& fields) {
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (length < 0) throw fields.refuse("precompiled_charsmap is no base64");
  bytes.resize(static_cast<size_t>(length));
  for (size_t i = text.size(); i > 0 && text[i - 1] == '=' && !bytes.empty(); --i) bytes.pop_back();
  return bytes;
}

bool find_plain(const std::string& type, Kind& kind) {
  static constexpr std::pair<const char*, Kind> kPlain[] = {{"NFC", Kind::nfc},
                                                            {"NFD", Kind::nfd},
                                                            {"NFKC", Kind::nfkc},
                                                            {"NFKD", Kind::nfkd},
                                                            {"Nmt", Kind::nmt},
                                                            {"Lowercase", Kind::lowercase},
                                                            {"StripAccents", Kind::strip_accents}};
  for (const auto& [name, plain] : kPlain) {
    if (type == name) {
      kind = plain;
      return true;
    }
  }
  return false;
}

void read(const JsonFields& fields, const json& normalizer, int depth, std::vector<NormalizerStep>& steps) {
  const std::string type = fields.text(normalizer, "type");
  NormalizerStep step;
  if (type == "Sequence") {
    const json& parts = JsonFields::member(normalizer, "normalizers");
    if (!parts.is_array() || depth > 4) throw fields.refuse("a normalizer Sequence that is not a list of normalizers");
    for (const json& part : parts) read(fields, part, depth + 1, steps);
    return;
  } else if (find_plain(type, step.kind)) {
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = fields.flag(normalizer, "strip_left", true);
    step.right = fields.flag(normalizer, "strip_right", true);
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = fields.text(normalizer, "prepend");
  } else if (type == "Replace") {
    const JsonFields::Pattern pattern = fields.pattern(normalizer, "normalizer Replace");
    step.kind = pattern.literal.empty() ? Kind::replace_regex : Kind::replace;
    step.pattern = pattern.literal.empty() ? pattern.regex : pattern.literal;
    step.content = fields.text(normalizer, "content");
  } else if (type == "Precompiled") {
    step.kind = Kind::precompiled;
    const std::string bytes = from_base64(fields.text(normalizer, "precompiled_charsmap"), fields);
    if (bytes.empty()) return;  // the identity
    step.table = std::make_shared<const Charsmap>(bytes, fields.place);
  } else {
    throw fields.refuse("normalizer " + (type.empty() ? "without a type" : type),
                        "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Nmt, Prepend, Replace or "
                        "Precompiled");
  }
  if (steps.size() == kMaxSteps) throw fields.refuse("more than " + std::to_string(kMaxSteps) + " normalizers");
  steps.push_back(std::move(step));
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const JsonFields& fields, const json& normalizer) {
  std::vector<NormalizerStep> steps;
  if (!normalizer.is_null()) read(fields, normalizer, 0, steps);
  return steps;
}

}  // namespace kvcc
