// Decode attention of one token, one layer, over the packed cache and over fp16 and f32 rows, on the same threads in
// one run: time, bytes read, share of the memory's bandwidth as measured in the same rounds, ratios. `--check` compares
// every contestant's result with the reference instead.
//
//   memory   copies of a layer that take 8 times the last-level cache together (a contestant's own), in a cycle
//   layers   as many copies as the model has layers, where those are fewer: a packed cache may then stay in the cache
//   cache    one layer over and over; left out where no contestant's fits the last-level cache
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/core/error.h"
#include "tests/bench/cpu_baseline.h"
#include "tests/bench/cpu_data.h"
#include "tests/bench/cpu_measure.h"
#include "tests/bench/cpu_steps.h"
#include "tests/bench/cpu_team.h"
#include "tests/bench/cpu_vectors.h"

namespace kvcc::bench {
namespace {

const Shape kShapes[] = {{"SmolLM2-135M", 30, 3, 64, 3, 1e5f}, {"Llama-3-8B", 32, 8, 128, 4, 5e5f}};
const Scheme kSchemes[] = {{"nuq4", 4, false},   {"nuq4-1%", 4, true}, {"nuq3", 3, false},
                           {"nuq3-1%", 3, true}, {"nuq2", 2, false},   {"nuq2-1%", 2, true}};
const VectorScheme kVectorSchemes[] = {{"vq2-head", VectorGroups::turned, VectorGroups::turned},
                                       {"vq2-channels", VectorGroups::fours, VectorGroups::fours},
                                       {"vq2-channels-head", VectorGroups::fours, VectorGroups::turned},
                                       {"vq2-pairs", VectorGroups::pairs, VectorGroups::pairs}};
const char* const kArithmetics[] = {"f32", "i16"};
constexpr size_t kRowContestants = 4;  ///< fp16 in tiles of 64 and 16, fp32 likewise; ratios are to the faster one

/// One shape and context, with all that the contestants read.
struct Field {
  Field(const Shape& shape, int64_t context, size_t least_bytes) : layer(shape), tokens(context) {
    // Each contestant's copies are rounded up to a whole one; f32 rows in two orders while they are made.
    const size_t single = sizeof(float) * 2 * static_cast<size_t>(context) * shape.row();
    const size_t wanted =
        (2 + std::size(kSchemes) + std::size(kVectorSchemes)) * (least_bytes + single / 4) + 3 * single;
    if (wanted > free_memory() / 4 * 3) {
      throw Error(ErrorKind::resource, fmt::format("{} at {} tokens", shape.name, context),
                  fmt::format("{:.1f} GiB needed", std::ldexp(wanted, -30)),
                  fmt::format("at most three fourths of the free {:.1f} GiB", std::ldexp(free_memory(), -30)),
                  "give --tokens fewer");
    }
    std::vector<float> key, value;
    layer.rows(tokens, key, value);
    for (const bool half : {true, false}) rows.emplace_back(shape, key, value, half, least_bytes);
    for (const Scheme& s : kSchemes) packed.push_back(std::make_unique<Packed>(layer, s, tokens, least_bytes));
    for (const VectorScheme& s : kVectorSchemes) {
      vectors.push_back(std::make_unique<PackedVectors>(layer, s, tokens, least_bytes));
    }
  }
  /// Parts of the context that give each thread equally many blocks.
  int splits(int threads) const {
    int splits = 1;
    while (layer.shape().heads * splits % threads != 0) ++splits;
    return splits;
  }

