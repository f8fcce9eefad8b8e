#include "codegen/build/jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

#include "formats/core/error.h"

namespace kvcc::codegen {

void run_jobs(size_t count, int threads, const std::function<void(size_t)>& work,
              const std::function<void()>& progress) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::vector<std::exception_ptr> errors(count);
  const auto worker = [&] {
    for (size_t i = next++; i < count && !stop; i = next++) {
      try {
        check_interrupt();
        work(i);
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
    for (int t = 1; t < std::min<int>(threads, static_cast<int>(count)); ++t) pool.emplace_back(worker);
  } catch (const std::system_error&) {  // no more threads to be had: fewer do the work
  }
  worker();
  for (std::thread& thread : pool) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::vector<Job> build(const Plan& plan, const Sources& sources, const Nvcc& nvcc, const CompileOptions& options) {
  const std::vector<std::string>& units = sources.units;
  std::vector<Job> ptx, cubins, jobs;
  for (size_t k = 0; k < units.size(); ++k) {
    if (plan.kernels[k].machine != Machine::gpu) continue;
    ptx.push_back({k, ptx_arch(options.archs), {}});
    for (const std::string& arch : options.archs) cubins.push_back({k, arch, {}});
  }
  const size_t each = options.archs.size();
  run_jobs(
      ptx.size(), options.threads,
      [&](size_t i) {
        const std::string& unit = units[ptx[i].kernel];
        ptx[i].result = compile_ptx(nvcc, plan.kernels[ptx[i].kernel].name, unit, header_closure(unit, sources.headers),
                                    ptx[i].arch, options.cache_folder);
      },
      options.progress);
  run_jobs(
      cubins.size(), options.threads,
      [&](size_t i) {
        Job& job = cubins[i];
        const Compiled& from = ptx[i / each].result;
        job.result = assemble(nvcc, plan.kernels[job.kernel].name, from.binary, job.arch, options.cache_folder);
        job.result.dynamic_shared = from.dynamic_shared;
      },
      options.progress);
  for (size_t i = 0; i < ptx.size(); ++i) {
    std::move(cubins.begin() + i * each, cubins.begin() + (i + 1) * each, std::back_inserter(jobs));
    jobs.push_back(std::move(ptx[i]));
  }
  return jobs;
}

Library build_library(const Plan& plan, const Sources& sources, const std::pair<std::string, std::string>& table,
                      const std::string& file, const Cxx& cxx, const CompileOptions& options) {
  std::vector<std::pair<std::string, std::string>> units = {table};  // name, text
  for (size_t k = 0; k < sources.units.size(); ++k) {
    if (plan.kernels[k].machine == Machine::cpu) units.emplace_back(plan.kernels[k].name, sources.units[k]);
  }
  std::vector<Built> objects(units.size());
  run_jobs(
      units.size(), options.threads,
      [&](size_t i) {
        objects[i] = compile_object(cxx, units[i].first, units[i].second,
                                    header_closure(units[i].second, sources.headers), options.cache_folder);
      },
      options.progress);
  Library library;
  std::vector<std::pair<std::string, std::string>> named;
  for (size_t i = 0; i < objects.size(); ++i) {
    (objects[i].cached ? library.cached : library.compiled) += 1;
    named.emplace_back(units[i].first + ".o", std::move(objects[i].binary));
  }
  run_jobs(
      1, 1,
      [&](size_t) {
        Built linked = link_library(cxx, file, named, options.cache_folder);
        (linked.cached ? library.cached : library.compiled) += 1;
        library.binary = std::move(linked.binary);
      },
      options.progress);
  library.instruction_sets = instruction_sets(library.binary, file);
  return library;
}

}  // namespace kvcc::codegen
