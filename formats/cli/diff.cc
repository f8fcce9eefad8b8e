// kvcc diff: what changed between two artifacts. Exit code 0 when they are equal, 6 when not.
#include <fmt/format.h>

#include "calib/report/codebook_diff.h"
#include "formats/cli/program.h"
#include "formats/cli/terminal.h"
#include "formats/core/error.h"

int main(int argc, char** argv) {
  std::string a, b;
  int top = 10;
  const auto define = [&](CLI::App& app) {
    app.add_option("A", a, "A .kvcb")->required();
    app.add_option("B", b, "Another")->required();
    app.add_option("--top", top, "Heads that changed most; 0: all that changed (default 10)")
        ->check(CLI::Range(0, 1 << 20).description(""));
  };
  return kvcc::cli::run(
      argc, argv, "diff", "What changed between two artifacts; exit code 0 when they are equal, 6 when not",
      kvcc::cli::kJson, define, [&](const kvcc::cli::Common& common) {
        const kvcc::CodebookDifference difference = diff_codebooks(kvcc::read_codebook(a), kvcc::read_codebook(b));
        if (common.json) {
          nlohmann::ordered_json document = {{"a", a}, {"b", b}};
          const nlohmann::ordered_json content = diff_json(difference);
          for (const auto& [key, value] : content.items()) document[key] = value;
          kvcc::cli::print_json(document);
        } else {
          const kvcc::TextStyle style{kvcc::cli::stdout_columns(), kvcc::cli::shows_unicode(),
                                      kvcc::cli::shows_colors()};
          fmt::print("{}", diff_text(difference, top, style));
        }
        return difference.equal ? 0 : static_cast<int>(kvcc::ErrorKind::differ);
      });
}
