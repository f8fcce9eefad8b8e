#include "calib/ranks/launch.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <vector>

#include "formats/core/error.h"

namespace kvcc {
namespace {

using Get = std::function<std::string(const std::string&)>;

std::optional<int> number(const Get& get, const std::string& name, int least, int most) {
  const std::string text = get(name);
  if (text.empty()) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorKind::usage, name, "'" + text + "'",
                "a number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

constexpr int kMostRanks = 1 << 20;

/// Rank and size by the names of one launcher; false when it has set neither.
bool read_pair(const Get& get, const std::string& rank, const std::string& size, Launch& launch) {
  const std::optional<int> r = number(get, rank, 0, kMostRanks - 1), n = number(get, size, 1, kMostRanks);
  if (!r && !n) return false;
  if (!r || !n) {
    throw Error(ErrorKind::usage, r ? size : rank, "not set, but " + (r ? rank : size) + " is", "both or neither",
                "for a run in one process: unset " + (r ? rank : size));
  }
  if (*r >= *n) {
    throw Error(ErrorKind::usage, rank, std::to_string(*r),
                "0 to " + size + " - 1, which is " + std::to_string(*n - 1));
  }
  launch.rank = *r;
  launch.size = *n;
  return true;
}

/// MASTER_ADDR and MASTER_PORT, or what the launcher knows.
void read_meeting(const Get& get, Launch& launch, const std::string& known, const std::string& hint) {
  launch.port = number(get, "MASTER_PORT", 1, 65535).value_or(launch.port);
  if (launch.alone()) return;
  launch.address = get("MASTER_ADDR");
  if (launch.address.empty()) launch.address = known;
  if (launch.address.empty()) {
    throw Error(ErrorKind::usage, "MASTER_ADDR",
                "not set, for rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.size),
                "the name or address of rank 0's machine", hint);
  }
}

}  // namespace

std::string first_host(const std::string& list) {
  const auto wrong = [&] {
    return Error(ErrorKind::usage, "SLURM_JOB_NODELIST", "'" + list + "'", "a list such as node[007-010,12],gpu1");
  };
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t begin = i + 1, end = list.find(']', begin), stop = list.find_first_not_of("0123456789", begin);
    if (end == std::string::npos || stop == begin) throw wrong();
    host += list.substr(begin, stop - begin);
    i = end;
  }
  if (host.empty() || host.find(']') != std::string::npos) throw wrong();
  return host;
}

Launch read_launch(const Get& get) {
  Launch launch;
  if (read_pair(get, "RANK", "WORLD_SIZE", launch)) {
    launch.by = get("TORCHELASTIC_RUN_ID").empty() ? "environment" : "torchrun";
    launch.local_size = number(get, "LOCAL_WORLD_SIZE", 1, kMostRanks).value_or(1);
    launch.local_rank = number(get, "LOCAL_RANK", 0, kMostRanks - 1).value_or(0);
    launch.served = get("TORCHELASTIC_USE_AGENT_STORE") == "True";
    launch.attempt = get("TORCHELASTIC_RESTART_COUNT");
    read_meeting(get, launch, "", "torchrun sets it; by hand: the same on all ranks, with MASTER_PORT");
  } else if (read_pair(get, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", launch)) {
    launch.by = "mpirun";
    launch.local_size = number(get, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks).value_or(1);
    launch.local_rank = number(get, "OMPI_COMM_WORLD_LOCAL_RANK", 0, kMostRanks - 1).value_or(0);
    read_meeting(get, launch, launch.local_size == launch.size ? "127.0.0.1" : "",
                 "mpirun -x MASTER_ADDR=HOST, the first of its hosts");
  } else if (!get("SLURM_STEP_ID").empty() || !get("SLURM_STEP_NODELIST").empty()) {
    if (!read_pair(get, "SLURM_PROCID", "SLURM_NTASKS", launch)) return launch;
    launch.by = "srun";
    const std::string nodes = get(get("SLURM_STEP_NODELIST").empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST");
    // Jobs that share a machine meet at ports of their own; below the ports that systems give to clients.
    constexpr int kPorts = 3000;
    launch.port = 29500 + number(get, "SLURM_JOB_ID", 0, 2147483647).value_or(0) % kPorts;
    read_meeting(get, launch, nodes.empty() ? "" : first_host(nodes), "or SLURM_JOB_NODELIST, which srun sets");
    const std::string tasks = get("SLURM_STEP_TASKS_PER_NODE");  // "4(x2)", "4,3"
    int value = 0;
    std::from_chars(tasks.data(), tasks.data() + tasks.size(), value);
    launch.local_size = std::clamp(value, 1, launch.size);
    launch.local_rank = number(get, "SLURM_LOCALID", 0, kMostRanks - 1).value_or(0);
  } else if (read_pair(get, "PMI_RANK", "PMI_SIZE", launch)) {
    launch.by = "mpirun";
    launch.local_size = number(get, "MPI_LOCALNRANKS", 1, kMostRanks).value_or(1);
    launch.local_rank = number(get, "MPI_LOCALRANKID", 0, kMostRanks - 1).value_or(0);
    read_meeting(get, launch, launch.local_size == launch.size ? "127.0.0.1" : "",
                 "mpiexec -genv MASTER_ADDR HOST, the first of its hosts");
  } else if (number(get, "SLURM_NTASKS", 1, kMostRanks).value_or(1) > 1) {
    launch.note = "this Slurm job has " + get("SLURM_NTASKS") + " tasks, but was not started by srun: runs alone";
  }
  return launch;
}

Launch read_launch() {
  return read_launch([](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  });
}

int threads_of_rank(const Launch& launch, int available_cores) {
  const bool bound = available_cores < ::sysconf(_SC_NPROCESSORS_ONLN);
  return bound ? available_cores : std::max(1, available_cores / launch.local_size);
}

std::string gpu_of_rank(const Launch& launch, const std::string& visible) {
  if (visible.empty()) return std::to_string(launch.local_rank);
  std::vector<std::string> gpus{""};
  for (const char c : visible) {
    if (c == ',') {
      gpus.emplace_back();
    } else {
      gpus.back() += c;
    }
  }
  return gpus[static_cast<size_t>(launch.local_rank) % gpus.size()];
}

}  // namespace kvcc
