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
#include "formats/core/json.h"

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
  try {
    return parse_json<nlohmann::ordered_json>(text, "kvcc " + verb);
  } catch (const Error& error) {
    throw Error(ErrorKind::failed, "kvcc " + verb, std::string("printed no JSON document: ") + error.what());
  }
}

/// Passes on what the stage said; returns its exit code.
inline int report_failure(const StageFailed& failed, const Common& common) {
  const std::string& output = failed.result.output;
  bool is_document = false;
  try {
    is_document = parse_json<nlohmann::ordered_json>(output, "kvcc " + failed.verb).contains("error");
  } catch (const Error&) {  // it has said why on stderr
  }
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

/// The JSON object in a file that a verb keeps; an empty one where there is none, or nothing that can be read, of which
/// it warns.
inline nlohmann::ordered_json read_record(const std::string& path) {
  constexpr uint64_t kMost = 64 << 20;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return nlohmann::ordered_json::object();
  try {
    return read_json<nlohmann::ordered_json>(path, kMost);
  } catch (const Error& error) {
    spdlog::warn("{}: made anew", error.what());
    return nlohmann::ordered_json::object();
  }
}

}  // namespace kvcc::cli
