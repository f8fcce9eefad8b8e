// Exact counts of a translated unit (ptx_to_cpp.py --trace): how often each instruction runs, and what its memory
// requests cost: of shared memory the wavefronts (bank conflicts), of global memory the 32-byte sectors.
// A request is what a warp asks with one instruction. Lanes run one after another here, so the k-th execution of an
// instruction by each lane counts as one request: exact where the lanes of a warp stay together.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernels/emulator/ptx/ptx_runtime.h"

namespace kvcc::ptx::trace {

constexpr int kLanes = 32;
enum class Space { shared, global };

/// An instruction of the PTX and what it has cost so far.
struct Instruction {
  int line;
  const char* opcode;
  const char* text;
  uint64_t threads = 0;               ///< executions
  uint64_t issues = 0;                ///< of warps: in each the lane that runs it most often counts
  uint64_t requests = 0;              ///< of warps
  uint64_t bytes = 0;                 ///< asked for, summed over threads
  uint64_t wavefronts = 0;            ///< shared memory
  uint64_t least = 0;                 ///< wavefronts without any conflict
  uint64_t sectors = 0;               ///< global memory, of requests
  uint64_t distinct = 0;              ///< bytes of the requests' sectors that a lane asks for
  std::map<int, uint64_t> regions{};  ///< bytes by region; those outside are not listed
  std::map<int, uint64_t> region_sectors{};
};

struct Region {
  const uint8_t* begin;
  uint64_t bytes;
  int name;
};
struct Table {
  const char* entry;
  Instruction* instructions;
  size_t count;
};

/// A request that not all lanes have joined yet.
struct Request {
  Space space = Space::shared;
  int bytes = 0, lanes = 0;
  std::array<const uint8_t*, kLanes> address{};
};

/// What the threads of one warp have done with a table's instructions.
struct Warp {
  std::vector<std::array<uint32_t, kLanes>> executions;  ///< by instruction and lane
  std::vector<std::deque<Request>> open;                 ///< by instruction; the first is the oldest
  std::vector<uint32_t> finished;                        ///< requests before it
};

struct State {
  std::vector<Table> tables;
  std::vector<std::string> names;
  std::vector<Region> regions;
  std::map<int, std::unordered_set<uintptr_t>> touched;  ///< region to its sectors that were asked for, each once
  std::map<std::array<uint64_t, 3>, Warp> warps;         ///< (table, block, warp)
};
inline State& state() {
  static State s;
  return s;
}
struct Registration {
  Registration(const char* entry, Instruction* instructions, size_t count) {
    state().tables.push_back({entry, instructions, count});
  }
};

/// Wavefronts of a shared request: 32 banks of 4 bytes; requests of 8 and 16 bytes a lane are served by halves and
/// quarters of the warp. In each the busiest bank decides; lanes that ask for one word share it.
inline void count_shared(Instruction& instruction, const Request& r) {
  const int parts = r.bytes <= 4 ? 1 : r.bytes / 4, width = kLanes / parts;
  for (int part = 0; part < parts; ++part) {
    std::array<uintptr_t, kLanes * 4> words;
    size_t count = 0;
    for (int lane = part * width; lane < (part + 1) * width; ++lane) {
      if (r.address[lane] == nullptr) continue;
      for (int w = 0; w < parts; ++w) words[count++] = reinterpret_cast<uintptr_t>(r.address[lane]) / 4 + w;
    }
    std::sort(words.begin(), words.begin() + count);
    count = std::unique(words.begin(), words.begin() + count) - words.begin();
    std::array<uint64_t, 32> banks{};
    for (size_t i = 0; i < count; ++i) ++banks[words[i] % 32];
    instruction.wavefronts += *std::max_element(banks.begin(), banks.end());
    instruction.least += count > 0;
  }
}

inline void count_global(Instruction& i, const Request& r) {
  std::vector<uintptr_t> bytes, sectors;
  for (const uint8_t* address : r.address) {
    for (int k = 0; address != nullptr && k < r.bytes; ++k) bytes.push_back(reinterpret_cast<uintptr_t>(address) + k);
  }
  std::sort(bytes.begin(), bytes.end());
  bytes.erase(std::unique(bytes.begin(), bytes.end()), bytes.end());
  std::map<int, uint64_t> inside;
  for (const uintptr_t byte : bytes) {
    if (sectors.empty() || sectors.back() != byte / 32) sectors.push_back(byte / 32);
    for (const Region& region : state().regions) {
      if (byte - reinterpret_cast<uintptr_t>(region.begin) >= region.bytes) continue;
      ++inside[region.name];
      state().touched[region.name].insert(byte / 32);
    }
  }
  i.sectors += sectors.size();
  i.distinct += bytes.size();
  for (const auto& [name, count] : inside) {
    i.regions[name] += count;
    i.region_sectors[name] += sectors.size();
  }
}

inline void finish(Instruction& instruction, const Request& r) {
  ++instruction.requests;
  if (r.space == Space::shared) {
    count_shared(instruction, r);
  } else {
    count_global(instruction, r);
  }
}

/// The calling thread in one run of an entry.
class Thread {
 public:
  Thread(Instruction* table, size_t count) : table_(table), lane_(emulator::thread_index() % kLanes) {
    const emulator::Index b = emulator::block_index();
    const uint64_t block = (uint64_t{b.z} << 20 | b.y) << 20 | b.x;
    warp_ = &state().warps[{reinterpret_cast<uint64_t>(table), block, emulator::thread_index() / kLanes}];
    warp_->executions.resize(count);
    warp_->open.resize(count);
    warp_->finished.resize(count);
  }
  void count(size_t instruction) { ++warp_->executions[instruction][lane_]; }
  /// To be called before count() of the same instruction's next execution.
  void request(size_t instruction, Space space, const uint8_t* address, int bytes) {
    auto& open = warp_->open[instruction];
    // The k-th request of a lane: those that its guard kept from asking do not count.
    const size_t at = requests_[instruction]++ - warp_->finished[instruction];
    if (open.size() <= at) open.resize(at + 1);
    Request& r = open[at];
    r.space = space;
    r.bytes = bytes;
    r.address[lane_] = address;
    table_[instruction].bytes += bytes;
    ++r.lanes;
    while (!open.empty() && open.front().lanes == kLanes) {
      finish(table_[instruction], open.front());
      open.pop_front();
      ++warp_->finished[instruction];
    }
  }

