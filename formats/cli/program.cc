#include "formats/cli/program.h"

#include <fmt/format.h>
#include <sched.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>
#include <system_error>
#include <vector>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"

namespace kvcc::cli {
namespace {

struct Failure {
  int code = 1;
  std::string message, hint;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

/// "kvcc-fit" was run as "kvcc fit".
std::string resume_command(int argc, char** argv, const std::string& verb) {
  std::string command = "kvcc " + verb;
  bool resumes = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    resumes = resumes || word == "--resume";
    if (word == "--force") continue;  // starting over would throw away what was kept
    const bool plain = !word.empty() && word.find_first_of(" \t\n\"'\\$`&|;<>()*?[]{}~#!") == std::string::npos;
    command += ' ';
    if (plain) {
      command += word;
    } else {
      command += '\'';
      for (const char c : word) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
      command += '\'';
    }
  }
  return resumes ? command : command + " --resume";
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// CLI11 reports what is missing before what it does not know; the misspelt option is the better message.
std::optional<Failure> misspelt_option(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> names = option_names(app);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(0, word.find('='));
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string near = nearest(name, names);
    return Failure{2, fmt::format("unknown option '{}'", name),
                   near.empty() ? "--help lists the options" : fmt::format("did you mean '{}'?", near)};
  }
  return std::nullopt;
}

/// -o "", which is what `-o "$NAME"` gives where NAME is not set: said before the work, not when its file is named.
void check_output(const CLI::App& app) {
  const CLI::Option* output = app.get_option_no_throw("--output");
  if (output == nullptr || output->count() == 0 || !output->results().back().empty()) return;
  throw Error(ErrorKind::usage, "-o", "an empty name", "a name for the result");
}

Failure usage_failure(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  if (const auto failure = misspelt_option(app, argc, argv)) return *failure;
  return {2, error.what(), "--help lists the options"};
}

/// Must be called inside a catch block.
Failure failure_of_current_exception() {
  try {
    throw;
  } catch (const Error& error) {
    std::string message = error.place();
    if (!error.found().empty()) message += (message.empty() ? "" : ": ") + error.found();
    if (!error.wanted().empty()) message += "; wanted " + error.wanted();
    return {error.exit_code(), message, error.hint()};
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ErrorKind::resource), "out of memory", "lower the sizes given, or use fewer --threads"};
  } catch (const std::system_error& error) {
    if (error.code() ==
        std::errc::resource_unavailable_try_again) {  // a thread's stack had no room, or a limit was met
      return {static_cast<int>(ErrorKind::resource), "no memory for another thread, or too many threads",
              "use fewer --threads"};
    }
    const bool full = error.code() == std::errc::no_space_on_device || error.code() == std::errc::not_enough_memory;
    return {static_cast<int>(full ? ErrorKind::resource : ErrorKind::failed), error.what(), ""};
  } catch (const std::exception& error) {
    return {static_cast<int>(ErrorKind::failed), error.what(), ""};
  }
}

int report(const Failure& failure, bool json) {
  spdlog::error("{}{}", printable(failure.message, true),
                failure.hint.empty() ? "" : fmt::format(" ({})", printable(failure.hint, true)));
  if (json) {
    nlohmann::ordered_json document;
    document["error"] = {{"code", failure.code}, {"message", failure.message}, {"hint", failure.hint}};
    print_json(document);
  }
  std::fflush(stdout);
  return failure.code;
}

void start_logging(const std::string& verb) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  if (!environment("NO_COLOR").empty()) sink->set_color_mode(spdlog::color_mode::never);
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(verb.empty() ? "kvcc" : "kvcc " + verb, sink));
  spdlog::set_pattern("%n: %^%l%$: %v");
}

