#include "kernels/host/runtime_metadata.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "formats/core/text.h"

namespace kvcc::host {
namespace {

constexpr size_t kShown = 80;  // of a text in a message

template <class T>
bool parse(std::string_view text, T& number) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return !text.empty() && result.ec == std::errc() && result.ptr == end;
}

std::string quoted(const std::string& text) {
  return "'" + text.substr(0, kShown) + (text.size() > kShown ? "…'" : "'");
}

std::string range_text(int64_t least, int64_t most) {
  return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

FileFields::FileFields(const SafetensorsFile& file) : file_(file) {
  for (const SafeTensor& tensor : file.tensors()) tensors_[tensor.name] = &tensor;
}

Error FileFields::wrong(const std::string& name, std::string found, std::string wanted, std::string hint) const {
  return bad_input(file_.path() + ": " + name, std::move(found), std::move(wanted), std::move(hint));
}

const std::string& FileFields::text(const std::string& name) const {
  const auto found = file_.metadata().find(name);
  if (found == file_.metadata().end()) throw wrong(name, "not in the file's metadata");
  return found->second;
}

int64_t FileFields::integer(const std::string& name, int64_t least, int64_t most) const {
  const std::string& value = text(name);
  int64_t number = 0;
  if (!parse(value, number) || number < least || number > most) {
    throw wrong(name, quoted(value), range_text(least, most));
  }
  return number;
}

double FileFields::number(const std::string& name) const {
  const std::string& value = text(name);
  double number = 0;
  if (!parse(value, number) || !std::isfinite(number)) throw wrong(name, quoted(value), "a number");
  return number;
}

std::vector<int64_t> FileFields::integers(const std::string& name, size_t count, int64_t least, int64_t most) const {
  const std::string& value = text(name);
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= value.size() && numbers.size() <= count;) {
    const size_t end = std::min(value.find(',', begin), value.size());
    int64_t number = 0;
    if (!parse(std::string_view(value).substr(begin, end - begin), number) || number < least || number > most) {
      throw wrong(name, quoted(value), range_text(least, most) + " for each layer");
    }
    numbers.push_back(number);
    begin = end + 1;
  }
  if (numbers.size() != count) throw wrong(name, quoted(value), std::to_string(count) + " numbers");
  return numbers;
}

const std::string& FileFields::digest(const std::string& name) const {
  const std::string& value = text(name);
  const bool good = value.size() == 64 && value.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!good) throw wrong(name, quoted(value), "64 lower-case hexadecimal digits");
  return value;
}

void FileFields::check_version(const std::string& name, int most) const {
  const std::string& value = text(name);
  const size_t dot = std::min(value.find('.'), value.size());
  int major = 0, minor = 0;
  const bool good = dot < value.size() && parse(std::string_view(value).substr(0, dot), major) &&
                    parse(std::string_view(value).substr(dot + 1), minor) && major >= 1 && minor >= 0;
  if (!good) throw wrong(name, quoted(value), "MAJOR.MINOR");
  if (major > most) {
    throw wrong(name, value, "up to " + std::to_string(most) + ".x, which this build reads", "use a newer kvcc");
  }
}

const SafeTensor& FileFields::tensor(const std::string& name, const std::string& dtype,
                                     const std::vector<int64_t>& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw wrong(name, "no such tensor", dtype + " " + shape_text(shape));
  const SafeTensor& tensor = *found->second;
  bool good = tensor.dtype == dtype && tensor.shape.size() == shape.size();
  for (size_t i = 0; good && i < shape.size(); ++i) good = shape[i] < 0 || shape[i] == tensor.shape[i];
  if (!good) throw wrong(name, tensor.dtype + " " + shape_text(tensor.shape), dtype + " " + shape_text(shape));
  return tensor;
}

std::vector<float> FileFields::floats(const std::string& name, const std::vector<int64_t>& shape) const {
  const SafeTensor& from = tensor(name, "F32", shape);
  std::vector<float> values(from.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), from.bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace kvcc::host