  Layer layer;
  int64_t tokens;
  std::vector<Rows> rows;
  std::vector<std::unique_ptr<Packed>> packed;
  std::vector<std::unique_ptr<PackedVectors>> vectors;
};

/// Contestants on the threads of `team`; all write to `out` [H * group, D].
/// `heads` 0: all of them, else the first ones, in one part.
std::vector<Contestant> contestants(const Field& field, Team& team, std::vector<float>& out,
                                    std::vector<float>& partial, int heads = 0) {
  const Shape& shape = field.layer.shape();
  const int splits = heads > 0 ? 1 : field.splits(team.size());
  const auto blocks = static_cast<uint32_t>(heads > 0 ? heads : shape.heads * splits);
  out.resize(static_cast<size_t>(shape.query_heads()) * shape.head_dim);
  partial.resize(static_cast<size_t>(splits) * shape.query_heads() * (shape.head_dim + 2));
  std::vector<Contestant> all;
  for (size_t i = 0; i < kRowContestants; ++i) {
    const Rows& rows = field.rows[i / 2];
    const int tile = i % 2 == 0 ? 64 : 16;
    all.push_back({fmt::format("{} /{}", rows.half() ? "fp16" : "fp32", tile), rows.bytes_read(), rows.copies(),
                   [&, splits, blocks, tile](int copy) {
                     const RowsParams p{rows.key(copy),
                                        rows.value(copy),
                                        field.layer.query().data(),
                                        partial.data(),
                                        out.data(),
                                        field.tokens,
                                        shape.heads,
                                        shape.head_dim,
                                        shape.group,
                                        splits,
                                        field.layer.multiplier(),
                                        tile};
                     team.ranges(blocks, [&](uint32_t first, uint32_t last) {
                       (rows.half() ? rows_attention_f16 : rows_attention_f32)(p, first, last);
                     });
                     if (splits > 1) rows_merge(p);
                   }});
  }
  for (size_t i = 0; i < field.packed.size(); ++i) {
    for (const int arithmetic : {KVCC_ARITHMETIC_F32, KVCC_ARITHMETIC_I16}) {
      const Packed& packed = *field.packed[i];
      all.push_back({fmt::format("{} {}", kSchemes[i].name, kArithmetics[arithmetic]), packed.bytes_read(),
                     packed.copies(), [&, splits, blocks, arithmetic](int copy) {
                       const auto p = packed.params(copy, out.data(), partial.data(), splits);
                       const KvccCpuTables& tables = packed.tables(arithmetic);
                       team.ranges(blocks, [&](uint32_t first, uint32_t last) {
                         kvcc_cpu_run(KVCC_CPU_ATTENTION, &packed.config(), &p, &tables, first, last);
                       });
                       if (splits > 1) {
                         kvcc_cpu_run(KVCC_CPU_ATTENTION_MERGE, &packed.config(), &p, &tables, 0, shape.query_heads());
                       }
                     }});
    }
  }
  for (size_t i = 0; i < field.vectors.size(); ++i) {
    const PackedVectors& packed = *field.vectors[i];
    all.push_back({fmt::format("{} f32", kVectorSchemes[i].name), packed.bytes_read(), packed.copies(),
                   [&, splits, blocks](int copy) {
                     const auto p = packed.params(copy, out.data(), partial.data(), splits);
                     team.ranges(blocks, [&](uint32_t first, uint32_t last) {
                       kvcc_cpu_run_vector(KVCC_CPU_ATTENTION, &p, &packed.tables(), first, last);
                     });
                     if (splits > 1) {
                       kvcc_cpu_run_vector(KVCC_CPU_ATTENTION_MERGE, &p, &packed.tables(), 0, shape.query_heads());
                     }
                   }});
  }
  return all;
}

/// Reads a part of `memory` on all threads: what the machine can do.
Contestant reader(const Memory& memory, size_t bytes, Team& team) {
  const size_t part = std::min(bytes, size_t{64} << 20), each = part / team.size() / 1024 * 1024;
  return {"read", static_cast<double>(each) * team.size(), static_cast<int>(bytes / part),
          [&memory, &team, part, each](int copy) {
            team.run([&](int thread) {
              volatile uint64_t sum = read_memory(memory.data() + part * copy + each * thread, each);
              (void)sum;
            });
          }};
}

/// Greatest error of a result, in units of its bound for an error of 1 in scores and weights.
double error_of(const std::vector<float>& found, const reference::AttentionSums& exact) {
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(found[i] - exact.value[i]) / (exact.sensitivity[i] + 2 * exact.magnitude[i]);
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst;
}

reference::AttentionSums exact_rows(const Field& field, bool half) {
  const Shape& shape = field.layer.shape();
  std::vector<float> key, value, by_token[2];
  field.layer.rows(field.tokens, key, value);
  const std::vector<float>* from[2] = {&key, &value};
  for (int which = 0; which < 2; ++which) {
    for (int64_t t = 0; t < field.tokens; ++t) {
      for (int h = 0; h < shape.heads; ++h) {
        const float* row = from[which]->data() + (h * field.tokens + t) * shape.head_dim;
        for (int c = 0; c < shape.head_dim; ++c) by_token[which].push_back(half ? round_to_half(row[c]) : row[c]);
      }
    }
  }
  return reference::attention(by_token[0], by_token[1], field.layer.query(),
                              {shape.heads, shape.head_dim, shape.head_dim, shape.group, 0, field.layer.multiplier()},
                              {});
}

/// Compares every contestant with the reference over its own cache. False when one is off.
bool check(int64_t tokens, const std::vector<int>& threads) {
  // f32: sums of f32 in another order. i16: roundings of 2^-13 to 2^-11 of the largest term, which average out.
  const double tolerance[] = {1e-6, 2e-4};
  bool good = true;
  for (const Shape& shape : kShapes) {
    const Field field(shape, tokens, 0);
    std::vector<reference::AttentionSums> exact;
    for (const Rows& rows : field.rows) exact.insert(exact.end(), 2, exact_rows(field, rows.half()));
    for (const auto& packed : field.packed) exact.insert(exact.end(), 2, packed->exact());
    for (const auto& packed : field.vectors) exact.push_back(packed->exact());
    for (const int count : threads) {
      Team team(count);
      std::vector<float> out, partial;
      auto all = contestants(field, team, out, partial);
      for (size_t i = 0; i < all.size(); ++i) {
        out.assign(out.size(), NAN);
        all[i].run(0);
        const double error = error_of(out, exact[i]), most = tolerance[all[i].name.ends_with("i16")];
        good = good && error <= most;
        fmt::print("{:<13} {} threads  {:<21} error {:.2e}, at most {:.0e}{}\n", shape.name, count, all[i].name, error,
                   most, error <= most ? "" : "  WRONG");
      }
    }
  }
  return good;
}

/// Instructions of every contestant for one head and two lengths, as JSON for cpu_instructions.py.
void print_steps() {
  nlohmann::json shapes = nlohmann::json::array();
  for (const Shape& shape : kShapes) {
    nlohmann::json counted = nlohmann::json::object();
    for (const int64_t tokens : {65, 129}) {
      const Field field(shape, tokens, 0);
      Team team(1);
      std::vector<float> out, partial;
      for (const Contestant& c : contestants(field, team, out, partial, 1)) {
        auto& counts = counted[c.name].emplace_back(nlohmann::json::array());
        for (const auto& [address, count] : count_steps([&] { c.run(0); })) counts.push_back({address, count});
      }
    }
    shapes.push_back({{"shape", shape.name}, {"elements", 2 * 64 * shape.head_dim}, {"contestants", counted}});
  }
  fmt::print("{}\n", nlohmann::json{{"target", kvcc_cpu_target()}, {"shapes", shapes}}.dump());
}

void print_head(const Field& field, int threads, const std::string& mode, double bandwidth) {
  fmt::print("\n{}, {} tokens, {} thread{}, {} (reading: {:.1f} GB/s)\n", field.layer.shape().name, field.tokens,
             threads, threads == 1 ? "" : "s", mode, bandwidth / 1e9);
  fmt::print("  {:<21} {:>10} {:>10} {:>9} {:>6} {:>8} {:>8} {:>8} {:>7}\n", "", "us", "median us", "MB read", "GB/s",
             "of peak", "x fp16", "x fp32", "layers");
}

void print_row(const Contestant& c, double half, double single, double bandwidth, int cycle) {
  const Times t = times_of(c);
  fmt::print("  {:<12} {:>10.1f} {:>10.1f} {:>9.2f} {:>6.1f} {:>7.0f}% {:>8.2f} {:>8.2f} {:>7}\n", c.name, t.best * 1e6,
             t.median * 1e6, c.bytes / 1e6, c.bytes / t.best / 1e9, 100 * c.bytes / t.best / bandwidth, half / t.best,
             single / t.best, std::min(c.copies, cycle));
}

struct Options {
  std::vector<int> threads = {1, 2};
  std::vector<int64_t> contexts = {2048, 16384, 65536};
  int rounds = 15;
  double sample = 2e-3;
  size_t bytes = 0;  ///< of a contestant's copies, at least; 0: 8 times the last-level cache
  std::string json;
  bool check = false, steps = false;
};

nlohmann::json measure_field(const Field& field, const Options& options, std::vector<double>& peak,
                             const Memory& memory, size_t memory_bytes) {
  nlohmann::json results = nlohmann::json::array();
  const auto cache = static_cast<double>(last_level_cache());
  for (size_t team_number = 0; team_number < options.threads.size(); ++team_number) {
    Team team(options.threads[team_number]);
    std::vector<float> out, partial;
    auto all = contestants(field, team, out, partial);
    int most = 0;
    double least = INFINITY;
    for (const Contestant& c : all) {
      most = std::max(most, c.copies);
      least = std::min(least, c.bytes);
    }
    all.push_back(reader(memory, memory_bytes, team));
    for (const std::string mode : {"memory", "layers", "cache"}) {
      const int layers = field.layer.shape().layers, cycle = mode == "memory" ? most : mode == "layers" ? layers : 1;
      if (mode == "layers" && layers >= most) continue;
      if (mode == "cache" && least > cache) continue;
      measure(all, options.rounds, options.sample, cycle, mode != "memory");
      double& bandwidth = peak[team_number];
      if (mode != "cache") bandwidth = std::max(bandwidth, all.back().bytes / times_of(all.back()).best);
      print_head(field, team.size(), mode, bandwidth);
      const double half = std::min(times_of(all[0]).best, times_of(all[1]).best);
      const double single = std::min(times_of(all[2]).best, times_of(all[3]).best);
      for (size_t i = 0; i + 1 < all.size(); ++i) {
        print_row(all[i], half, single, bandwidth, cycle);
        const Times t = times_of(all[i]);
        results.push_back({{"shape", field.layer.shape().name},
                           {"tokens", field.tokens},
                           {"threads", team.size()},
                           {"mode", mode},
                           {"contestant", all[i].name},
                           {"layers", std::min(all[i].copies, cycle)},
                           {"seconds", t.best},
                           {"median_seconds", t.median},
                           {"bytes", all[i].bytes},
                           {"bandwidth", bandwidth},
                           {"times_fp16", half / t.best},
                           {"times_fp32", single / t.best}});
      }
    }
  }
  return results;
}

int run(const Options& options) {
  if (options.check) return check(700, options.threads) ? 0 : static_cast<int>(ErrorKind::differ);
  if (options.steps) {
    print_steps();
    return 0;
  }
  const size_t least = options.bytes > 0 ? options.bytes : 8 * last_level_cache();
  const Memory memory(least);
  std::memset(memory.data(), 1, least);
  std::vector<double> peak(options.threads.size(), 0);
  nlohmann::json results = nlohmann::json::array();
  fmt::print(
      "Attention of one token, one layer. Packed units: {}; rows: {}. Least and median of {} samples in turns.\n",
      kvcc_cpu_target(), baseline_target(), options.rounds);
  for (const Shape& shape : kShapes) {
    for (const int64_t tokens : options.contexts) {
      const Field field(shape, tokens, least);
      for (auto& row : measure_field(field, options, peak, memory, least)) results.push_back(std::move(row));
      std::fflush(stdout);
    }
  }
  if (!options.json.empty()) {
    std::ofstream out(options.json);
    out << nlohmann::json{{"target", kvcc_cpu_target()},
                          {"rows_target", baseline_target()},
                          {"last_level_cache", last_level_cache()},
                          {"results", results}}
               .dump(1)
        << "\n";
    if (!out.flush()) throw Error(ErrorKind::resource, options.json, "can't be written");
  }
  return 0;
}

}  // namespace
}  // namespace kvcc::bench

int main(int argc, char** argv) {
  kvcc::bench::Options options;
  bool quick = false;
  CLI::App app("Decode attention over the packed cache against fp16 and f32 rows, on this machine.", "cpu_attention");
  app.add_flag("--check", options.check, "compare the results with the reference; no times");
  app.add_flag("--steps", options.steps, "count instructions instead; for cpu_instructions.py");
  app.add_flag("--quick", quick, "2048 tokens, few samples: some seconds");
  app.add_option("--threads", options.threads, "numbers of threads")->check(CLI::Range(1, 64));
  app.add_option("--tokens", options.contexts, "lengths of the context")->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", options.rounds, "samples of each contestant")->check(CLI::Range(1, 1000));
  app.add_option("--bytes", options.bytes, "memory that a contestant's layers fill (8 times the last-level cache)");
  app.add_option("--json", options.json, "write the figures to FILE");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    options.contexts = {2048};
    options.rounds = 5;
  }
  try {
    return kvcc::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cpu_attention: {}\n", error.what());
    const auto* known = dynamic_cast<const kvcc::Error*>(&error);
    return known != nullptr ? known->exit_code() : 1;
  }
}
