// kvcc models: the architectures and tokenizers that are supported, and how each was verified.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "calib/text/tokenizer_kinds.h"
#include "formats/cli/program.h"
#include "formats/weights/architecture.h"
#include "formats/weights/block_formats.h"
#include "formats/weights/wrappers.h"

namespace {

using kvcc::Architecture;

/// What is particular about the cache or about reaching it.
std::vector<std::string> traits(const Architecture& a) {
  std::vector<std::string> words;
  if (a.biases == kvcc::Biases::always) words.push_back("biases of q, k, v");
  if (a.qk_norm()) words.push_back("QK-norm");
  switch (a.layers) {
    case kvcc::Layers::sliding:
    case kvcc::Layers::sliding_after:
    case kvcc::Layers::sliding_but_nth:
      words.push_back("sliding window");
      break;
    case kvcc::Layers::rope_but_nth:
      words.push_back("layers without rotation");
      break;
    case kvcc::Layers::convolutions:
      words.push_back("layers without a cache");
      break;
    case kvcc::Layers::alike:
      break;
  }
  if (a.two_ropes) words.push_back("two rotations");
  if (a.softcaps) words.push_back("soft caps");
  if (a.multipliers) words.push_back("multipliers");
  if (a.router != kvcc::Router::none) words.push_back("experts");
  if (a.latent) words.push_back("latent attention: the latent and the rotary key");
  return words;
}

std::string joined(const std::vector<std::string>& words) {
  return words.empty() ? "-" : fmt::format("{}", fmt::join(words, ", "));
}

int list(bool as_json) {
  if (as_json) {
    nlohmann::ordered_json document;
    for (const Architecture& a : kvcc::architectures()) {
      document["architectures"].push_back({{"model_type", a.name},
                                           {"gguf", a.gguf},
                                           {"models", a.models},
                                           {"traits", traits(a)},
                                           {"verified", a.verified},
                                           {"verified_gguf", a.verified_gguf},
                                           {"test", kvcc::kVerifyingTest}});
    }
    for (const kvcc::Wrapper& w : kvcc::wrappers()) {
      document["with_images"].push_back({{"model_type", w.name},
                                         {"models", w.models},
                                         {"architecture", w.architecture},
                                         {"verified", kvcc::kVerified},
                                         {"test", kvcc::kVerifyingTest}});
    }
    document["weight_types"] = {{"safetensors", kvcc::weight_types(false)}, {"gguf", kvcc::weight_types(true)}};
    for (const kvcc::TokenizerKind& kind : kvcc::tokenizer_kinds()) {
      document["tokenizers"].push_back(
          {{"kind", kind.name}, {"files", kind.files}, {"rules", kind.rules}, {"verified", kind.verified}});
    }
    kvcc::cli::print_json(document);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"model_type", "GGUF", "models", "traits"}};
  for (const Architecture& a : kvcc::architectures()) rows.push_back({a.name, a.gguf, a.models, joined(traits(a))});
  fmt::print("{}", kvcc::cli::table(rows));
  fmt::print("\nModels with images, of which the text decoder is calibrated (its architecture is in text_config):\n");
  rows = {{"model_type", "models", "usual architecture"}};
  for (const kvcc::Wrapper& w : kvcc::wrappers()) rows.push_back({w.name, w.models, w.architecture});
  fmt::print("{}", kvcc::cli::table(rows));
  fmt::print("\nWeights: safetensors of {}; GGUF of {}\n", joined(kvcc::weight_types(false)),
             joined(kvcc::weight_types(true)));
  fmt::print("\nHow each was verified, by {}:\n", kvcc::kVerifyingTest);
  for (const Architecture& a : kvcc::architectures()) {
    fmt::print("  {}: safetensors {}; GGUF {}\n", a.name, a.verified, a.verified_gguf);
  }
  for (const kvcc::Wrapper& w : kvcc::wrappers()) fmt::print("  {}: safetensors {}\n", w.name, kvcc::kVerified);
  fmt::print("\nTokenizers (others are refused by name; --ids takes anybody's token ids):\n");
  for (const kvcc::TokenizerKind& kind : kvcc::tokenizer_kinds()) {
    fmt::print("  {}: {}; {}. Verified: {}\n", kind.name, kind.files, kind.rules, kind.verified);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return kvcc::cli::run(
      argc, argv, "models", "The architectures and tokenizers that are supported, and how each was verified",
      kvcc::cli::kJson, [](CLI::App&) {}, [](const kvcc::cli::Common& common) { return list(common.json); });
}
