// How torchrun, mpirun or srun started this process: its rank, how many there are, and where they meet.
#pragma once

#include <functional>
#include <string>

namespace kvcc {

struct Launch {
  int rank = 0, size = 1;
  int local_size = 1;   ///< ranks on this machine, where the launcher tells; else 1
  int local_rank = 0;   ///< among them
  std::string address;  ///< name or IP address of the machine of rank 0; "" for one rank
  int port = 29500;     ///< TCP, on that machine
  std::string by;       ///< "torchrun", "mpirun", "srun" or "environment"; "" for one process alone
  /// The store at address:port is served by the launcher (torchrun's agent), not by rank 0.
  bool served = false;
  std::string attempt;  ///< "" or torchrun's count of restarts
  /// What a user may want to know, such as that a Slurm job's tasks are not used; "".
  std::string note;
  bool alone() const { return size == 1; }
  bool first() const { return rank == 0; }
};

/// Reads RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun, or set by hand); else Open MPI's
/// OMPI_COMM_WORLD_*; else, in a step that srun started, SLURM_PROCID, SLURM_NTASKS, SLURM_STEP_NODELIST or
/// SLURM_JOB_NODELIST and SLURM_JOB_ID (the port); else PMI_RANK and PMI_SIZE (MPICH, Intel MPI). MASTER_ADDR and
/// MASTER_PORT go before what those say. `get` gives a variable, "" when unset. Throws Error(usage) naming the
/// variable that is missing or wrong.
Launch read_launch(const std::function<std::string(const std::string&)>& get);
/// Of this process.
Launch read_launch();

/// The first host of a Slurm node list: "node007" of "node[007-010,12],gpu1". Throws Error(usage).
std::string first_host(const std::string& node_list);

/// Threads for one of the ranks of a machine where none were asked for: its cores, divided among the machine's ranks
/// unless the launcher has bound each to cores of its own.
int threads_of_rank(const Launch& launch, int available_cores);

/// CUDA_VISIBLE_DEVICES for one of the ranks of a machine, from what it is ("" when unset): one GPU each, in order;
/// unchanged where the launcher has left one.
std::string gpu_of_rank(const Launch& launch, const std::string& visible);

}  // namespace kvcc
