#include "calib/cli/fit_parts.h"

#include <chrono>
#include <thread>

#include "calib/fit/bytes.h"
#include "formats/store/codebook_fields.h"

namespace kvcc::cli {
namespace {

/// f(array of a, the same array of b) for all that an artifact stores of a tensor; `A` and `B` may be const.
template <typename A, typename B, typename F>
void for_arrays(A& a, B& b, const F& f) {
  for (const CodebookField& field : tensor_fields()) {
    if (field.floats != nullptr) f(a.*field.floats, b.*field.floats);
    if (field.bytes != nullptr) f(a.*field.bytes, b.*field.bytes);
    if (field.words != nullptr) f(a.*field.words, b.*field.words);
    if (field.stat_floats != nullptr) f(a.stats.*field.stat_floats, b.stats.*field.stat_floats);
    if (field.stat_words != nullptr) f(a.stats.*field.stat_words, b.stats.*field.stat_words);
  }
}

void append_tensor(TensorCodebooks& to, const TensorCodebooks& from) {
  to.codes = from.codes;
  to.units = from.units;
  to.coordinates = from.coordinates;
  for_arrays(to, from, [](auto& all, const auto& one) { all.insert(all.end(), one.begin(), one.end()); });
}

void write(ByteWriter& out, const TensorCodebooks& tensor) {
  for (const int number : {tensor.codes, tensor.units, tensor.coordinates}) out.put(number);
  for_arrays(tensor, tensor, [&](const auto& array, const auto&) { out.put(array); });
}

void read(ByteReader& in, TensorCodebooks& tensor) {
  for (int* number : {&tensor.codes, &tensor.units, &tensor.coordinates}) in.get(*number);
  for_arrays(tensor, tensor, [&](auto& array, auto&) { in.get(array); });
}

}  // namespace

void append_part(Codebook& to, const LayerPart& layer) {
  append_tensor(to.key, layer.key);
  append_tensor(to.value, layer.value);
}

std::vector<int> own_layers(const Ranks* ranks, int layers) {
  std::vector<int> own;
  const int first = ranks == nullptr ? 0 : ranks->rank(), step = ranks == nullptr ? 1 : ranks->size();
  for (int layer = first; layer < layers; layer += step) own.push_back(layer);
  return own;
}

void gather_parts(Ranks& ranks, std::vector<std::vector<LayerPart>>& parts) {
  const int layers = parts.empty() ? 0 : static_cast<int>(parts[0].size());
  if (!ranks.first()) {
    for (const int layer : own_layers(&ranks, layers)) {
      ByteWriter out;
      for (const std::vector<LayerPart>& artifact : parts) {
        write(out, artifact[static_cast<size_t>(layer)].key);
        write(out, artifact[static_cast<size_t>(layer)].value);
      }
      ranks.post(out.take());
    }
    return;
  }
  for (int layer = 0; layer < layers; ++layer) {
    const int from = layer % ranks.size();
    if (from == 0) continue;
    std::string message;
    while (!ranks.take(from, message)) {
      ranks.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ByteReader in(message);
    for (std::vector<LayerPart>& artifact : parts) {
      read(in, artifact[static_cast<size_t>(layer)].key);
      read(in, artifact[static_cast<size_t>(layer)].value);
    }
  }
}

void exchange_tables(Ranks& ranks, VectorFit& fit, int layers) {
  ByteWriter mine;
  for (const int layer : own_layers(&ranks, layers)) fit.write_table(layer, mine);
  const std::vector<std::string> all = ranks.gather(mine.take());
  for (int r = 0; r < ranks.size(); ++r) {
    if (r == ranks.rank()) continue;
    ByteReader theirs(all[static_cast<size_t>(r)]);
    for (int layer = r; layer < layers; layer += ranks.size()) fit.read_table(layer, theirs);
  }
}

std::string agree_on(Ranks& ranks, const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = ranks.gather(mine);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0]) {
      throw bad_input("rank " + std::to_string(r), what + " is " + all[r], all[0] + ", as on rank 0",
                      "the same activations and options on all ranks");
    }
  }
  return all[0];
}

}  // namespace kvcc::cli
