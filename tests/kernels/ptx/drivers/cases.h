// Made-up cases of every family for ptx_run: inputs from one seed, so that runs of two libraries start from the same
// bytes.
#pragma once

#include <dlfcn.h>

#include <map>
#include <sstream>
#include <string>

#include "kernels/emulator/emulator.h"
#include "tests/kernels/mma_cases.h"

namespace kvcc::test {

class Options {
 public:
  explicit Options(char** begin, char** end) {
    for (; begin != end; ++begin) {
      const std::string text = *begin;
      values_[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto at = values_.find(name);
    return at == values_.end() ? otherwise : at->second;
  }
  int number(const std::string& name, int otherwise) const { return std::stoi(text(name, std::to_string(otherwise))); }
  std::vector<int32_t> lengths() const {
    std::vector<int32_t> out;
    std::istringstream list(text("lengths", "131"));
    for (std::string one; std::getline(list, one, ',');) out.push_back(std::stoi(one));
    return out;
  }
  device::Dtype dtype() const {
    const std::string name = text("dtype", "f16");
    return name == "f16" ? device::Dtype::f16 : name == "bf16" ? device::Dtype::bf16 : device::Dtype::f32;
  }

 private:
  std::map<std::string, std::string> values_;
};

/// The entries of a unit, from its source or its PTX.
class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  template <class T>
  T* find(const std::string& symbol) const {
    return reinterpret_cast<T*>(dlsym(handle_, symbol.c_str()));
  }
  template <class T>
  T& at(const std::string& symbol) const {
    T* const found = find<T>(symbol);
    if (found == nullptr) throw std::runtime_error("no symbol " + symbol);
    return *found;
  }

 private:
  void* handle_;
};

struct Run {
  const Options& options;
  const Library& library;
  const Library& source;  ///< states the threads and bytes of dynamic shared memory
  std::string symbol;
  std::vector<std::pair<std::string, std::vector<uint8_t>>> outputs{};
  std::vector<std::pair<std::string, size_t>> counts{};  ///< of what the case holds

  template <class Params>
  void launch(const Params& params, KvccGrid grid, const std::string& suffix = "") const {
    const std::string name = symbol + suffix;
    const uint32_t threads = source.at<const uint32_t>(name + "_threads");
    if (library.at<const uint32_t>(name + "_threads") != threads) throw std::runtime_error(name + ": threads differ");
    emulator::Options how;
    const std::string order = options.text("order", "sequential");
    how.order = order == "random"     ? emulator::Order::random
                : order == "reversed" ? emulator::Order::reversed
                                      : emulator::Order::sequential;
    emulator::launch(&library.at<void(const void*)>(name), &params, grid, static_cast<int>(threads),
                     source.at<const uint32_t>(name + "_shared_bytes"), how, name);
  }
  template <class T>
  void keep(const std::string& name, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    outputs.emplace_back(name, std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T)));
  }
  /// Tells the trace the parts of a tensor's pages, "TENSOR codes" and so on; notes how many records it holds.
  void trace_pages(const MmaBatch& batch, const std::string& tensor) {
    size_t records = 0;
    for (const uint32_t count : batch.needed) records += count;
    counts.emplace_back(tensor + "_records", records);
    const auto region = library.find<void(const char*, const void*, uint64_t)>("kvcc_trace_region");
    if (region == nullptr || options.text("trace", "").empty()) return;
    const mma::PageShape& shape = batch.shape.shape;
    const uint64_t bytes = mma::page_bytes(shape);
    const std::pair<const char*, uint64_t> parts[] = {{" codes", 0},
                                                      {" ranges", mma::ranges_offset(shape)},
                                                      {" ends", mma::ends_offset(shape)},
                                                      {" records", mma::records_offset(shape)},
                                                      {"", bytes}};
    for (size_t at = 0; at < batch.pages.size(); at += bytes) {
      for (int i = 0; i < 4; ++i) {
        const uint64_t begin = parts[i].second, end = parts[i + 1].second;
        if (end > begin) region((tensor + parts[i].first).c_str(), batch.pages.data() + at + begin, end - begin);
      }
    }
  }
};

/// Runs the case that the options name, and keeps what it wrote. Throws for options that name none.
void run_case(Run& run);

/// The same of layout vector-1 (vector_cases.cc).
void run_vector_case(Run& run, const std::string& family);

/// What floats of the outputs begin as.
constexpr float kUnwritten = -12345.0f;

}  // namespace kvcc::test
