#include "calib/model/memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "formats/core/error.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/// The first word of a file as a number; nullopt for "max" and where there is no such file.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

/// The number after `name` in a file of lines "name number"; 0 when it isn't there.
uint64_t field_in(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return 0;
}

/// What a control group's folder leaves; its page cache that can be dropped counts as free.
uint64_t left_in(const std::string& folder, const char* limit, const char* usage, const char* cache) {
  const std::optional<uint64_t> most = number_in(folder + "/" + limit);
  if (!most) return kNoLimit;
  return minus(*most, minus(number_in(folder + "/" + usage).value_or(0), field_in(folder + "/memory.stat", cache)));
}

/// The least that `group` and the groups above it leave. Inside a container the path may be that of the host: then only
/// the mounted root is there.
uint64_t left_in_groups(const std::string& mount, std::string group, const char* limit, const char* usage,
                        const char* cache) {
  uint64_t left = left_in(mount, limit, usage, cache);
  while (group.size() > 1) {
    left = std::min(left, left_in(mount + group, limit, usage, cache));
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return left;
}

uint64_t left_in_control_groups(const std::string& root) {
  uint64_t left = kNoLimit;
  std::ifstream file(root + "/proc/self/cgroup");  // "0::/path" (v2), "5:memory:/path" (v1)
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    bool memory = second == first + 1;  // none named: v2
    const bool unified = memory;
    for (std::string name; std::getline(controllers, name, ',');) memory = memory || name == "memory";
    if (!memory) continue;
    const std::string group = line.substr(second + 1);
    if (unified) {
      left = std::min(left,
                      left_in_groups(root + "/sys/fs/cgroup", group, "memory.max", "memory.current", "inactive_file"));
    } else {
      left = std::min(left, left_in_groups(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                                           "memory.usage_in_bytes", "total_inactive_file"));
    }
  }
  return left;
}

}  // namespace

uint64_t available_memory(const std::string& root) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t size = 0, resident = 0, shared = 0;  // pages of this process
  std::ifstream(root + "/proc/self/statm") >> size >> resident >> shared;
  uint64_t left = field_in(root + "/proc/meminfo", "MemAvailable:") * 1024;
  if (left == 0) left = static_cast<uint64_t>(std::max(sysconf(_SC_AVPHYS_PAGES), 0L)) * page;
  left = std::min(left, left_in_control_groups(root));
  rlimit addresses{};
  if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY) {
    left = std::min(left, minus(addresses.rlim_cur, size * page));
  }
  return left + minus(resident, shared) * page;
}

uint64_t memory_option(const std::string& text) {
  if (text.empty()) return 0;
  const uint64_t bytes = parse_bytes(text);
  if (bytes == 0) throw Error(ErrorKind::usage, "--max-memory " + text, "no memory at all", "such as 8GiB");
  return bytes;
}

void require_memory(const std::string& place, uint64_t needed, uint64_t limit, const std::string& option,
                    const std::string& hint) {
  if (needed <= limit) return;
  throw Error(ErrorKind::resource, place, "needs about " + human_bytes(needed) + " of memory",
              "at most " + human_bytes(limit) + (option.empty() ? ", which is what there is" : " (" + option + ")"),
              hint);
}

void reuse_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kLargestThreshold = 32 << 20;  // the most that glibc takes
  mallopt(M_MMAP_THRESHOLD, kLargestThreshold);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

void return_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
#endif
}

}  // namespace kvcc
