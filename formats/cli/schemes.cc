// kvcc schemes: the presets, or schemes spelt out with their effective bits.
#include <fmt/format.h>

#include <cstdio>

#include "formats/cli/program.h"
#include "formats/core/effective_bits.h"
#include "formats/core/error.h"
#include "formats/core/json.h"
#include "formats/core/scheme.h"

namespace {

using kvcc::CacheShape;
using kvcc::Scheme;
using nlohmann::ordered_json;

struct Options {
  std::vector<std::string> schemes;
  CacheShape shape{30, 9, 3, 64, 64};  // SmolLM2-135M
  int value_head_dim = 0;
  int64_t amortise = kvcc::EffectiveBitsQuery{}.amortise;
};

constexpr int64_t kContexts[] = {2048, 32768, 131072};

kvcc::EffectiveBits bits_at(const Scheme& scheme, const Options& options, int64_t context) {
  return kvcc::effective_bits(scheme, options.shape, {.context = context, .amortise = options.amortise});
}

ordered_json scheme_document(const Scheme& scheme, const Options& options) {
  ordered_json document;
  document["name"] = kvcc::short_name(scheme);
  document["text"] = kvcc::to_string(scheme);
  document["scheme"] = kvcc::parse_json<ordered_json>(kvcc::scheme_json(scheme), "scheme");
  if (const kvcc::PresetInfo* preset = kvcc::preset_of(scheme)) {
    document["meaning"] = preset->meaning;
    document["source"] = preset->source;
  }
  document["needs_calibration"] = scheme.needs_calibration();
  document["nominal_bits"] = kvcc::nominal_bits(scheme);
  for (const int64_t context : kContexts) {
    const kvcc::EffectiveBits bits = bits_at(scheme, options, context);
    document["effective_bits"].push_back({{"context", context},
                                          {"total", bits.total},
                                          {"codes", bits.codes},
                                          {"scales", bits.scales},
                                          {"sparse", bits.sparse},
                                          {"exceptions", bits.exceptions},
                                          {"constants", bits.constants},
                                          {"constant_bytes", bits.constant_bytes}});
  }
  return document;
}

ordered_json shape_document(const CacheShape& shape) {
  return {{"layers", shape.layers},
          {"query_heads", shape.query_heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"value_head_dim", shape.value_head_dim}};
}

void print_presets(bool json) {
  if (json) {
    ordered_json document;
    for (const kvcc::PresetInfo& preset : kvcc::presets()) {
      document["presets"].push_back({{"pattern", preset.pattern},
                                     {"example", preset.example},
                                     {"meaning", preset.meaning},
                                     {"source", preset.source},
                                     {"needs_calibration", kvcc::parse_scheme(preset.example).needs_calibration()},
                                     {"text", kvcc::to_string(kvcc::parse_scheme(preset.example))}});
    }
    kvcc::cli::print_json(document);
    return;
  }
  for (const kvcc::PresetInfo& preset : kvcc::presets()) {
    const bool needs = kvcc::parse_scheme(preset.example).needs_calibration();
    fmt::print("{}\n    {}\n    {}; {}; e.g. {}\n", preset.pattern, preset.meaning, preset.source,
               needs ? "needs calibration" : "no calibration", preset.example);
  }
  fmt::print(
      "\nAny of them can be spelt out and changed: k=GRIDBITS@SITE/AXIS,v=GRIDBITS@AXIS and further keys.\n"
      "GRID int, nf, nuq, vq, lloyd, fp, polar, angles, sign; SITE prerope, postrope; AXIS channel, token, "
      "token:head,\n"
      "token:G, channel:G, tensor. 'kvcc schemes NAME' shows one with its bits; formats/spec/schemes.md defines "
      "them.\n");
}

void print_schemes(const std::vector<Scheme>& schemes, const Options& options) {
  const CacheShape& shape = options.shape;
  fmt::print("Bits per cached element at {} layers, {} kv heads, head dim {}/{}:\n", shape.layers, shape.kv_heads,
             shape.head_dim, shape.value_head_dim);
  std::vector<std::vector<std::string>> rows = {
      {"scheme", "nominal", "at 2K", "at 32K", "at 128K", "codes", "scales", "sparse", "constants"}};
  for (const Scheme& scheme : schemes) {
    const kvcc::EffectiveBits bits = bits_at(scheme, options, 32768);
    rows.push_back({kvcc::short_name(scheme), fmt::format("{:.2f}", kvcc::nominal_bits(scheme)),
                    fmt::format("{:.4f}", bits_at(scheme, options, 2048).total), fmt::format("{:.4f}", bits.total),
                    fmt::format("{:.4f}", bits_at(scheme, options, 131072).total), fmt::format("{:.4f}", bits.codes),
                    fmt::format("{:.4f}", bits.scales), fmt::format("{:.4f}", bits.sparse),
                    fmt::format("{} B", bits.constant_bytes)});
  }
  fmt::print("{}", kvcc::cli::table(rows));
  for (const Scheme& scheme : schemes) {
    fmt::print("{}\n", kvcc::to_string(scheme));
    if (const kvcc::PresetInfo* preset = kvcc::preset_of(scheme)) {
      fmt::print("    {}\n    {}; {}\n", preset->meaning, preset->source,
                 scheme.needs_calibration() ? "needs calibration" : "no calibration");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto define = [&](CLI::App& app) {
    const CLI::Validator positive = CLI::Range(int64_t{1}, int64_t{1} << 30).description("");
    app.add_option("scheme", options.schemes, "Presets or spelt-out schemes to show; none: list the presets");
    app.add_option("--layers", options.shape.layers, "Layers that have a cache (default 30)")->check(positive);
    app.add_option("--kv-heads", options.shape.kv_heads, "Key/value heads (default 3)")->check(positive);
    app.add_option("--head-dim", options.shape.head_dim, "Head dimension of keys (default 64)")->check(positive);
    app.add_option("--value-head-dim", options.value_head_dim, "Head dimension of values (default: that of keys)")
        ->check(positive);
    app.add_option("--amortise", options.amortise, "Cached tokens that share the constants (default 1048576)")
        ->check(positive);
  };
  return kvcc::cli::run(argc, argv, "schemes", "The presets, or schemes spelt out with their effective bits",
                        kvcc::cli::kJson, define, [&](const kvcc::cli::Common& common) {
                          if (options.schemes.empty()) {
                            print_presets(common.json);
                            return 0;
                          }
                          options.shape.value_head_dim =
                              options.value_head_dim > 0 ? options.value_head_dim : options.shape.head_dim;
                          options.shape.query_heads = options.shape.kv_heads;
                          std::vector<Scheme> schemes;
                          for (const std::string& text : options.schemes) schemes.push_back(kvcc::parse_scheme(text));
                          if (!common.json) {
                            print_schemes(schemes, options);
                            return 0;
                          }
                          ordered_json document;
                          document["shape"] = shape_document(options.shape);
                          document["amortise"] = options.amortise;
                          for (const Scheme& scheme : schemes) {
                            document["schemes"].push_back(scheme_document(scheme, options));
                          }
                          kvcc::cli::print_json(document);
                          return 0;
                        });
}
