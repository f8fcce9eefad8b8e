#include "kernels/bindings/ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "formats/core/error.h"
#include "kernels/host/rope_table.h"

namespace kvcc::bindings {
namespace {

const OptionalTensor kNone;

/// An operator's call: its folder, its family's units, its device.
struct Call {
  Call(const char* name, const std::string& family, c10::string_view folder, const char* first_name,
       const at::Tensor& first)
      : kernels(open_kernels(std::string(folder))),
        units(kernels.units(family)),
        arguments(name, launch_device(name, first_name, first)),
        device(arguments.device().is_cuda() ? arguments.device().index() : 0) {}

  c10::TensorOptions floats() const { return c10::TensorOptions(arguments.device()).dtype(at::kFloat); }

  /// Launches every unit's entries in order. `grid_of`: by the name of the C function.
  template <class Params, class Check, class GridOf>
  void launch(const Params& params, int32_t splits, const Check& check, const GridOf& grid_of) {
    void* stream = current_stream(arguments.device());
    for (const Unit& unit : units) {
      check(unit);
      const host::Module& module = kernels.module(unit, device);
      for (const Launch& entry : unit.launches) {
        if (entry.only_splits && splits == 1) continue;
        module.launch(entry.symbol, grid_of(entry, unit), params, stream, entry.shared_bytes);
      }
    }
  }

  int32_t splits(int64_t max_length, int32_t group, int64_t sequences) {
    const host::DeviceFacts& facts = kernels.module(units.front(), device).device();
    return kvcc_mma_splits(arguments.number(max_length, "max_length"), kernels.kv_heads(), group,
                           arguments.number(sequences, "sequences"), facts.multiprocessors);
  }

