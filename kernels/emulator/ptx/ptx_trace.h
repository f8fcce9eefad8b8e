// Exact counts of a translated unit (ptx_to_cpp.py --trace): how often each instruction runs, and what its memory
// requests cost: of shared memory the wavefronts (bank conflicts), of global memory the 32-byte sectors.
// A request is what a warp asks with one instruction. Lanes run one after another here, so the k-th execution of an
// instruction by each lane counts as one request: exact where the lanes of a warp stay together.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>
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
  Instruction* instruction = nullptr;
  Space space = Space::shared;
  int bytes = 0, lanes = 0;
  std::array<const uint8_t*, kLanes> address{};
};

struct State {
  std::vector<Table> tables;
  std::map<std::array<uint64_t, 3>, std::vector<uint32_t>> counts;  ///< (table, block, thread): by instruction
  std::vector<std::string> names;
  std::vector<Region> regions;
  std::map<std::array<uint64_t, 3>, uint64_t> turns;    ///< (instruction, block, thread) to executions
  std::map<std::array<uint64_t, 4>, Request> requests;  ///< (instruction, block, warp, turn)
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

inline uint64_t block_number() {
  const emulator::Index b = emulator::block_index();
  return (uint64_t{b.z} << 20 | b.y) << 20 | b.x;
}

/// The calling thread's executions of each instruction of a table.
inline uint32_t* counts(const Instruction* table, size_t count) {
  auto& own = state().counts[{reinterpret_cast<uint64_t>(table), block_number(), emulator::thread_index()}];
  own.resize(count);
  return own.data();
}

/// Adds the threads' counts to the tables, and forgets them.
inline void sum_counts() {
  State& s = state();
  for (const Table& table : s.tables) {
    std::map<std::array<uint64_t, 2>, std::vector<uint32_t>> most;  // of each warp
    for (const auto& [key, own] : s.counts) {
      if (key[0] != reinterpret_cast<uint64_t>(table.instructions)) continue;
      auto& warp = most[{key[1], key[2] / kLanes}];
      warp.resize(table.count);
      for (size_t i = 0; i < table.count; ++i) {
        table.instructions[i].threads += own[i];
        warp[i] = std::max(warp[i], own[i]);
      }
    }
    for (const auto& [key, warp] : most) {
      for (size_t i = 0; i < table.count; ++i) table.instructions[i].issues += warp[i];
    }
  }
  s.counts.clear();
}

/// Wavefronts of a shared request: 32 banks of 4 bytes; requests of 8 and 16 bytes a lane are served by halves and
/// quarters of the warp. In each the busiest bank decides; lanes that ask for one word share it.
inline void count_shared(const Request& r) {
  const int parts = r.bytes <= 4 ? 1 : r.bytes / 4, width = kLanes / parts;
  for (int part = 0; part < parts; ++part) {
    std::array<std::vector<uintptr_t>, 32> banks;
    bool any = false;
    for (int lane = part * width; lane < (part + 1) * width; ++lane) {
      if (r.address[lane] == nullptr) continue;
      any = true;
      const uintptr_t first = reinterpret_cast<uintptr_t>(r.address[lane]) / 4;
      for (int w = 0; w < std::max(1, r.bytes / 4); ++w) banks[(first + w) % 32].push_back(first + w);
    }
    size_t busiest = 0;
    for (auto& words : banks) {
      std::sort(words.begin(), words.end());
      busiest = std::max<size_t>(busiest, std::unique(words.begin(), words.end()) - words.begin());
    }
    r.instruction->wavefronts += busiest;
    r.instruction->least += any;
  }
}

inline void count_global(const Request& r) {
  std::vector<uintptr_t> sectors, bytes;
  for (const uint8_t* address : r.address) {
    for (int i = 0; address != nullptr && i < r.bytes; ++i) bytes.push_back(reinterpret_cast<uintptr_t>(address) + i);
  }
  std::sort(bytes.begin(), bytes.end());
  bytes.erase(std::unique(bytes.begin(), bytes.end()), bytes.end());
  for (const uintptr_t byte : bytes) {
    if (sectors.empty() || sectors.back() != byte / 32) sectors.push_back(byte / 32);
  }
  Instruction& i = *r.instruction;
  i.sectors += sectors.size();
  i.distinct += bytes.size();
  for (const Region& region : state().regions) {
    const auto inside = std::count_if(bytes.begin(), bytes.end(), [&](uintptr_t byte) {
      return byte - reinterpret_cast<uintptr_t>(region.begin) < region.bytes;
    });
    if (inside == 0) continue;
    i.regions[region.name] += inside;
    i.region_sectors[region.name] += sectors.size();
  }
}

inline void finish(const Request& r) {
  ++r.instruction->requests;
  if (r.space == Space::shared) {
    count_shared(r);
  } else {
    count_global(r);
  }
}

inline void request(Instruction& instruction, Space space, const uint8_t* address, int bytes) {
  State& s = state();
  const uint64_t id = reinterpret_cast<uint64_t>(&instruction), block = block_number();
  const uint32_t thread = emulator::thread_index();
  const uint64_t turn = s.turns[{id, block, thread}]++;
  const std::array<uint64_t, 4> key = {id, block, thread / kLanes, turn};
  Request& r = s.requests[key];
  r.instruction = &instruction;
  r.space = space;
  r.bytes = bytes;
  r.address[thread % kLanes] = address;
  instruction.bytes += bytes;
  if (++r.lanes == kLanes) {
    finish(r);
    s.requests.erase(key);
  }
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
  for (const auto& [key, r] : state().requests) finish(r);
  state().requests.clear();
  sum_counts();
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
  std::fputs("}\n", out);
  std::fclose(out);
}

}  // namespace kvcc::ptx::trace