 private:
  Instruction* table_;
  uint32_t lane_;
  Warp* warp_;
  std::map<size_t, uint32_t> requests_;
};

/// Adds what is left of the warps to the tables, and forgets them.
inline void settle() {
  State& s = state();
  for (auto& [key, warp] : s.warps) {
    auto* const table = reinterpret_cast<Instruction*>(key[0]);
    for (size_t i = 0; i < warp.executions.size(); ++i) {
      for (const Request& r : warp.open[i]) {
        if (r.lanes > 0) finish(table[i], r);
      }
      uint32_t most = 0;
      for (const uint32_t count : warp.executions[i]) {
        table[i].threads += count;
        most = std::max(most, count);
      }
      table[i].issues += most;
    }
  }
  s.warps.clear();
}

inline void write_counts(std::FILE* out, const char* name, const std::map<int, uint64_t>& counts) {
  std::fprintf(out, ", \"%s\": {", name);
  const char* comma = "";
  for (const auto& [region, count] : counts) {
    std::fprintf(out, "%s\"%s\": %llu", comma, state().names[region].c_str(), static_cast<unsigned long long>(count));
    comma = ", ";
  }
  std::fputc('}', out);
}

/// Says whose bytes of global memory the counts tell apart.
inline void add_region(const char* name, const void* begin, uint64_t bytes) {
  State& s = state();
  const auto at = std::find(s.names.begin(), s.names.end(), name);
  const int index = static_cast<int>(at - s.names.begin());
  if (at == s.names.end()) s.names.push_back(name);
  s.regions.push_back({static_cast<const uint8_t*>(begin), bytes, index});
}

/// {entry: [{line, opcode, text, threads, …}]}, those that ran. Throws nothing; a file that can't be written is left
/// out.
inline void write(const char* path) {
  settle();
  std::FILE* const out = std::fopen(path, "w");
  if (out == nullptr) return;
  const char* next_entry = "{";
  for (const Table& table : state().tables) {
    std::fprintf(out, "%s\"%s\": [", next_entry, table.entry);
    const char* comma = "";
    for (size_t k = 0; k < table.count; ++k) {
      const Instruction& i = table.instructions[k];
      std::fprintf(out,
                   "%s\n{\"line\": %d, \"opcode\": \"%s\", \"text\": \"%s\", \"threads\": %llu, \"issues\": %llu, "
                   "\"requests\": %llu, "
                   "\"bytes\": %llu, \"wavefronts\": %llu, \"least\": %llu, \"sectors\": %llu, \"distinct\": %llu",
                   comma, i.line, i.opcode, i.text, static_cast<unsigned long long>(i.threads),
                   static_cast<unsigned long long>(i.issues), static_cast<unsigned long long>(i.requests),
                   static_cast<unsigned long long>(i.bytes), static_cast<unsigned long long>(i.wavefronts),
                   static_cast<unsigned long long>(i.least), static_cast<unsigned long long>(i.sectors),
                   static_cast<unsigned long long>(i.distinct));
      write_counts(out, "regions", i.regions);
      write_counts(out, "region_sectors", i.region_sectors);
      std::fputc('}', out);
      comma = ",";
    }
    std::fputs("]", out);
    next_entry = ",\n";
  }
  std::map<int, uint64_t> touched;
  for (const auto& [region, sectors] : state().touched) touched[region] = sectors.size();
  write_counts(out, "touched", touched);
  std::fputs("}\n", out);
  std::fclose(out);
}

}  // namespace kvcc::ptx::trace