  KernelsFolder& kernels;
  const std::vector<Unit>& units;
  Arguments arguments;
  int device;
};

/// base_cosine, base_sine [B, R / 2] float32; relative_cosine, relative_sine [128, R / 2] float16. Empty without RoPE.
KvccRope rope_of(const Arguments& arguments, at::TensorList rope, int64_t rotary_dim, host::Extent& extent) {
  KvccRope r{};
  if (rope.empty() && rotary_dim == 0) return r;
  if (rope.size() != 4 || rotary_dim == 0) {
    arguments.refuse("rope", std::to_string(rope.size()) + " tensors",
                     rotary_dim == 0 ? "none: the kernel has no RoPE" : "the four of torch.ops.kvcc.rope_tables");
  }
  const int64_t half = rotary_dim / 2;
  r.base_cosine = arguments.address<float>(rope[0], "rope[0]", at::kFloat, {-1, half});
  extent.base_rows = rope[0].size(0);
  r.base_sine = arguments.address<float>(rope[1], "rope[1]", at::kFloat, {extent.base_rows, half});
  r.relative_cosine = arguments.address<uint16_t>(rope[2], "rope[2]", at::kHalf, {host::kRelativePositions, half});
  r.relative_sine = arguments.address<uint16_t>(rope[3], "rope[3]", at::kHalf, {host::kRelativePositions, half});
  return r;
}

void pack(const char* op, const std::string& tensor, c10::string_view folder, int64_t layer, const at::Tensor& x,
          const at::Tensor& first, const at::Tensor& status, int64_t max_length, int64_t repeat_above,
          CacheTensors tensors) {
  Call call(op, op, folder, "x", x);
  const Arguments& arguments = call.arguments;
  const Unit& unit = call.units.front();
  KvccPackParams p{};
  p.x =
      arguments.address<void>(x, "x", dtype_of(unit), {-1, -1, call.kernels.kv_heads(), call.kernels.head_dim(tensor)});
  const int64_t sequences = x.size(0), count = x.size(1);
  if (sequences == 0 || count == 0) return;
  p.cache = cache_of(arguments, call.kernels, tensor, layer, sequences, tensors);
  p.first = arguments.address<int32_t>(first, "first", at::kInt, {sequences});
  p.status = arguments.address<uint32_t>(status, "status", at::kInt, {1});
  p.count = arguments.number(count, "count");
  p.repeat_above = arguments.number(repeat_above, "repeat_above");
  at::Tensor selected, inliers;
  if (unit.facts.token_axis) {
    inliers = at::empty({sequences, count, 2}, call.floats());
    p.inliers = inliers.data_ptr<float>();
    if (p.cache.tail > 0) {
      selected = at::empty({sequences, count, 2 * int64_t{p.cache.tail}}, call.floats().dtype(at::kInt));
      p.selected = static_cast<uint32_t*>(selected.data_ptr());
    }
  }
  call.launch(
      p, 1,
      [&](const Unit& u) {
        host::check(u.facts, p, host::Extent{max_length, 0});
      },
      [&](const Launch& entry, const Unit&) {
        return entry.grid == "kvcc_grid_mma_pack_select" ? kvcc_grid_mma_pack_select(&p) : kvcc_grid_mma_pack(&p);
      });
}

}  // namespace

int64_t page_bytes(c10::string_view folder, c10::string_view tensor, int64_t layer, int64_t capacity) {
  const KernelsFolder& kernels = open_kernels(std::string(folder));
  const KernelPages& rule = kernels.pages(std::string(tensor));
  const Arguments arguments("page_bytes", c10::kCPU);
  if (layer < 0 || layer >= static_cast<int64_t>(rule.code_words.size())) {
    arguments.refuse("layer", std::to_string(layer), "0 to " + std::to_string(rule.code_words.size() - 1));
  }
  const int32_t records = capacity < 0 ? rule.default_capacity : arguments.number(capacity, "capacity");
  if (records % 4 != 0 || (rule.classes == 0 && records != 0)) {
    arguments.refuse("capacity", std::to_string(records), rule.classes == 0 ? "0" : "a multiple of 4");
  }
  return kvcc_mma_page_bytes(rule.code_words[layer], rule.ranges, rule.classes, kernels.kv_heads(), records);
}

int64_t default_capacity(c10::string_view folder, c10::string_view tensor) {
  return open_kernels(std::string(folder)).pages(std::string(tensor)).default_capacity;
}

std::vector<at::Tensor> rope_tables(const at::Tensor& inverse_frequencies, double attention_factor, int64_t positions) {
  const Arguments arguments("rope_tables", c10::kCPU);
  const auto* values = arguments.address<float>(inverse_frequencies, "inverse_frequencies", at::kFloat, {-1});
  const int64_t half = inverse_frequencies.size(0);
  host::BlockRopeTables tables = host::block_rope_tables(
      {std::vector<float>(values, values + half), static_cast<float>(attention_factor)}, positions);
  const auto copy = [&](auto& table, int64_t rows, c10::ScalarType dtype) {
    return at::from_blob(table.data(), {rows, half}, dtype).clone();
  };
  return {copy(tables.base_cosine, tables.base_rows, at::kFloat), copy(tables.base_sine, tables.base_rows, at::kFloat),
          copy(tables.relative_cosine, host::kRelativePositions, at::kHalf),
          copy(tables.relative_sine, host::kRelativePositions, at::kHalf)};
}

void pack_key(c10::string_view kernels, int64_t layer, const at::Tensor& x, const at::Tensor& first,
              const at::Tensor& pages, const at::Tensor& status, int64_t max_length, int64_t capacity,
              const OptionalTensor& page_table, const OptionalTensor& exact, const OptionalTensor& scale,
              const OptionalTensor& zero, const OptionalTensor& lower, const OptionalTensor& upper,
              const OptionalTensor& needed, int64_t repeat_above) {
  pack("pack_key", "key", kernels, layer, x, first, status, max_length, repeat_above,
       {pages, capacity, page_table, kNone, exact, scale, zero, lower, upper, needed, ""});
}

void pack_value(c10::string_view kernels, int64_t layer, const at::Tensor& x, const at::Tensor& first,
                const at::Tensor& pages, const at::Tensor& status, int64_t max_length, int64_t capacity,
                const OptionalTensor& page_table, const OptionalTensor& exact, const OptionalTensor& scale,
                const OptionalTensor& zero, const OptionalTensor& lower, const OptionalTensor& upper,
                const OptionalTensor& needed, int64_t repeat_above) {
  pack("pack_value", "value", kernels, layer, x, first, status, max_length, repeat_above,
       {pages, capacity, page_table, kNone, exact, scale, zero, lower, upper, needed, ""});
}

at::Tensor dequantise(c10::string_view kernels, c10::string_view tensor, int64_t layer, const at::Tensor& pages,
                      const at::Tensor& lengths, const at::Tensor& first, int64_t count, int64_t max_length,
                      int64_t capacity, const OptionalTensor& page_table, const OptionalTensor& exact,
                      const OptionalTensor& scale, const OptionalTensor& zero) {
  const std::string which(tensor);
  Call call("dequantise", "dequantise_" + which, kernels, "pages", pages);
  const int64_t sequences = call.arguments.want(lengths, "lengths", at::kInt, {-1}).size(0);
  at::Tensor out = at::zeros({sequences, count, call.kernels.kv_heads(), call.kernels.head_dim(which)}, call.floats());
  if (out.numel() == 0) return out;
  KvccDequantiseParams p{};
  p.cache = cache_of(call.arguments, call.kernels, which, layer, sequences,
                     {pages, capacity, page_table, lengths, exact, scale, zero, kNone, kNone, kNone, ""});
  p.out = out.data_ptr<float>();
  p.first = call.arguments.address<int32_t>(first, "first", at::kInt, {sequences});
  p.count = call.arguments.number(count, "count");
  call.launch(
      p, 1,
      [&](const Unit& u) {
        host::check(u.facts, p, host::Extent{max_length, 0});
      },
      [&](const Launch&, const Unit&) { return kvcc_grid_mma_dequantise(&p); });
  return out;
}

at::Tensor key_scores(c10::string_view kernels, int64_t layer, const at::Tensor& query, const at::Tensor& pages,
                      const at::Tensor& lengths, int64_t max_length, double multiplier, at::TensorList rope,
                      int64_t window, int64_t capacity, const OptionalTensor& page_table, const OptionalTensor& exact,
                      const OptionalTensor& scale, const OptionalTensor& zero) {
  Call call("key_scores", "key_scores", kernels, "query", query);
  const Arguments& arguments = call.arguments;
  const host::KernelFacts& facts = call.units.front().facts;
  const int64_t heads = int64_t{facts.kv_heads} * facts.group;
  KvccMmaKeyScoresParams p{};
  p.query = arguments.address<void>(query, "query", dtype_of(call.units.front()), {-1, heads, facts.head_dim});
  const int64_t sequences = query.size(0);
  at::Tensor scores = at::full({sequences, heads, max_length}, -std::numeric_limits<float>::infinity(), call.floats());
  if (scores.numel() == 0) return scores;
  p.cache = cache_of(arguments, call.kernels, "key", layer, sequences,
                     {pages, capacity, page_table, lengths, exact, scale, zero, kNone, kNone, kNone, ""});
  host::Extent extent{max_length, 0};
  p.rope = rope_of(arguments, rope, facts.rotary_dim, extent);
  p.scores = scores.data_ptr<float>();
  p.scores_stride = max_length;
  p.multiplier = static_cast<float>(multiplier);
  p.group = facts.group;
  p.splits = call.splits(max_length, facts.group, sequences);
  p.window = arguments.number(window, "window");
  call.launch(
      p, p.splits, [&](const Unit& u) { host::check(u.facts, p, extent); },
      [&](const Launch&, const Unit&) { return kvcc_grid_mma_key_scores(&p); });
  return scores;
}

at::Tensor value_mix(c10::string_view kernels, int64_t layer, const at::Tensor& weights, const at::Tensor& pages,
                     const at::Tensor& lengths, int64_t window, int64_t capacity, const OptionalTensor& page_table,
                     const OptionalTensor& exact, const OptionalTensor& scale, const OptionalTensor& zero) {
  Call call("value_mix", "value_mix", kernels, "weights", weights);
  const Arguments& arguments = call.arguments;
  const host::KernelFacts& facts = call.units.front().facts;
  const int64_t heads = int64_t{facts.kv_heads} * facts.group;
  KvccValueMixParams p{};
  p.weights = arguments.address<void>(weights, "weights", dtype_of(call.units.front()), {-1, heads, -1});
  const int64_t sequences = weights.size(0), max_length = weights.size(2);
  at::Tensor out = at::zeros({sequences, heads, facts.head_dim}, call.floats()), partial;
  if (weights.numel() == 0) return out;
  p.cache = cache_of(arguments, call.kernels, "value", layer, sequences,
                     {pages, capacity, page_table, lengths, exact, scale, zero, kNone, kNone, kNone, ""});
  p.out = out.data_ptr<float>();
  p.weights_stride = max_length;
  p.group = facts.group;
  p.splits = call.splits(max_length, facts.group, sequences);
  p.window = arguments.number(window, "window");
  if (p.splits > 1) {
    partial = at::empty({sequences, p.splits, heads, facts.head_dim}, call.floats());
    p.partial = partial.data_ptr<float>();
  }
  call.launch(
      p, p.splits,
      [&](const Unit& u) {
        host::check(u.facts, p, host::Extent{max_length, 0});
      },
      [&](const Launch& entry, const Unit& u) {
        return entry.only_splits ? kvcc_grid_value_merge(&p, u.facts.head_dim) : kvcc_grid_mma_value_mix(&p);
      });
  return out;
}

at::Tensor attention(c10::string_view kernels, int64_t layer, const at::Tensor& query, const at::Tensor& key_pages,
                     const at::Tensor& value_pages, const at::Tensor& lengths, int64_t max_length, double multiplier,
                     at::TensorList rope, int64_t window, int64_t key_capacity, int64_t value_capacity,
                     const OptionalTensor& page_table, const OptionalTensor& key_exact,
                     const OptionalTensor& value_exact, const OptionalTensor& key_scale, const OptionalTensor& key_zero,
                     const OptionalTensor& value_scale, const OptionalTensor& value_zero) {
  Call call("attention", "attention", kernels, "query", query);
  const Arguments& arguments = call.arguments;
  const Unit& unit = call.units.front();
  const int64_t heads = int64_t{unit.facts.kv_heads} * unit.facts.group;
  KvccAttentionParams p{};
  p.query = arguments.address<void>(query, "query", dtype_of(unit), {-1, heads, unit.facts.head_dim});
  const int64_t sequences = query.size(0);
  at::Tensor out = at::zeros({sequences, heads, unit.value.head_dim}, call.floats()), partial;
  if (sequences == 0) return out;
  p.key = cache_of(
      arguments, call.kernels, "key", layer, sequences,
      {key_pages, key_capacity, page_table, lengths, key_exact, key_scale, key_zero, kNone, kNone, kNone, "key_"});
  p.value = cache_of(arguments, call.kernels, "value", layer, sequences,
                     {value_pages, value_capacity, page_table, lengths, value_exact, value_scale, value_zero, kNone,
                      kNone, kNone, "value_"});
  host::Extent extent{max_length, 0};
  p.rope = rope_of(arguments, rope, unit.facts.rotary_dim, extent);
  p.out = out.data_ptr<float>();
  p.multiplier = static_cast<float>(multiplier);
  p.group = unit.facts.group;
  p.splits = call.splits(max_length, unit.facts.group, sequences);
  p.window = arguments.number(window, "window");
  if (p.splits > 1) {
    partial = at::empty({sequences, p.splits, heads, unit.value.head_dim + 2}, call.floats());
    p.partial = partial.data_ptr<float>();
  }
  call.launch(
      p, p.splits, [&](const Unit& u) { host::check(u.facts, u.value, p, extent); },
      [&](const Launch& entry, const Unit&) {
        return entry.only_splits ? kvcc_grid_mma_attention_merge(&p) : kvcc_grid_mma_attention(&p);
      });
  return out;
}

void copy_pages(c10::string_view kernels, c10::string_view tensor, int64_t layer, const at::Tensor& source,
                const at::Tensor& target, const at::Tensor& pairs, int64_t source_capacity, int64_t target_capacity) {
  Call call("copy_pages", "copy_pages", kernels, "source", source);
  const Arguments& arguments = call.arguments;
  const KernelPages& rule = call.kernels.pages(std::string(tensor));
  KvccCopyPagesParams p{};
  p.source_page_bytes = page_bytes(kernels, tensor, layer, source_capacity);
  p.target_page_bytes = page_bytes(kernels, tensor, layer, target_capacity);
  p.source = arguments.address<uint8_t>(source, "source", at::kByte, {-1, p.source_page_bytes});
  p.target = arguments.address<uint8_t>(target, "target", at::kByte, {-1, p.target_page_bytes});
  p.pairs = arguments.address<int32_t>(pairs, "pairs", at::kInt, {-1, 2});
  if (pairs.size(0) == 0) return;
  p.lists = rule.classes > 0 ? call.kernels.kv_heads() : 0;
  const auto records = [&](int64_t capacity) {
    return capacity < 0 ? rule.default_capacity : static_cast<int32_t>(capacity);
  };
  p.source_capacity = records(source_capacity);
  p.target_capacity = records(target_capacity);
  p.fixed_bytes = int64_t{rule.code_words[layer]} * 4 + (rule.ranges ? KVCC_PAGE_TOKENS * 4 : 0) +
                  int64_t{call.kernels.kv_heads()} * rule.classes * 2;
  p.count = arguments.number(pairs.size(0), "pairs");
  call.launch(
      p, 1, [&](const Unit& u) { host::check(u.name, p); },
      [&](const Launch&, const Unit&) { return kvcc_grid_copy_pages(&p); });
}

}  // namespace kvcc::bindings
