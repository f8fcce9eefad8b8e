#include "codegen/build/jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

#include "formats/core/error.h"

namespace kvcc::codegen {
namespace {

/// Runs the jobs on `threads` threads. The error of the first failing job in order is thrown, whichever came first.
void run_jobs(std::vector<Job>& jobs, int threads, const std::function<void(Job&)>& work,
              const std::function<void()>& progress) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<std::exception_ptr> errors(jobs.size());
  const auto worker = [&] {
    for (size_t i = next++; i < jobs.size() && !stop; i = next++) {
      try {
        check_interrupt();
        work(jobs[i]);
      } catch (...) {
        errors[i] = std::current_exception();
        stop = true;
      }
      const std::lock_guard lock(mutex);
      if (progress) progress();
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int t = 1; t < std::min<int>(threads, static_cast<int>(jobs.size())); ++t) pool.emplace_back(worker);
  } catch (const std::system_error&) {  // no more threads to be had: fewer do the work
  }
  worker();
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

std::vector<Job> build(const Plan& plan, const std::vector<std::string>& units, const Nvcc& nvcc,
                       const CompileOptions& options) {
  std::vector<Job> ptx, cubins, jobs;
  for (size_t k = 0; k < units.size(); ++k) {
    ptx.push_back({k, ptx_arch(options.archs), {}});
    for (const std::string& arch : options.archs) cubins.push_back({k, arch, {}});
  }
  run_jobs(
      ptx, options.threads,
      [&](Job& job) {
        job.result = compile_ptx(nvcc, plan.kernels[job.kernel].name, units[job.kernel],
                                 header_closure({units[job.kernel]}), job.arch, options.cache_folder);
      },
      options.progress);
  run_jobs(
      cubins, options.threads,
      [&](Job& job) {
        const Compiled& from = ptx[job.kernel].result;
        job.result = assemble(nvcc, plan.kernels[job.kernel].name, from.binary, job.arch, options.cache_folder);
        job.result.dynamic_shared = from.dynamic_shared;
      },
      options.progress);
  for (size_t k = 0; k < units.size(); ++k) {
    const size_t each = options.archs.size();
    std::move(cubins.begin() + k * each, cubins.begin() + (k + 1) * each, std::back_inserter(jobs));
    jobs.push_back(std::move(ptx[k]));
  }
  return jobs;
}

}  // namespace kvcc::codegen
