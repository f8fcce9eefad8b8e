#include "calib/cli/ranked.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>

namespace kvcc::cli {

RankedRun start_ranks(const std::string& verb, const CLI::App& app, const Common& common) {
  RankedRun run{read_launch(), nullptr, common};
  if (!run.launch.note.empty()) spdlog::info("{}", run.launch.note);
  if (run.launch.alone()) return run;
  spdlog::set_pattern(fmt::format("kvcc {} rank {}: %^%l%$: %v", verb, run.launch.rank));
  if (app.count("--threads") == 0) run.common.threads = threads_of_rank(run.launch, common.threads);
  if (!run.first()) {
    run.common.quiet = true;
    if (common.verbosity == 0) spdlog::set_level(spdlog::level::warn);
  }
  if (common.device.starts_with("cuda") && run.launch.local_size > 1) {  // before anything asks CUDA
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    ::setenv("CUDA_VISIBLE_DEVICES", gpu_of_rank(run.launch, visible == nullptr ? "" : visible).c_str(), 1);
  }
  if (common.dry_run) return run;
  RankSettings settings = rank_settings(verb);
  settings.give_up = [json = common.json](const Error& error) {
    spdlog::error("{} ({})", printable(error.place(), true), error.hint());
    if (json)
      print_json({{"error", {{"code", error.exit_code()}, {"message", error.place()}, {"hint", error.hint()}}}});
    std::fflush(nullptr);
    std::_Exit(error.exit_code());
  };
  spdlog::info("rank 0 of {} ({}), meeting at {}:{}", run.launch.size, run.launch.by, run.launch.address,
               run.launch.port);
  run.ranks = join_ranks(run.launch, settings);
  return run;
}

}  // namespace kvcc::cli
