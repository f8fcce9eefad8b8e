// pack_window SHARD CODEBOOK LAYER: packs the keys and values of one shard of activations (FOLDER/sNNNN/lNNN.h5) into a
// linear-1 cache, unpacks them, and compares with what eval's SimulatedCache puts in place of the same rows, bit for
// bit, the exact tokens at both ends included. Also runs the device text of pack and dequantise over the same window
// (on the host). The artifact is read here by itself, not by eval's functions. Prints one JSON line; exit 6 when
// anything differs, or when the device text has no instance here.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "calib/eval/simulated_cache.h"
#include "formats/store/activations.h"
#include "formats/store/codebook.h"
#include "kernels/device/dequantise.cuh"
#include "kernels/device/pack_channel.cuh"
#include "kernels/device/pack_token.cuh"
#include "tests/kernels/cases.h"

namespace {

using namespace kvcc;

template <class T>
std::vector<T> row_of(const std::vector<T>& all, size_t row, size_t width) {
  if (all.empty()) return {};
  return std::vector<T>(all.begin() + row * width, all.begin() + (row + 1) * width);
}

LevelTable table_of(const TensorCodebooks& stored, size_t row, int heads) {
  return {heads, stored.codes, row_of(stored.codebook, row, static_cast<size_t>(heads) * stored.codes),
          row_of(stored.bits, row, heads)};
}

/// Keys and values as attention reads them when eval runs this codebook: [T, H, D] each.
struct Simulated {
  std::vector<float> key, value;
};
Simulated simulate(const Codebook& book, int layer, const Shard& shard) {
  const CacheShape& shape = book.model.shape;
  const auto tensor = [&](const std::vector<float>& x, int64_t dim) {
    const int64_t heads = shape.kv_heads, tokens = static_cast<int64_t>(x.size()) / (heads * dim);
    const at::Tensor rows = at::empty({1, tokens, heads, dim}, at::kFloat);
    std::copy(x.begin(), x.end(), rows.mutable_data_ptr<float>());
    return rows;
  };
  const auto floats = [](const at::Tensor& x) {
    const float* begin = x.const_data_ptr<float>();
    return std::vector<float>(begin, begin + x.numel());
  };
  at::Tensor key = tensor(shard.key, shape.head_dim), value = tensor(shard.value, shape.value_head_dim);
  SimulatedCache cache(book, shape.layers, 1);
  cache.before_rope(layer, key, value);
  cache.after_rope(layer, key);
  return {floats(key.contiguous()), floats(value.contiguous())};
}

struct Outcome {
  size_t differing = 0;  ///< elements of unpack(pack(x)) that differ from the simulated ones
  size_t changed = 0;    ///< elements that simulation did change
  int device = -1;       ///< 1: the device text gives the same bytes and rows; 0: not; -1: no instance here
  int64_t outliers = 0, bytes = 0;
};

template <class C, class Body, class Quantiser>
bool device_agrees(const Quantiser& q, const std::vector<float>& x, reference::LinearCache& wanted,
                   const std::vector<float>& simulated) {
  test::levels_under_test() = {q.table.levels, q.table.bits, q.table.stride};
  const int32_t first = 0, length = static_cast<int32_t>(wanted.tokens);
  uint32_t status = 0;
  auto cache = reference::make_cache(q, wanted.tokens, {wanted.sink, wanted.residual, wanted.shape.entries});
  KvccPackParams pack{};
  pack.cache = test::view(cache, &length);
  test::set_constants(pack.cache, q);
  pack.x = x.data();
  pack.first = &first;
  pack.status = &status;
  pack.count = length;
  const bool channel = std::is_same_v<Quantiser, ChannelQuantiser>;
  device::run_on_host<Body>(pack, channel ? kvcc_grid_pack_channel(&pack) : kvcc_grid_pack_token(&pack), 1);
  std::vector<float> out(simulated.size());
  KvccDequantiseParams dequantise{pack.cache, out.data(), &first, length};
  device::run_on_host<device::Dequantise<C>>(dequantise, kvcc_grid_dequantise(&dequantise, C::kHeadDim), 1);
  return status == 0 && cache.pages == wanted.pages && cache.exact == wanted.exact &&
         std::memcmp(out.data(), simulated.data(), simulated.size() * sizeof(float)) == 0;
}

template <int bits, int dim>
int device_of(const ChannelQuantiser& q, const std::vector<float>& x, reference::LinearCache& cache,
              const std::vector<float>& simulated) {
  if (cache.shape.sparse != linear::Sparse::csr) return -1;
  using C =
      test::Config<bits, dim, device::Axis::channel, linear::Sparse::csr, device::Rope::none, 0, 1, device::Dtype::f32>;
  return device_agrees<C, device::PackChannel<C>>(q, x, cache, simulated);
}
template <int bits, int dim>
int device_of(const TokenQuantiser& q, const std::vector<float>& x, reference::LinearCache& cache,
              const std::vector<float>& simulated) {
  if (cache.shape.sparse != linear::Sparse::tail) return -1;
  using C =
      test::Config<bits, dim, device::Axis::token, linear::Sparse::tail, device::Rope::none, 0, 1, device::Dtype::f32>;
  return device_agrees<C, device::PackToken<C>>(q, x, cache, simulated);
}

template <class Quantiser>
Outcome check(const Quantiser& q, const std::vector<float>& x, const std::vector<float>& simulated,
              const reference::CacheOptions& options) {
  Outcome outcome;
  auto cache = reference::pack(q, x, options);
  const std::vector<float> rows = reference::unpack(q, cache);
  if (rows.size() != simulated.size()) throw std::runtime_error("unpack gave another number of elements");
  for (size_t i = 0; i < rows.size(); ++i) {
    outcome.differing += float_bits(rows[i]) != float_bits(simulated[i]);
    outcome.changed += float_bits(x[i]) != float_bits(simulated[i]);
  }
  for (const uint32_t needed : cache.needed) outcome.outliers += needed;
  if (cache.tail > 0)
    outcome.outliers = 2 * cache.tail * std::max<int64_t>(0, cache.tokens - options.sink - options.residual);
  outcome.bytes = cache.bytes();
  const bool uniform =
      std::all_of(q.table.bits.begin(), q.table.bits.end(), [&](uint8_t bits) { return bits == q.table.bits[0]; });
  if (uniform && q.dim == 64) {
    switch (q.table.bits[0]) {
      case 2:
        outcome.device = device_of<2, 64>(q, x, cache, simulated);
        break;
      case 3:
        outcome.device = device_of<3, 64>(q, x, cache, simulated);
        break;
      case 4:
        outcome.device = device_of<4, 64>(q, x, cache, simulated);
        break;
      case 5:
        outcome.device = device_of<5, 64>(q, x, cache, simulated);
        break;
    }
  }
  return outcome;
}

Outcome check_tensor(const Codebook& book, size_t row, bool key, const std::vector<float>& x,
                     const std::vector<float>& simulated) {
  const CacheShape& shape = book.model.shape;
  const TensorScheme& scheme = key ? book.scheme.key : book.scheme.value;
  const TensorCodebooks& stored = key ? book.key : book.value;
  const int heads = shape.kv_heads, dim = key ? shape.head_dim : shape.value_head_dim;
  const size_t channels = static_cast<size_t>(heads) * dim;
  const reference::CacheOptions options{.sink = book.scheme.sink, .residual = book.scheme.residual};
  LevelTable table = table_of(stored, row, heads);
  if (scheme.axis == Axis::token) {
    return check(
        TokenQuantiser{heads, dim, std::move(table), outliers_per_tail(book.scheme.sparse, static_cast<int>(channels))},
        x, simulated, options);
  }
  return check(ChannelQuantiser{heads, dim, std::move(table), row_of(stored.scale, row, channels),
                                row_of(stored.zero, row, channels), row_of(stored.threshold_lower, row, channels),
                                row_of(stored.threshold_upper, row, channels)},
               x, simulated, options);
}

int number_in(const std::filesystem::path& name) { return std::atoi(name.stem().string().substr(1).c_str()); }

int run(const std::filesystem::path& path, const std::string& codebook, int layer) {
  const auto folder = path.parent_path().parent_path();
  const Shard shard =
      ActivationsReader(folder.string()).read(number_in(path.parent_path().filename()), number_in(path.filename()));
  const Codebook book = read_codebook(codebook);
  const auto at = std::find(book.layer_index.begin(), book.layer_index.end(), layer);
  if (at == book.layer_index.end()) {
    std::fprintf(stderr, "pack_window: %s has no layer %d\n", codebook.c_str(), layer);
    return 2;
  }
  const size_t row = at - book.layer_index.begin();
  const Simulated simulated = simulate(book, layer, shard);
  bool good = true;
  std::printf("{\"layer\":%d,\"sink\":%d", layer, book.scheme.sink);
  for (const bool key : {true, false}) {
    const std::vector<float>& x = key ? shard.key : shard.value;
    const Outcome outcome = check_tensor(book, row, key, x, key ? simulated.key : simulated.value);
    good = good && outcome.differing == 0 && outcome.device == 1;
    std::printf(
        ",\"%s\":{\"elements\":%zu,\"differing\":%zu,\"changed\":%zu,\"device\":%d,\"outliers\":%lld,\"bytes\":%lld,"
        "\"bits_per_element\":%.4f}",
        key ? "key" : "value", x.size(), outcome.differing, outcome.changed, outcome.device,
        static_cast<long long>(outcome.outliers), static_cast<long long>(outcome.bytes),
        8.0 * static_cast<double>(outcome.bytes) / static_cast<double>(x.size()));
  }
  std::puts("}");
  return good ? 0 : 6;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("pack_window SHARD CODEBOOK LAYER\n", stderr);
    return 2;
  }
  try {
    return run(argv[1], argv[2], std::atoi(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pack_window: %s\n", error.what());
    return 1;
  }
}