void add_common_options(CLI::App& app, unsigned common, Common& values) {
  app.add_flag("-q,--quiet", values.quiet, "Only warnings and errors, no progress");
  app.add_flag("-v,--verbose", values.verbosity, "More log lines; twice: still more");
  if (common & kJson) app.add_flag("--json", values.json, "One JSON document on stdout and nothing else");
  if (common & kResume) app.add_flag("--resume", values.resume, "Keep what an earlier run has finished");
  if (common & kForce) app.add_flag("--force", values.force, "Start over, replacing what is there");
  if (common & kDryRun) app.add_flag("--dry-run", values.dry_run, "Print the plan and do nothing");
  if (common & kThreads) {
    app.add_option("--threads", values.threads, "Threads; 0: one per core available (default 0)")
        ->check(CLI::Range(0, 4096).description(""));
  }
  if (common & kDevice) {
    app.add_option("--device", values.device, "Where the model runs: cpu or cuda (default cpu)")
        ->check(CLI::IsMember({"cpu", "cuda"}).description(""));
  }
  if (common & kCacheDir) {
    app.add_option("--cache-dir", values.cache_dir,
                   "Folder of fetched data and compiled kernels (default $XDG_CACHE_HOME/kvcc)");
  }
}

}  // namespace

int run(int argc, char** argv, const std::string& verb, const std::string& summary, unsigned common,
        const std::function<void(CLI::App&)>& define, const std::function<int(const Common&)>& body) {
  start_logging(verb);
  install_interrupt_handlers();
  Common values;
  // Known before parsing, so that errors of parsing follow it too.
  const bool json =
      (common & kJson) && std::any_of(argv + 1, argv + argc, [](std::string_view word) { return word == "--json"; });
  catch_truncated_maps(verb.empty() ? "kvcc" : "kvcc " + verb, json);
  CLI::App app(summary, verb.empty() ? "kvcc" : "kvcc " + verb);
  app.set_version_flag("--version", std::string("kvcc ") + KVCC_VERSION, "Print the version");
  app.get_formatter()->column_width(34);
  try {
    define(app);
    add_common_options(app, common, values);
    app.parse(argc, argv);
    check_output(app);
  } catch (const CLI::Success& done) {  // --help, --version
    app.exit(done);
    return std::fflush(stdout) == 0 ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    return report(usage_failure(app, error, argc, argv), json);
  } catch (...) {
    return report(failure_of_current_exception(), json);
  }
  if (values.threads == 0) values.threads = available_cores();
  if (values.cache_dir.empty()) values.cache_dir = default_cache_folder();
  spdlog::set_level(values.quiet            ? spdlog::level::warn
                    : values.verbosity >= 2 ? spdlog::level::trace
                    : values.verbosity == 1 ? spdlog::level::debug
                                            : spdlog::level::info);
  try {
    const int code = body(values);
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
      throw Error(ErrorKind::resource, "stdout", "cannot be written");
    }
    return code;
  } catch (const Interrupted& interrupted) {
    std::string hint;
    if (common & kResume) hint = "to go on: " + resume_command(argc, argv, verb);
    return report({interrupted.exit_code(), "interrupted", hint}, json);
  } catch (...) {
    return report(failure_of_current_exception(), json);
  }
}

std::string printable(std::string_view text, bool lines) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= 0x20 && byte != 0x7f) || (lines && (c == '\n' || c == '\t'));
    shown += plain ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return shown;
}

void print_json(const nlohmann::ordered_json& document) {
  nlohmann::ordered_json whole;
  whole["schema_version"] = 1;
  for (const auto& [key, value] : document.items()) whole[key] = value;
  // Paths may hold bytes that are not UTF-8: a replacement character is better than no document.
  const std::string text = whole.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  // Columns are counted in code points: a byte that does not continue a UTF-8 sequence starts one.
  const auto width = [](const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
  };
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const std::string padding(widths[i] - width(rows[r][i]), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? rows[r][i] + padding : padding + rows[r][i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
    if (r == 0 && rows.size() > 1) {
      for (size_t i = 0; i < widths.size(); ++i) text += (i > 0 ? "  " : "") + std::string(widths[i], '-');
      text += "\n";
    }
  }
  return text;
}

}  // namespace kvcc::cli
