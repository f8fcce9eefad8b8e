// kvcc validate: everything that is wrong with files of kvcc, and whether a model can be used.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>

#include "calib/text/tokenizer.h"
#include "formats/cli/program.h"
#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/export/export.h"
#include "formats/store/activations.h"
#include "formats/store/codebook.h"
#include "formats/store/kernels_manifest.h"
#include "formats/store/weights_file.h"
#include "formats/weights/gguf_file.h"
#include "formats/weights/model_files.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Verdict {
  std::string path, kind;
  std::vector<std::string> problems;
  std::vector<std::string> holds;  ///< of an export: names and shapes
};

void hold(Verdict& verdict, const std::vector<kvcc::ExportedTensor>& tensors) {
  for (const kvcc::ExportedTensor& tensor : tensors) {
    verdict.holds.push_back(fmt::format("{} {} {}", tensor.name, tensor.dtype, kvcc::shape_text(tensor.shape)));
  }
}

/// Configuration, weights and, where there is one, the tokenizer, opened as kvcc collect does.
void check_model(const std::string& path, Verdict& verdict) {
  verdict.kind = "model";
  const kvcc::ModelFiles files = kvcc::open_model(path);
  const kvcc::TokenizerSource& source = files.tokenizer;
  const bool files_have_one = !source.json_path.empty() || !source.sentencepiece_path.empty();
  if (files_have_one || !source.gguf_model.empty() || !source.gguf_tokens.empty()) kvcc::make_tokenizer(source);
  for (const kvcc::TensorInfo& tensor : files.tensors->tensors()) {
    verdict.holds.push_back(
        fmt::format("{} {} {}", tensor.name, kvcc::weight_type_name(tensor.type), kvcc::shape_text(tensor.shape)));
  }
  if (!files.left_out.empty()) spdlog::info("{}: {}", path, files.left_out);
}

/// A model, or kvcc's export.
void check_gguf(const std::string& path, Verdict& verdict) {
  const kvcc::GgufFile file(path);
  if (file.text("general.type").value_or("") != "kvcc-codebook") return check_model(path, verdict);
  for (const kvcc::GgufTensor& tensor : file.tensors()) {
    verdict.holds.push_back(
        fmt::format("{} {} {}", tensor.name, kvcc::weight_type_name(tensor.type), kvcc::shape_text(tensor.shape)));
  }
}

/// Whether an HDF5 file is one of quantised weights; a damaged one goes by its name.
bool is_weights(const std::string& path) {
  try {
    const kvcc::MappedFile file(path);
    return kvcc::is_weights_tree(kvcc::hdf5_to_tree(file.bytes(), path));
  } catch (const kvcc::Error&) {
    return path.ends_with(".kvcw");
  }
}

Verdict validate(const std::string& path) {
  Verdict verdict{path, "codebook", {}, {}};
  std::error_code error;
  try {
    if (fs::is_directory(path, error)) {
      if (kvcc::is_activations_folder(path)) {
        verdict.kind = "activations";
        verdict.problems = kvcc::validate_activations(path);
      } else if (fs::exists(fs::path(path) / "kernels.json", error)) {
        verdict.kind = "kernels";
        verdict.problems = kvcc::validate_kernels(path);
      } else if (fs::exists(fs::path(path) / "config.json", error)) {
        check_model(path, verdict);
      } else {
        verdict.kind = "unknown";
        verdict.problems = {"a folder without manifest.json, kernels.json or config.json"};
      }
    } else if (path.ends_with(".safetensors")) {
      verdict.kind = "safetensors";
      hold(verdict, kvcc::check_safetensors(path));
    } else if (path.ends_with(".npz")) {
      verdict.kind = "npz";
      hold(verdict, kvcc::check_npz(path));
    } else if (path.ends_with(".gguf")) {
      verdict.kind = "gguf";
      check_gguf(path, verdict);
    } else {
      verdict.kind = is_weights(path) ? "weights" : "codebook";
      verdict.problems = verdict.kind == "weights" ? kvcc::validate_weights(path) : kvcc::validate_codebook(path);
    }
  } catch (const kvcc::Error& problem) {
    verdict.problems.push_back(problem.what());
  }
  return verdict;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> paths;
  const auto define = [&](CLI::App& app) {
    app.add_option("FILE", paths,
                   ".kvcb and .kvcw files, activations folders, kernels folders, exports (.safetensors, .npz, .gguf), "
                   "models (a "
                   "Hugging Face directory, a .gguf file)")
        ->required();
  };
  const auto body = [&](const kvcc::cli::Common& common) {
    bool good = true;
    ordered_json document;
    for (const std::string& path : paths) {
      const Verdict verdict = validate(path);
      good = good && verdict.problems.empty();
      if (common.json) {
        ordered_json entry = {{"path", path},
                              {"kind", verdict.kind},
                              {"valid", verdict.problems.empty()},
                              {"problems", verdict.problems}};
        if (!verdict.holds.empty()) entry["holds"] = verdict.holds;
        document["files"].push_back(std::move(entry));
        continue;
      }
      if (verdict.problems.empty()) fmt::print("{}: sound ({})\n", path, verdict.kind);
      for (const std::string& line : verdict.holds) fmt::print("  {}\n", kvcc::cli::printable(line));
      for (const std::string& problem : verdict.problems) {
        // Problems of a file that can't be opened name it already.
        fmt::print("{}{}\n", problem.starts_with(path) ? "" : path + ": ", kvcc::cli::printable(problem));
      }
    }
    if (common.json) kvcc::cli::print_json(document);
    return good ? 0 : static_cast<int>(kvcc::ErrorKind::bad_input);
  };
  return kvcc::cli::run(argc, argv, "validate", "Check files: structure, checksums, ranges and meaning",
                        kvcc::cli::kJson, define, body);
}
