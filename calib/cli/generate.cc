// kvcc generate: text from a model whose key/value cache is packed.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>

#include "calib/cli/packed_cache.h"
#include "calib/eval/geometry.h"
#include "calib/eval/incremental_cache.h"
#include "calib/model/errors.h"
#include "calib/model/generate.h"
#include "calib/model/memory.h"
#include "calib/text/chat.h"
#include "calib/text/corpus.h"
#include "calib/text/text_stream.h"
#include "formats/cli/output.h"
#include "formats/cli/program.h"
#include "formats/cli/ranges.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"
#include "kernels/cpu/units.h"

namespace {

using Json = nlohmann::ordered_json;
using kvcc::Error;
using kvcc::ErrorKind;

struct Options {
  std::string model, codebook, prompt, prompt_file, ids, system;
  std::string prefill = "exact", cache = "packed", arithmetic = "f32", units, save, load;
  int64_t tokens = 128, seed = 0;
  double temperature = 0, top_p = 1;
  bool chat = false, ignore_eos = false;
};

void define(CLI::App& app, Options& o) {
  const auto one_of = [](std::vector<std::string> words) { return CLI::IsMember(std::move(words)).description(""); };
  app.add_option("MODEL", o.model, "Hugging Face directory or .gguf file")->required();
  app.add_option("--codebook", o.codebook, "Artifact: F.kvcb, or its safetensors export; not for --cache fp16");
  CLI::Option* prompt =
      app.add_option("--prompt", o.prompt, "Text to go on from; marks of special tokens count as such");
  CLI::Option* file = app.add_option("--prompt-file", o.prompt_file, "The same from a file, taken as it is");
  CLI::Option* ids = app.add_option("--ids", o.ids, "The same as token ids, .npy int32 [n]; no BOS is added");
  CLI::Option* chat = app.add_flag("--chat", o.chat, "The prompt is a user's message, in the model's chat format");
  app.add_option("--system", o.system, "System message of a --chat, put first (default none)")->needs(chat);
  prompt->excludes(file)->excludes(ids);
  file->excludes(ids);
  chat->excludes(ids);
  app.add_option("--tokens", o.tokens, "Tokens to generate at most; 0: the prompt is packed, for --save-cache")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 24).description(""));
  app.add_option("--temperature", o.temperature, "Of sampling; 0: greedy, the likeliest token")
      ->capture_default_str()
      ->check(kvcc::cli::number_in(0, 100));
  app.add_option("--top-p", o.top_p, "Sample from the likeliest tokens of this joint probability")
      ->capture_default_str()
      ->check(kvcc::cli::number_in(1e-6, 1));
  app.add_option("--seed", o.seed, "Seed of sampling")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, INT64_MAX).description(""));
  app.add_flag("--ignore-eos", o.ignore_eos, "Go on after a token that ends a text or turn");
  app.add_option("--prefill", o.prefill,
                 "exact: the prompt attends to full-precision rows, then is packed; quantised: each of its tokens "
                 "attends to the packed cache")
      ->capture_default_str()
      ->check(one_of({"exact", "quantised"}));
  app.add_option("--cache", o.cache,
                 "packed; simulated: the same by the reference codec, in f32; fp16: nothing is quantised")
      ->capture_default_str()
      ->check(one_of({"packed", "simulated", "fp16"}));
  app.add_option("--arithmetic", o.arithmetic,
                 "Of packed attention: f32; i16, fixed point, faster; f64, slow, for comparison")
      ->capture_default_str()
      ->check(one_of({"f32", "i16", "f64"}));
  app.add_option("--units", o.units, "Library of 'kvcc compile --arch cpu' for this artifact (default: built in)");
  app.add_option("--save-cache", o.save, "File that the packed cache and the text's ids are saved to at the end");
  app.add_option("--load-cache", o.load, "Go on from such a file; a prompt comes after its text");
}

class Generation {
 public:
  Generation(const Options& options, const kvcc::cli::Common& common)
      : o_(options),
        common_(common),
        files_((check_options(options), kvcc::open_model(options.model))),
        rope_(files_.config.rope) {}

