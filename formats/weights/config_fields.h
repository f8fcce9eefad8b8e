// Members of the JSON object that a configuration is, with messages that name file and member.
#pragma once

#include <string>

#include "formats/core/error.h"
#include "formats/core/json.h"

namespace kvcc {

/// Bytes of a config.json; more is refused unread.
inline constexpr uint64_t kMostConfig = 16 << 20;

/// Members of one JSON object, which must outlive this; null counts as absent. Throws Error(bad_input) for a member of
/// another type.
class Fields {
 public:
  Fields(std::string place, const nlohmann::json& object) : place_(std::move(place)), object_(object) {}

  const nlohmann::json* get(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  int64_t integer(const char* name, int64_t otherwise) const {
    const nlohmann::json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_number_integer() || (v->is_number_unsigned() && v->get<uint64_t>() > INT64_MAX))
      throw wrong(name, "an integer");
    return v->get<int64_t>();
  }
  int64_t integer(const char* name) const {
    if (!get(name)) throw bad_input(place_, std::string(name) + " is absent", "an integer");
    return integer(name, 0);
  }
  double number(const char* name, double otherwise) const {
    const nlohmann::json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_number()) throw wrong(name, "a number");
    return v->get<double>();
  }
  bool boolean(const char* name, bool otherwise) const {
    const nlohmann::json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_boolean()) throw wrong(name, "true or false");
    return v->get<bool>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    const nlohmann::json* v = get(name);
    if (!v) return otherwise;
    if (!v->is_string()) throw wrong(name, "a string");
    return v->get<std::string>();
  }
  /// bos and eos may be one id or a list, of which the first counts.
  int64_t token(const char* name) const {
    const nlohmann::json* v = get(name);
    if (v && v->is_array()) v = v->empty() ? nullptr : &v->front();
    if (!v) return -1;
    if (!v->is_number_integer()) throw wrong(name, "a token id");
    return v->get<int64_t>();
  }
  Error wrong(const char* name, const char* wanted) const {
    return bad_input(place_, std::string(name) + " is " + json_brief(*get(name)), wanted);
  }

 private:
  std::string place_;
  const nlohmann::json& object_;
};

}  // namespace kvcc
