// The operators torch.ops.kvcc.*; schemas, and what each argument is, in register.cc.
#pragma once

#include "kernels/bindings/tensors.h"

namespace kvcc::bindings {

int64_t page_bytes(c10::string_view kernels, c10::string_view tensor, int64_t layer, int64_t capacity);
int64_t default_capacity(c10::string_view kernels, c10::string_view tensor);
std::vector<at::Tensor> rope_tables(const at::Tensor& inverse_frequencies, double attention_factor, int64_t positions);

void pack_key(c10::string_view kernels, int64_t layer, const at::Tensor& x, const at::Tensor& first,
              const at::Tensor& pages, const at::Tensor& status, int64_t max_length, int64_t capacity,
              const OptionalTensor& page_table, const OptionalTensor& exact, const OptionalTensor& scale,
              const OptionalTensor& zero, const OptionalTensor& lower, const OptionalTensor& upper,
              const OptionalTensor& needed, int64_t repeat_above);
void pack_value(c10::string_view kernels, int64_t layer, const at::Tensor& x, const at::Tensor& first,
                const at::Tensor& pages, const at::Tensor& status, int64_t max_length, int64_t capacity,
                const OptionalTensor& page_table, const OptionalTensor& exact, const OptionalTensor& scale,
                const OptionalTensor& zero, const OptionalTensor& lower, const OptionalTensor& upper,
                const OptionalTensor& needed, int64_t repeat_above);
at::Tensor dequantise(c10::string_view kernels, c10::string_view tensor, int64_t layer, const at::Tensor& pages,
                      const at::Tensor& lengths, const at::Tensor& first, int64_t count, int64_t max_length,
                      int64_t capacity, const OptionalTensor& page_table, const OptionalTensor& exact,
                      const OptionalTensor& scale, const OptionalTensor& zero);
at::Tensor key_scores(c10::string_view kernels, int64_t layer, const at::Tensor& query, const at::Tensor& pages,
                      const at::Tensor& lengths, int64_t max_length, double multiplier, at::TensorList rope,
                      int64_t window, int64_t capacity, const OptionalTensor& page_table, const OptionalTensor& exact,
                      const OptionalTensor& scale, const OptionalTensor& zero);
at::Tensor value_mix(c10::string_view kernels, int64_t layer, const at::Tensor& weights, const at::Tensor& pages,
                     const at::Tensor& lengths, int64_t window, int64_t capacity, const OptionalTensor& page_table,
                     const OptionalTensor& exact, const OptionalTensor& scale, const OptionalTensor& zero);
at::Tensor attention(c10::string_view kernels, int64_t layer, const at::Tensor& query, const at::Tensor& key_pages,
                     const at::Tensor& value_pages, const at::Tensor& lengths, int64_t max_length, double multiplier,
                     at::TensorList rope, int64_t window, int64_t key_capacity, int64_t value_capacity,
                     const OptionalTensor& page_table, const OptionalTensor& key_exact,
                     const OptionalTensor& value_exact, const OptionalTensor& key_scale, const OptionalTensor& key_zero,
                     const OptionalTensor& value_scale, const OptionalTensor& value_zero);
void copy_pages(c10::string_view kernels, c10::string_view tensor, int64_t layer, const at::Tensor& source,
                const at::Tensor& target, const at::Tensor& pairs, int64_t source_capacity, int64_t target_capacity);

}  // namespace kvcc::bindings