  int run() {
    if (!files_.left_out.empty()) spdlog::info("{}: {}", o_.model, files_.left_out);
    at::set_num_threads(common_.threads);
    make_tokenizer();
    if (o_.load.empty()) {
      prompt_ = prompt_ids(true);
      check_length();
    }
    make_cache();
    if (!o_.load.empty()) {
      prompt_ = prompt_ids(false);
      check_length();
    }
    check_memory();
    const kvcc::Decoder decoder(files_);
    hold_tail();
    const kvcc::Generated out = generate(decoder);
    finish_text();
    files_.tensors->check_unchanged(false);
    save(out);
    report(out);
    return out.exit_code;
  }

 private:
  static void check_options(const Options& o) {
    const auto refuse = [](const std::string& option, const std::string& wanted) {
      throw Error(ErrorKind::usage, option, "does not go with the other options", wanted);
    };
    if (o.codebook.empty() && o.cache != "fp16") refuse("--cache " + o.cache, "--codebook F.kvcb");
    if (!o.codebook.empty() && o.cache == "fp16") refuse("--codebook", "--cache packed or simulated");
    for (const auto& [option, value] :
         {std::pair{"--units", &o.units}, {"--save-cache", &o.save}, {"--load-cache", &o.load}}) {
      if (!value->empty() && o.cache != "packed") refuse(option, "--cache packed");
    }
    if (o.prompt.empty() && o.prompt_file.empty() && o.ids.empty() && o.load.empty()) {
      throw Error(ErrorKind::usage, "generate", "nothing to go on from",
                  "--prompt, --prompt-file, --ids or --load-cache");
    }
    const std::filesystem::path folder = std::filesystem::path(o.save).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder)) {
      throw Error(ErrorKind::usage, "--save-cache " + o.save, "no folder " + folder.string(), "one that is there");
    }
    kvcc::cli::check_replaced(o.save, {"\"format\":\"kvcc-cache\""}, "--save-cache");
    if (!o.save.empty())
      const kvcc::AtomicFile target(o.save);  // what is wrong with it is said now, not after the work
  }

  /// Ids alone need no tokenizer, which then is none that kvcc knows: ids are printed in place of text.
  void make_tokenizer() {
    const bool needed = !o_.prompt.empty() || !o_.prompt_file.empty();
    try {
      tokenizer_ = kvcc::make_tokenizer(files_.tokenizer);
    } catch (const Error& error) {
      if (needed) throw;
      spdlog::warn("{}; ids are printed in place of text", error.what());
    }
  }

  std::vector<int32_t> prompt_ids(bool first) const {
    if (!o_.ids.empty()) {
      kvcc::NpyIds npy = kvcc::read_npy_ids(o_.ids);
      if (npy.shape.size() != 1 && npy.shape[0] != 1) {
        throw kvcc::bad_input(o_.ids, "shape " + kvcc::shape_text(npy.shape), "one row of ids");
      }
      return npy.ids;
    }
    std::string text = o_.prompt_file.empty() ? o_.prompt : kvcc::read_text_file(o_.prompt_file);
    if (text.empty()) return {};
    if (o_.chat) text = kvcc::chat_format(*tokenizer_, o_.model).turn(text, o_.system, first);
    std::vector<int32_t> ids = tokenizer_->encode(text);
    if (first && tokenizer_->adds_bos() && (ids.empty() || ids[0] != tokenizer_->bos_id())) {
      ids.insert(ids.begin(), static_cast<int32_t>(tokenizer_->bos_id()));
    }
    return ids;
  }

  void make_cache() {
    if (o_.cache == "fp16") {
      const kvcc::DecoderConfig& c = files_.config;
      const auto n = [](int64_t x) { return static_cast<int>(x); };
      cache_ = std::make_unique<kvcc::IncrementalCache>(kvcc::IncrementalCache::half(
          {n(c.layers), n(c.query_heads), n(c.kv_heads), n(c.head_dim), n(c.head_dim)}, rope_, common_.threads));
      return;
    }
    const bool exported = kvcc::cli::is_export(o_.codebook);
    kvcc::Codebook codebook;
    if (exported) {
      codebook.model = kvcc::cli::exported_model(o_.codebook);
    } else {
      codebook = kvcc::read_codebook(o_.codebook);
    }
    const kvcc::ModelInfo model = kvcc::model_info(files_);
    kvcc::check_geometry(o_.codebook, codebook, model, files_.config.cached_layers());
    if (codebook.model.weights_sha256 != model.weights_sha256) {
      spdlog::warn("{}: made from other weights ({}) of the same geometry as {}", o_.codebook, codebook.model.name,
                   model.name);
    }
    if (o_.cache == "simulated") {
      if (exported) {
        throw Error(ErrorKind::usage, "--cache simulated", o_.codebook + " is an export", "the .kvcb it was made from");
      }
      cache_ = std::make_unique<kvcc::IncrementalCache>(codebook, rope_, model.shape.layers, common_.threads);
      return;
    }
    KvccOptions options{};
    options.size = sizeof options;
    options.threads = std::min(common_.threads, kvcc::cli::kMostRuntimeThreads);
    options.max_tokens = std::min(length_limit(), kvcc::cli::kMostRuntimeTokens);
    options.arithmetic = o_.arithmetic == "i16"   ? KVCC_ARITHMETIC_I16
                         : o_.arithmetic == "f64" ? KVCC_ARITHMETIC_F64
                                                  : KVCC_ARITHMETIC_F32;
    options.units = o_.units.empty() ? nullptr : o_.units.c_str();
    artifact_ = kvcc::cli::open_packed_artifact(o_.codebook, exported);
    auto packed = std::make_unique<kvcc::cli::PackedCache>(artifact_.get(), rope_, options, o_.load);
    packed_ = packed.get();
    cache_ = std::move(packed);
    if (o_.load.empty()) return;
    first_ = packed_->length();
    before_ = packed_->tokens();
    check_ids();
    if (static_cast<int64_t>(before_.size()) == first_ + 1) pending_ = before_.back();
  }

  /// Ids that came with a file are anybody's: the C API saves what it is given.
  void check_ids() const {
    const auto count = static_cast<int64_t>(before_.size());
    if (count != 0 && count != first_ && count != first_ + 1) {
      throw kvcc::bad_input(o_.load, fmt::format("ids of {} tokens for {} in the cache", count, first_),
                            "none, one a token, or one more");
    }
    for (const int32_t id : before_) {
      if (id >= 0 && id < files_.config.vocab) continue;
      throw kvcc::bad_input(o_.load, fmt::format("token id {}", id),
                            fmt::format("0 to {}, the model's", files_.config.vocab - 1));
    }
  }

  /// Tokens that the text can have in all.
  int64_t length_limit() const {
    const int64_t context = files_.config.max_position;
    const int64_t all = first_ + static_cast<int64_t>(prompt_.size()) + o_.tokens;
    return context > 0 ? context : all;
  }

  void check_length() const {
    const int64_t there = first_ + (pending_ ? 1 : 0), all = there + static_cast<int64_t>(prompt_.size());
    if (prompt_.empty() && !pending_) {
      throw Error(ErrorKind::usage, o_.load.empty() ? "the prompt" : o_.load,
                  o_.load.empty() ? "has no tokens" : "holds no token that is to be gone on from", "a prompt");
    }
    const int64_t context = files_.config.max_position;
    if (context > 0 && all > context) {
      throw Error(ErrorKind::usage, "the prompt",
                  fmt::format("{} tokens{}", all, there > 0 ? " with what was loaded" : ""),
                  fmt::format("at most {}, the model's context", context), "a shorter prompt");
    }
  }

  void check_memory() const {
    const kvcc::DecoderConfig& c = files_.config;
    const auto prompt = static_cast<int64_t>(prompt_.size());
    const uint64_t cache = kvcc::KvCache::bytes(c, 1, std::min(length_limit(), first_ + prompt + o_.tokens)) /
                           (packed_ != nullptr ? 2 : 1);
    const uint64_t peak =
        kvcc::loaded_bytes(files_) + cache + kvcc::prefill_bytes(c, first_ + prompt, generate_options().prefill);
    kvcc::require_memory(o_.model, peak, kvcc::available_memory(), "", "a shorter prompt makes it smaller");
  }

  kvcc::GenerateOptions generate_options() const {
    kvcc::GenerateOptions options;
    options.tokens = o_.tokens;
    options.prefill = o_.prefill == "exact" ? kvcc::PrefillMode::exact : kvcc::PrefillMode::quantised;
    options.sampling = {o_.temperature, o_.top_p, static_cast<uint64_t>(o_.seed)};
    options.context = files_.config.max_position;
    if (o_.ignore_eos) return options;
    const int64_t eos = files_.config.eos_id >= 0 ? files_.config.eos_id : files_.tokenizer.eos_id;
    if (tokenizer_) {
      options.end_tokens = kvcc::end_tokens(*tokenizer_, eos);
    } else if (eos >= 0) {
      options.end_tokens = {static_cast<int32_t>(eos)};
    }
    return options;
  }

  kvcc::Generated generate(const kvcc::Decoder& decoder) {
    std::optional<kvcc::cli::Progress> progress;
    try {
      return kvcc::generate(
          decoder, pending_, prompt_, first_, *cache_, generate_options(),
          [&](int32_t id) {
            progress.reset();
            show(id);
          },
          [&](uint64_t done, uint64_t total) {
            if (!progress) progress.emplace("prefill", total, common_.quiet);
            progress->set(done);
          });
    } catch (const kvcc::Interrupted&) {
      if (!o_.save.empty()) spdlog::warn("the prompt was not finished, so {} was not written", o_.save);
      throw;
    }
  }

  std::string bytes_of(int32_t id) const { return tokenizer_->is_special(id) ? "" : tokenizer_->decode({&id, 1}); }

  /// A text that was saved may end within a character, whose rest is still to come.
  void hold_tail() {
    if (!pending_ || !prompt_.empty() || !tokenizer_) return;
    for (size_t i = before_.size() - std::min<size_t>(before_.size(), 4); i < before_.size(); ++i) {
      stream_.push(bytes_of(before_[i]));
    }
  }

  void show(int32_t id) {
    if (tokenizer_) {
      print(stream_.push(bytes_of(id)));
    } else {
      print((text_.empty() ? "" : " ") + std::to_string(id));
    }
  }

  void print(const std::string& text) {
    text_ += text;
    if (common_.json) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  void finish_text() {
    if (o_.save.empty()) print(stream_.finish());  // else whoever goes on from the file shows it
    if (!common_.json && !text_.empty() && text_.back() != '\n') std::fputc('\n', stdout);
    std::fflush(stdout);
  }

  void save(const kvcc::Generated& out) {
    if (o_.save.empty()) return;
    std::vector<int32_t> ids = before_;
    ids.insert(ids.end(), prompt_.begin(), prompt_.end());
    ids.insert(ids.end(), out.ids.begin(), out.ids.end());
    packed_->save(o_.save, ids);
  }

  void report(const kvcc::Generated& out) const {
    const kvcc::DecoderConfig& c = files_.config;
    const int64_t tokens = first_ + (pending_ ? 1 : 0) + static_cast<int64_t>(prompt_.size()) + out.steps;
    KvccUsage usage{};
    usage.tokens = tokens;
    usage.fp16_bytes = static_cast<int64_t>(kvcc::KvCache::bytes(c, 1, tokens) / 2);
    if (packed_ != nullptr) usage = packed_->usage();
    const int64_t bytes = usage.packed_bytes + usage.exact_bytes;
    const double rate = out.steps > 0 ? static_cast<double>(out.steps) / out.decode_seconds : 0;
    const double compression = bytes > 0 ? static_cast<double>(usage.fp16_bytes) / static_cast<double>(bytes) : 0;
    const std::string target = kvcc_cpu_target();
    if (out.reason == kvcc::StopReason::context) {
      spdlog::warn("stopped at {} tokens, the model's context", c.max_position);
    }
    if (common_.json) {
      Json cache{{"kind", o_.cache}, {"tokens", usage.tokens}, {"fp16_bytes", usage.fp16_bytes}};
      if (packed_ != nullptr) {
        cache.update(Json{{"bytes", bytes},
                          {"packed_bytes", usage.packed_bytes},
                          {"exact_bytes", usage.exact_bytes},
                          {"reserved_bytes", usage.reserved_bytes},
                          {"compression", compression},
                          {"arithmetic", o_.arithmetic},
                          {"target", target},
                          {"units", o_.units.empty() ? Json(nullptr) : Json(o_.units)}});
      }
      kvcc::cli::print_json(
          {{"model", o_.model},
           {"codebook", o_.codebook.empty() ? Json(nullptr) : Json(o_.codebook)},
           {"text", text_},
           {"ids", out.ids},
           {"stopped", kvcc::stop_reason_name(out.reason)},
           {"loaded_tokens", before_.size()},
           {"prompt_tokens", prompt_.size()},
           {"prefill", {{"mode", o_.prefill}, {"seconds", out.prefill_seconds}}},
           {"decode", {{"steps", out.steps}, {"seconds", out.decode_seconds}, {"tokens_per_second", rate}}},
           {"cache", cache}});
      return;
    }
    if (common_.quiet) return;
    std::vector<std::vector<std::string>> rows{{"generate", ""}};
    if (!before_.empty()) rows.push_back({"loaded tokens", std::to_string(before_.size())});
    rows.push_back({"prompt tokens", std::to_string(prompt_.size())});
    rows.push_back({"prefill, " + o_.prefill, fmt::format("{:.2f} s", out.prefill_seconds)});
    rows.push_back({"generated tokens", fmt::format("{} ({})", out.ids.size(), kvcc::stop_reason_name(out.reason))});
    rows.push_back({"tokens per second", fmt::format("{:.2f}", rate)});
    if (packed_ != nullptr) {
      rows.push_back({"packed cache", kvcc::human_bytes(bytes)});
      rows.push_back({"in fp16", kvcc::human_bytes(usage.fp16_bytes)});
      rows.push_back({"compression", fmt::format("{:.2f}", compression)});
      rows.push_back(
          {"units", fmt::format("{}, {}, {}", o_.units.empty() ? "built in" : o_.units, target, o_.arithmetic)});
    } else {
      rows.push_back({"cache", o_.cache + ", kept in f32"});
    }
    std::fputs(kvcc::cli::table(rows).c_str(), stderr);
  }

  const Options& o_;
  const kvcc::cli::Common& common_;
  kvcc::ModelFiles files_;
  kvcc::Rope rope_;
  std::unique_ptr<kvcc::Tokenizer> tokenizer_;  ///< null: the model has none that is known
  kvcc::cli::PackedArtifact artifact_;
  std::unique_ptr<kvcc::AttentionCache> cache_;
  kvcc::cli::PackedCache* packed_ = nullptr;  ///< cache_, when it is packed
  int64_t first_ = 0;                         ///< tokens in a loaded cache
  std::vector<int32_t> before_, prompt_;      ///< ids that came with it; of the prompt
  std::optional<int32_t> pending_;            ///< last id of before_, not in the cache yet
  kvcc::TextStream stream_;
  std::string text_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  using namespace kvcc::cli;
  return run(
      argc, argv, "generate", "Text from a model that decodes with the packed key/value cache", kJson | kThreads,
      [&](CLI::App& app) { define(app, options); },
      [&](const Common& common) {
        return kvcc::with_torch_errors([&] { return Generation(options, common).run(); },
                                       "a shorter prompt needs less memory");
      });
}
