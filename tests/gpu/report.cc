#include "tests/gpu/report.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace kvcc::gpu {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + "\"";
}
/// null for 0 and below: not measured.
std::string number(double x) {
  if (!std::isfinite(x) || x <= 0) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}
std::string list(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) out += (out.size() > 1 ? ", " : "") + quoted(text);
  return out + "]";
}
double gigabytes(const Row& row) { return row.milliseconds > 0 ? row.bytes / row.milliseconds * 1e-6 : 0; }
double share(const Row& row, const Bench& bench) {
  return bench.copy_gigabytes > 0 ? gigabytes(row) / bench.copy_gigabytes : 0;
}

}  // namespace

void print_table(const Bench& bench) {
  if (bench.copy_gigabytes > 0) {
    std::printf("copy within the device: %.0f GB/s, read and written; [copy] is the share of it\n",
                bench.copy_gigabytes);
  }
  std::string place;
  for (const Row& row : bench.rows) {
    const std::string here = row.model + ", " + std::to_string(row.heads) + " KV heads x " + std::to_string(row.group) +
                             " queries, head_dim " + std::to_string(row.head_dim) + ", " + std::to_string(row.tokens) +
                             " tokens";
    if (here != place) {
      std::printf("\n%s\n%-19s %-35s %9s %9s %13s %6s %6s\n", here.c_str(), "family", "kernel", "MB", "us",
                  "GB/s [copy]", "x fp16", "x KVQ");
      place = here;
    }
    const auto ratio = [](double x) {
      char text[16] = "-";
      if (x > 0) std::snprintf(text, sizeof text, "%.2f", x);
      return std::string(text);
    };
    std::printf("%-19s %-35s %9.2f ", row.family.c_str(), row.kernel.c_str(), row.bytes * 1e-6);
    if (row.milliseconds > 0) {
      std::printf("%9.1f %6.0f [%3.0f%%] %6s %6s\n", row.milliseconds * 1e3, gigabytes(row), 100 * share(row, bench),
                  ratio(row.to_fp16).c_str(), ratio(row.to_kvquant).c_str());
    } else {
      std::printf("%9s %13s %6s %6s\n", "-", "-", "-", "-");
    }
  }
  for (const std::string& what : bench.not_timed) std::printf("not timed: %s\n", what.c_str());
}

void write_json(const std::string& path, const Device& device, const Parity& parity, const Bench& bench) {
  std::ostringstream out;
  out << "{\n  \"schema_version\": 1,\n  \"tool\": \"tests/gpu/run.sh\",\n  \"device\": ";
  if (device.name.empty()) {
    out << "null,\n  \"reason\": " << quoted(device.why) << ",\n";
  } else {
    out << "{\"name\": " << quoted(device.name) << ", \"driver\": " << quoted(device.driver)
        << ", \"multiprocessors\": " << device.multiprocessors << ", \"l2_bytes\": " << device.l2_bytes
        << ", \"memory_bytes\": " << device.memory_bytes << "},\n  \"reason\": null,\n";
  }
  out << "  \"parity\": {\"total\": " << parity.total << ", \"passed\": " << parity.passed
      << ", \"failed\": " << parity.failed << ", \"skipped\": " << parity.skipped
      << ", \"failures\": " << list(parity.failures) << "},\n";
  out << "  \"copy_gb_per_s\": " << number(bench.copy_gigabytes) << ",\n  \"times\": [";
  for (size_t i = 0; i < bench.rows.size(); ++i) {
    const Row& row = bench.rows[i];
    out << (i ? ",\n    " : "\n    ") << "{\"model\": " << quoted(row.model) << ", \"kv_heads\": " << row.heads
        << ", \"group\": " << row.group << ", \"head_dim\": " << row.head_dim << ", \"tokens\": " << row.tokens
        << ", \"family\": " << quoted(row.family) << ", \"kernel\": " << quoted(row.kernel)
        << ", \"bits\": " << row.bits << ", \"bytes\": " << static_cast<int64_t>(row.bytes)
        << ", \"ms\": " << number(row.milliseconds) << ", \"gb_per_s\": " << number(gigabytes(row))
        << ", \"share_of_copy\": " << number(share(row, bench)) << ", \"ratio_to_fp16\": " << number(row.to_fp16)
        << ", \"ratio_to_kvquant\": " << number(row.to_kvquant) << "}";
  }
  out << (bench.rows.empty() ? "],\n" : "\n  ],\n") << "  \"not_timed\": " << list(bench.not_timed) << "\n}\n";
  std::ofstream file(path);
  file << out.str();
  if (!file.flush()) throw std::runtime_error(path + ": can't be written");
}

}  // namespace kvcc::gpu
