// Schemas of torch.ops.kvcc.*, and their shapes without data (meta tensors, torch.compile).
//   kernels     folder that kvcc compile wrote; its sink, residual window, widths and default capacities hold
//   pages       uint8 [pages of the pool, page_bytes(kernels, tensor, layer, capacity)]
//   page_table  int32 [S, N]; without it page i of sequence s is s * N + i
//   lengths     int32 [S] tokens in the cache, none above max_length
//   first       int32 [S] position of the first token
//   exact       float16 [S, sink + residual, H, D]; scale, zero, lower, upper float32 [H, D] of the artifact
//   needed      int32 [S, N, H]; status int32 [1]
//   rope        of rope_tables on the queries' device; empty without RoPE
//   repeat_above: 0, or the capacity of a call that is repeated on larger pages, see KvccPackParams (launch.h)
// Shapes of the rest as in formats/layout/mma_launch.h. A capacity of -1 is the default of the folder.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/bindings/ops.h"

namespace kvcc::bindings {
namespace {

at::Tensor floats(c10::SymIntArrayRef shape, const at::Tensor& like) {
  return at::empty_symint(shape, like.options().dtype(at::kFloat));
}

at::Tensor dequantise_meta(c10::string_view kernels, c10::string_view tensor, int64_t, const at::Tensor& pages,
                           const at::Tensor& lengths, const at::Tensor&, c10::SymInt count, int64_t, int64_t,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  const KernelsFolder& folder = open_kernels(std::string(kernels));
  return floats({lengths.sym_size(0), count, folder.kv_heads(), folder.head_dim(std::string(tensor))}, pages);
}

at::Tensor key_scores_meta(c10::string_view, int64_t, const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                           c10::SymInt max_length, double, at::TensorList, int64_t, int64_t, const OptionalTensor&,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  return floats({query.sym_size(0), query.sym_size(1), max_length}, query);
}

at::Tensor value_mix_meta(c10::string_view kernels, int64_t, const at::Tensor& weights, const at::Tensor&,
                          const at::Tensor&, int64_t, int64_t, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&) {
  const int dim = open_kernels(std::string(kernels)).head_dim("value");
  return floats({weights.sym_size(0), weights.sym_size(1), dim}, weights);
}

at::Tensor attention_meta(c10::string_view kernels, int64_t, const at::Tensor& query, const at::Tensor&,
                          const at::Tensor&, const at::Tensor&, c10::SymInt, double, at::TensorList, int64_t, int64_t,
                          int64_t, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  const int dim = open_kernels(std::string(kernels)).head_dim("value");
  return floats({query.sym_size(0), query.sym_size(1), dim}, query);
}

void pack_meta(c10::string_view, int64_t, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
               c10::SymInt, int64_t, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, int64_t) {}

void copy_pages_meta(c10::string_view, c10::string_view, int64_t, const at::Tensor&, const at::Tensor&,
                     const at::Tensor&, int64_t, int64_t) {}

constexpr char kPackArguments[] =
    "(str kernels, int layer, Tensor x, Tensor first, Tensor(a!) pages, Tensor(b!) status, SymInt max_length, *, "
    "int capacity=-1, Tensor? page_table=None, Tensor(c!)? exact=None, Tensor? scale=None, Tensor? zero=None, "
    "Tensor? lower=None, Tensor? upper=None, Tensor(d!)? needed=None, int repeat_above=0) -> ()";

}  // namespace

TORCH_LIBRARY(kvcc, m) {
  m.def("page_bytes(str kernels, str tensor, int layer, int capacity=-1) -> int", page_bytes);
  m.def("default_capacity(str kernels, str tensor) -> int", default_capacity);
  m.def("rope_tables(Tensor inverse_frequencies, float attention_factor, int positions) -> Tensor[]");
  m.def((std::string("pack_key") + kPackArguments).c_str());
  m.def((std::string("pack_value") + kPackArguments).c_str());
  m.def(
      "dequantise(str kernels, str tensor, int layer, Tensor pages, Tensor lengths, Tensor first, SymInt count, "
      "int max_length, *, int capacity=-1, Tensor? page_table=None, Tensor? exact=None, Tensor? scale=None, "
      "Tensor? zero=None) -> Tensor");
  m.def(
      "key_scores(str kernels, int layer, Tensor query, Tensor pages, Tensor lengths, SymInt max_length, "
      "float multiplier, Tensor[] rope, *, int window=0, int capacity=-1, Tensor? page_table=None, Tensor? exact=None, "
      "Tensor? scale=None, Tensor? zero=None) -> Tensor");
  m.def(
      "value_mix(str kernels, int layer, Tensor weights, Tensor pages, Tensor lengths, *, int window=0, "
      "int capacity=-1, Tensor? page_table=None, Tensor? exact=None, Tensor? scale=None, Tensor? zero=None) -> Tensor");
  m.def(
      "attention(str kernels, int layer, Tensor query, Tensor key_pages, Tensor value_pages, Tensor lengths, "
      "SymInt max_length, float multiplier, Tensor[] rope, *, int window=0, int key_capacity=-1, int "
      "value_capacity=-1, "
      "Tensor? page_table=None, Tensor? key_exact=None, Tensor? value_exact=None, Tensor? key_scale=None, "
      "Tensor? key_zero=None, Tensor? value_scale=None, Tensor? value_zero=None) -> Tensor");
  m.def(
      "copy_pages(str kernels, str tensor, int layer, Tensor source, Tensor(a!) target, Tensor pairs, *, "
      "int source_capacity=-1, int target_capacity=-1) -> ()");
}

// One implementation for every device: it says itself which device it needs, or that there is no driver.
TORCH_LIBRARY_IMPL(kvcc, CompositeExplicitAutograd, m) {
  m.impl("rope_tables", rope_tables);
  m.impl("pack_key", pack_key);
  m.impl("pack_value", pack_value);
  m.impl("dequantise", dequantise);
  m.impl("key_scores", key_scores);
  m.impl("value_mix", value_mix);
  m.impl("attention", attention);
  m.impl("copy_pages", copy_pages);
}

TORCH_LIBRARY_IMPL(kvcc, Meta, m) {
  m.impl("pack_key", pack_meta);
  m.impl("pack_value", pack_meta);
  m.impl("dequantise", dequantise_meta);
  m.impl("key_scores", key_scores_meta);
  m.impl("value_mix", value_mix_meta);
  m.impl("attention", attention_meta);
  m.impl("copy_pages", copy_pages_meta);
}

}  // namespace kvcc::bindings
