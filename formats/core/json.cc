#include "formats/core/json.h"

#include <filesystem>
#include <string_view>
#include <unordered_set>

#include "formats/core/file.h"
#include "formats/core/text.h"

namespace kvcc {
namespace {

/// Builds the document from the parser's events. The library's own builder takes time in the square of a document's
/// size where it is watched, and to search an ordered object for each name; this one looks names up in a set.
template <class Json>
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const std::string& place) : place_(place) {}

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(typename Json::number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(typename Json::number_float_t value, const std::string&) override { return add(Json(value)); }
  bool string(std::string& value) override { return add(Json(std::move(value))); }
  bool binary(typename Json::binary_t&) override { return false; }
  bool start_object(size_t) override { return start(Json::object()); }
  bool start_array(size_t) override { return start(Json::array()); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(std::string& name) override {
    Open& object = open_.back();
    object.last = std::move(name);
    if (!object.names.insert(object.last).second) throw bad_input(where(), "appears twice", "each name once");
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, …"
    error_ = what.substr(what.starts_with('[') ? what.find("] ") + 2 : 0);
    return false;
  }

 private:
  struct Open {
    Json value;
    std::unordered_set<std::string> names;  ///< of an object's members so far
    std::string last;
  };

  bool start(Json empty) {
    if (open_.size() >= kJsonDepth) throw bad_input(where(), "nests more than " + std::to_string(kJsonDepth) + " deep");
    open_.push_back({std::move(empty), {}, {}});
    return true;
  }
  bool end() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& parent = open_.back();
    if (parent.value.is_array()) {
      parent.value.push_back(std::move(value));
      return true;
    }
    auto& members = parent.value.template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      members.Container::emplace_back(parent.last, std::move(value));
    } else {
      members.emplace(parent.last, std::move(value));
    }
    return true;
  }

  /// "PLACE: settings.model", cut to a length that a message can have.
  std::string where() const {
    constexpr size_t kMost = 200;
    std::string path;
    for (const Open& open : open_) {
      if (open.last.empty() || path.size() > kMost) continue;
      path += (path.empty() ? "" : ".") + open.last.substr(0, kMost);
    }
    return path.empty() ? place_ : place_ + ": " + path;
  }

  const std::string& place_;
  std::vector<Open> open_;
  Json root_;
  std::string error_;
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& place) {
  Builder<Json> builder(place);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {  // the error may quote as much as the file holds
    throw bad_input(place, "not JSON, or truncated: " + builder.error().substr(0, 200));
  }
  Json document = builder.take();
  if (!document.is_object()) throw bad_input(place, "not a JSON object");
  return document;
}

template nlohmann::json parse_json(std::string_view, const std::string&);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&);

std::string read_json_text(const std::string& path, uint64_t most) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_directory(status)) {  // reading says the rest
    if (!fs::is_regular_file(status)) throw bad_input(path, "is not a regular file", "a file of JSON");
    const uint64_t size = fs::file_size(path, error);
    if (!error && size > most) {
      throw bad_input(path, human_bytes(size), "a file of JSON of at most " + human_bytes(most));
    }
  }
  return read_text_file(path);
}

}  // namespace kvcc
