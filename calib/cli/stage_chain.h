// Verbs one after another, whose failures end the chain. Programs only.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "calib/cli/stage.h"
#include "formats/cli/program.h"

namespace kvcc::cli {

/// A stage that failed. It has said why on stderr; its exit code is ours, and with --json its document too.
struct StageFailed {
  std::string verb;
  StageResult result;
};

/// Throws StageFailed for an exit code other than 0, and as run_stage().
inline StageResult chain_stage(const std::string& verb, std::vector<std::string> arguments, const Common& common) {
  if (common.quiet) arguments.push_back("--quiet");
  spdlog::info("{}", verb);
  StageResult result = run_stage(verb, arguments);
  if (result.exit_code != 0) throw StageFailed{verb, std::move(result)};
  return result;
}

inline nlohmann::ordered_json stage_document(const std::string& verb, const std::string& text) {
  auto document = nlohmann::ordered_json::parse(text, nullptr, false);
  if (document.is_discarded()) throw Error(ErrorKind::failed, "kvcc " + verb, "printed no JSON document");
  return document;
}

/// Passes on what the stage said; returns its exit code.
inline int report_failure(const StageFailed& failed, const Common& common) {
  const std::string& output = failed.result.output;
  const auto document = nlohmann::ordered_json::parse(output, nullptr, false);
  const bool is_document = document.is_object() && document.contains("error");
  const int code = failed.result.exit_code;
  if (common.json && !is_document)
    throw Error(code >= 1 && code <= 6 ? static_cast<ErrorKind>(code) : ErrorKind::failed, "kvcc " + failed.verb,
                "ended with exit code " + std::to_string(code) + " and said no more");
  if (common.json)
    std::fputs(output.c_str(), stdout);
  else if (!is_document)
    std::fputs(output.c_str(), stderr);
  return code;
}

/// The JSON object in a file; an empty one where there is none.
inline nlohmann::ordered_json read_record(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return nlohmann::ordered_json::object();
  auto record = nlohmann::ordered_json::parse(read_text_file(path), nullptr, false);
  return record.is_object() ? record : nlohmann::ordered_json::object();
}

}  // namespace kvcc::cli
