// Parity and times of the kernels on one GPU, or in the emulator; run.sh builds this and passes its options on.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tests/gpu/bench.h"
#include "tests/gpu/parity.h"
#include "tests/gpu/report.h"

namespace kvcc::gpu {
namespace {

struct Options {
  bool quick = false, list = false;
  std::string json, only;
  BenchOptions bench;
};

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "%s (tests/gpu/run.sh --help)\n", what.c_str());
  std::exit(2);
}

int positive(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1 || value > 1 << 20) {
    refuse(option + ": " + text + "; wanted a number from 1 to 1048576");
  }
  return static_cast<int>(value);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string option = arguments[i];
    if (option == "--quick" || option == "--list") {
      (option == "--quick" ? options.quick : options.list) = true;
      continue;
    }
    if (i + 1 == count) refuse(option + ": an unknown option, or one without its value");
    const std::string value = arguments[++i];
    if (option == "--json") {
      options.json = value;
    } else if (option == "--only") {
      options.only = value;
    } else if (option == "--seconds") {
      options.bench.seconds = positive(option, value);
    } else if (option == "--tokens") {
      for (size_t at = 0; at <= value.size();) {
        const size_t comma = std::min(value.find(',', at), value.size());
        options.bench.tokens.push_back(positive(option, value.substr(at, comma - at)));
        if (options.bench.tokens.back() % 64 != 0) refuse(option + ": " + value + "; wanted multiples of 64");
        at = comma + 1;
      }
    } else {
      refuse(option + ": an unknown option");
    }
  }
  return options;
}

/// Runs all checks; prints those that fail.
Parity run_parity(Launcher& launcher, const std::vector<Checks>& all) {
  Parity parity;
  for (const Checks& checks : all) {
    for (const Check& check : checks.checks) {
      ++parity.total;
      if (launcher.device().name.empty()) {
        ++parity.skipped;
        continue;
      }
      std::string off;
      try {
        off = check.run(launcher);
      } catch (const std::exception& error) {
        off = error.what();
      }
      if (off.empty()) {
        ++parity.passed;
        continue;
      }
      ++parity.failed;
      parity.failures.push_back(checks.name + ": " + check.name + ": " + off);
      std::printf("FAILED %s\n", parity.failures.back().c_str());
    }
    checks.done();
  }
  return parity;
}

int run(const Options& options) {
  std::vector<Checks> all = baseline_checks();
  for (Checks& checks : parity_checks()) all.push_back(std::move(checks));
  std::erase_if(all, [&](const Checks& c) { return c.name.find(options.only) == std::string::npos; });
  if (all.empty()) refuse("--only: no case has \"" + options.only + "\" in its name");
  if (options.list) {
    for (const Checks& checks : all) {
      for (const Check& check : checks.checks) std::printf("%s: %s\n", checks.name.c_str(), check.name.c_str());
    }
    return 0;
  }
  const auto launcher = make_launcher();
  const Device& device = launcher->device();
  if (device.name.empty()) {
    std::printf("no device: %s\n", device.why.c_str());
  } else {
    std::printf("device: %s, driver %s, %d multiprocessors\n", device.name.c_str(), device.driver.c_str(),
                device.multiprocessors);
  }
  const Parity parity = run_parity(*launcher, all);
  std::printf("parity: %d tests, %d passed, %d failed, %d skipped\n", parity.total, parity.passed, parity.failed,
              parity.skipped);
  Bench bench;
  bool timed = true;
  if (!options.quick && !device.name.empty() && parity.failed == 0) {
    BenchOptions wanted = options.bench;
    if (wanted.tokens.empty()) {
      wanted.tokens = !device.emulated ? std::vector<int>{2048, 8192, 32768, 131072} : std::vector<int>{192};
    }
    try {
      bench = run_bench(*launcher, wanted);
      print_table(bench);
    } catch (const std::exception& error) {
      std::printf("FAILED times: %s\n", error.what());
      timed = false;
    }
  } else if (parity.failed > 0) {
    std::printf("times: not taken of kernels that fail\n");
  }
  if (!options.json.empty()) write_json(options.json, device, parity, bench);
  return parity.failed > 0 || !timed ? 1 : 0;
}

}  // namespace
}  // namespace kvcc::gpu

int main(int count, char** arguments) {
  try {
    return kvcc::gpu::run(kvcc::gpu::parse(count, arguments));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
