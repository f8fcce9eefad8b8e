#include "kernels/bindings/tensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <limits>
#include <sstream>

#include "formats/core/error.h"

namespace kvcc::bindings {
namespace {

std::string shape_text(c10::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + (shape[i] < 0 ? std::string("any") : std::to_string(shape[i]));
  }
  return text + "]";
}

std::string device_text(c10::Device device) {
  std::ostringstream text;
  text << device;
  return text.str();
}

/// Host values [H] of a layer on the device, copied once.
const at::Tensor& head_words_on(const std::vector<uint32_t>& words, c10::Device device) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, std::string>, at::Tensor> copies;  // folders live as long as the process
  const std::lock_guard lock(mutex);
  at::Tensor& copy = copies[{words.data(), device_text(device)}];
  if (!copy.defined()) {
    auto* data = const_cast<uint32_t*>(words.data());
    copy = at::from_blob(data, {static_cast<int64_t>(words.size())}, at::kInt).to(device);
  }
  return copy;
}

}  // namespace

void Arguments::refuse(const char* name, std::string found, std::string wanted) const {
  throw Error(ErrorKind::failed, std::string("kvcc::") + op_ + ", " + name, std::move(found), std::move(wanted));
}

const at::Tensor& Arguments::want(const at::Tensor& tensor, const char* name, c10::ScalarType dtype,
                                  std::initializer_list<int64_t> shape) const {
  const c10::IntArrayRef wanted(shape.begin(), shape.size());
  if (!tensor.defined()) refuse(name, "undefined", "a tensor");
  bool fits = tensor.scalar_type() == dtype && tensor.dim() == static_cast<int64_t>(shape.size());
  for (size_t i = 0; fits && i < wanted.size(); ++i) fits = wanted[i] < 0 || tensor.size(i) == wanted[i];
  if (!fits) {
    refuse(name, std::string(c10::toString(tensor.scalar_type())) + " " + shape_text(tensor.sizes()),
           std::string(c10::toString(dtype)) + " " + shape_text(wanted));
  }
  if (tensor.device() != device_) refuse(name, "on " + device_text(tensor.device()), "on " + device_text(device_));
  if (!tensor.is_contiguous()) refuse(name, "strides " + shape_text(tensor.strides()), "a contiguous tensor");
  return tensor;
}

int32_t Arguments::number(int64_t value, const char* name) const {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    refuse(name, std::to_string(value), "an int32");
  }
  return static_cast<int32_t>(value);
}

c10::Device launch_device(const char* op, const char* name, const at::Tensor& first) {
  if (!first.defined()) Arguments(op, c10::kCPU).refuse(name, "undefined", "a tensor");
  if (first.is_cuda()) return first.device();
  host::device_facts(0);  // says first of all that there is no driver, where that is so
  const char* on_host = std::getenv("KVCC_HOST_DRIVER");
  if (!first.is_cpu() || on_host == nullptr || std::string(on_host) != "1") {
    Arguments(op, first.device()).refuse(name, "on " + device_text(first.device()), "a CUDA tensor");
  }
  return first.device();
}

c10::ScalarType dtype_of(const Unit& unit) {
  return unit.dtype == "f32" ? at::kFloat : unit.dtype == "bf16" ? at::kBFloat16 : at::kHalf;
}

KvccCache cache_of(const Arguments& arguments, KernelsFolder& kernels, const std::string& tensor, int64_t layer,
                   int64_t sequences, const CacheTensors& t) {
  const KernelPages& rule = kernels.pages(tensor);
  const auto name = [&](const char* member) { return t.prefix + member; };
  const int64_t heads = kernels.kv_heads(), dim = kernels.head_dim(tensor);
  if (layer < 0 || layer >= static_cast<int64_t>(rule.code_words.size())) {
    arguments.refuse("layer", std::to_string(layer), "0 to " + std::to_string(rule.code_words.size() - 1));
  }
  KvccCache c{};
  c.code_words = rule.code_words[layer];
  c.sparse_capacity = t.capacity < 0 ? rule.default_capacity : arguments.number(t.capacity, name("capacity").c_str());
  c.tail = rule.tail;
  c.sequences = arguments.number(sequences, "sequences");
  c.heads = static_cast<int32_t>(heads);
  c.sink = kernels.sink();
  c.residual = kernels.residual();
  c.layer = static_cast<int32_t>(layer);
  c.page_bytes = kvcc_mma_page_bytes(c.code_words, rule.ranges, rule.classes, c.heads, c.sparse_capacity);
  c.pages = arguments.address<uint8_t>(t.pages, name("pages").c_str(), at::kByte, {-1, c.page_bytes});
  c.page_table = arguments.address<int32_t>(t.page_table, "page_table", at::kInt, {sequences, -1});
  if (!t.page_table && t.pages.size(0) % sequences != 0) {
    arguments.refuse(name("pages").c_str(), std::to_string(t.pages.size(0)) + " pages without a page_table",
                     "a multiple of " + std::to_string(sequences) + ", the sequences");
  }
  const int64_t pages = t.page_table ? t.page_table->size(1) : t.pages.size(0) / sequences;
  c.max_pages = arguments.number(pages, "pages of a sequence");
  c.lengths = arguments.address<int32_t>(t.lengths, "lengths", at::kInt, {sequences});
  c.exact = arguments.address<uint16_t>(t.exact, name("exact").c_str(), at::kHalf,
                                        {sequences, int64_t{c.sink} + c.residual, heads, dim});
  c.scale = arguments.address<float>(t.scale, name("scale").c_str(), at::kFloat, {heads, dim});
  c.zero = arguments.address<float>(t.zero, name("zero").c_str(), at::kFloat, {heads, dim});
  c.lower = arguments.address<float>(t.lower, name("lower").c_str(), at::kFloat, {heads, dim});
  c.upper = arguments.address<float>(t.upper, name("upper").c_str(), at::kFloat, {heads, dim});
  c.needed = arguments.address<uint32_t>(t.needed, name("needed").c_str(), at::kInt, {sequences, pages, heads});
  if (!rule.head_words.empty()) {
    c.head_words = static_cast<const uint32_t*>(head_words_on(rule.head_words[layer], arguments.device()).data_ptr());
  }
  return c;
}

void* current_stream(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace kvcc::bindings
