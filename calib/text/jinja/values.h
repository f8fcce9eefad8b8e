// What Python does with the values that templates handle. Not for other folders.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calib/text/jinja/syntax.h"

namespace kvcc::jinja {

/// What went wrong in an expression; the renderer adds place and line.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

bool is_true(const Value& value);
bool equal(const Value& a, const Value& b);
/// -1, 0, 1; two numbers or two texts.
int compare(const Value& a, const Value& b);
bool contains(const Value& in, const Value& what);
/// str(value): text as it is, lists and objects as Python shows them, "" for what is undefined.
std::string text_of(const Value& value);
/// json.dumps(value, ensure_ascii=False, indent=…); indent below 0: on one line.
std::string json_of(const Value& value, int indent);
const char* kind_of(const Value& value);

std::vector<std::string> characters(std::string_view text);  ///< code points of text; invalid bytes by themselves
int64_t length_of(const Value& value);
std::vector<Value> elements(const Value& value);  ///< as a loop sees them: of objects the keys, of texts characters
Value arithmetic(const std::string& mark, const Value& a, const Value& b);
Value element(const Value& of, const Value& index);  ///< undefined where there is none
Value slice(const Value& of, const Value& begin, const Value& end, const Value& step);
std::string trimmed(const std::string& text, std::string_view characters, bool left, bool right);

/// Arguments of a filter, test, method or function.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
  /// The i-th, or the one of this name; nullptr where neither is given.
  const Value* find(size_t i, std::string_view name) const;
  std::string text(size_t i, std::string_view name, const std::string& otherwise) const;
};

/// Throw Failure for a name that is not there.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
Value call_method(const std::string& name, const Value& of, const Arguments& arguments);

}  // namespace kvcc::jinja
