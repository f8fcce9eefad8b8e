#include "calib/text/jinja/values.h"

#include <algorithm>
#include <cmath>

#include "calib/text/utf8.h"

namespace kvcc::jinja {
namespace {

bool is_number(const Value& v) { return v.is_number() || v.is_boolean(); }
double real(const Value& v) { return v.is_boolean() ? (v.get<bool>() ? 1.0 : 0.0) : v.get<double>(); }
int64_t whole(const Value& v) { return v.is_boolean() ? (v.get<bool>() ? 1 : 0) : v.get<int64_t>(); }

/// repr() of a text.
std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    switch (c) {
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (c == quote || c == '\\') out += '\\';
        out += c;
    }
  }
  return out + quote;
}

std::string shown(const Value& value) {
  if (value.is_string()) return quoted(value.get<std::string>());
  return text_of(value);
}

std::string number_text(const Value& value) {
  if (!value.is_number_float()) return value.dump();
  const double x = value.get<double>();
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return value.dump();
}

void write_json(const Value& value, int indent, int depth, std::string& out) {
  const auto line = [&](int levels) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent) * static_cast<size_t>(levels), ' ');
  };
  const char* comma = indent >= 0 ? "," : ", ";
  if (value.is_discarded()) throw Failure("what is undefined as JSON");
  if (!value.is_structured()) {
    out += value.dump(-1, ' ', false, Value::error_handler_t::replace);
    return;
  }
  const char *open = value.is_array() ? "[" : "{", *close = value.is_array() ? "]" : "}";
  out += open;
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) out += comma;
    first = false;
    line(depth + 1);
    if (value.is_object()) out += Value(key).dump(-1, ' ', false, Value::error_handler_t::replace) + ": ";
    write_json(item, indent, depth + 1, out);
  }
  if (!first) line(depth);
  out += close;
}

}  // namespace

const char* kind_of(const Value& value) {
  if (value.is_discarded()) return "what is undefined";
  if (value.is_null()) return "none";
  if (value.is_string()) return "a text";
  if (value.is_array()) return "a list";
  return value.is_object() ? "an object" : "a number";
}

bool is_true(const Value& value) {
  if (value.is_discarded() || value.is_null()) return false;
  if (is_number(value)) return real(value) != 0;
  return value.is_string() ? !value.get_ref<const std::string&>().empty() : !value.empty();
}

bool equal(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) {
    return a.is_number_float() || b.is_number_float() ? real(a) == real(b) : whole(a) == whole(b);
  }
  if (a.is_discarded() || b.is_discarded()) return a.is_discarded() && b.is_discarded();
  return a == b;
}

int compare(const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return real(a) < real(b) ? -1 : (real(a) > real(b) ? 1 : 0);
  if (!a.is_string() || !b.is_string()) throw Failure(std::string(kind_of(a)) + " compared with " + kind_of(b));
  const int order = a.get_ref<const std::string&>().compare(b.get_ref<const std::string&>());
  return order < 0 ? -1 : (order > 0 ? 1 : 0);
}

bool contains(const Value& in, const Value& what) {
  if (in.is_discarded()) return false;
  if (in.is_string() && what.is_string()) {
    return in.get_ref<const std::string&>().find(what.get_ref<const std::string&>()) != std::string::npos;
  }
  if (in.is_object()) return what.is_string() && in.contains(what.get<std::string>());
  if (in.is_array()) return std::any_of(in.begin(), in.end(), [&](const Value& v) { return equal(v, what); });
  throw Failure(std::string("'in' ") + kind_of(in));
}

std::string text_of(const Value& value) {
  if (value.is_discarded()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number()) return number_text(value);
  std::string out = value.is_array() ? "[" : "{";
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) out += ", ";
    first = false;
    if (value.is_object()) out += quoted(key) + ": ";
    out += shown(item);
  }
  return out + (value.is_array() ? "]" : "}");
}

std::string json_of(const Value& value, int indent) {
  std::string out;
  write_json(value, indent, 0, out);
  return out;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(1, utf8_length(text, at));
    out.emplace_back(text.substr(at, length));
    at += length;
  }
  return out;
}

int64_t length_of(const Value& value) {
  if (value.is_discarded()) return 0;
  if (value.is_string()) return static_cast<int64_t>(characters(value.get_ref<const std::string&>()).size());
  if (!value.is_structured()) throw Failure(std::string("the length of ") + kind_of(value));
  return static_cast<int64_t>(value.size());
}

std::vector<Value> elements(const Value& value) {
  std::vector<Value> out;
  if (value.is_discarded()) return out;
  if (value.is_string()) {
    for (std::string& c : characters(value.get_ref<const std::string&>())) out.emplace_back(std::move(c));
  } else if (value.is_array()) {
    out.assign(value.begin(), value.end());
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) out.emplace_back(key);
  } else {
    throw Failure(std::string("a loop over ") + kind_of(value));
  }
  return out;
}

Value arithmetic(const std::string& mark, const Value& a, const Value& b) {
  if (mark == "+" && a.is_string() && b.is_string()) return a.get<std::string>() + b.get<std::string>();
  if (mark == "+" && a.is_array() && b.is_array()) {
    Value sum = a;
    for (const Value& item : b) sum.push_back(item);
    return sum;
  }
  if (mark == "*" && a.is_string() && b.is_number_integer()) {
    std::string out;
    const std::string& text = a.get_ref<const std::string&>();
    const int64_t times = std::max<int64_t>(0, whole(b));
    if (times > 0 && text.size() > (size_t{1} << 26) / static_cast<size_t>(times)) throw Failure("a text too long");
    for (int64_t i = 0; i < times; ++i) out += text;
    return out;
  }
  if (!is_number(a) || !is_number(b)) throw Failure(std::string(kind_of(a)) + " " + mark + " " + kind_of(b));
  const bool reals = a.is_number_float() || b.is_number_float() || mark == "/";
  if ((mark == "/" || mark == "//" || mark == "%") && real(b) == 0) throw Failure("division by zero");
  if (reals || mark == "**") {
    const double x = real(a), y = real(b);
    double z = 0;
    if (mark == "+") z = x + y;
    if (mark == "-") z = x - y;
    if (mark == "*") z = x * y;
    if (mark == "/") z = x / y;
    if (mark == "//") z = std::floor(x / y);
    if (mark == "%") z = x - y * std::floor(x / y);
    if (mark == "**") z = std::pow(x, y);
    if (!reals && y >= 0 && std::fabs(z) < 9e15) return static_cast<int64_t>(z);
    return z;
  }
  const int64_t x = whole(a), y = whole(b);
  int64_t z = 0;
  bool overflow = false;
  if (mark == "+") overflow = __builtin_add_overflow(x, y, &z);
  if (mark == "-") overflow = __builtin_sub_overflow(x, y, &z);
  if (mark == "*") overflow = __builtin_mul_overflow(x, y, &z);
  if (mark == "//" || mark == "%") {
    if (y == -1) {
      overflow = mark == "//" && __builtin_sub_overflow(int64_t{0}, x, &z);
    } else {
      const int64_t rest = x % y, below = rest != 0 && (rest < 0) != (y < 0) ? 1 : 0;
      z = mark == "//" ? x / y - below : rest + below * y;
    }
  }
  if (overflow) throw Failure("a whole number beyond 64 bits");
  return z;
}

Value element(const Value& of, const Value& index) {
  if (of.is_discarded()) throw Failure(std::string("a member of ") + kind_of(of));
  if (of.is_object() && index.is_string()) {
    const auto found = of.find(index.get_ref<const std::string&>());
    return found == of.end() ? undefined() : *found;
  }
  if (!index.is_number_integer() || of.is_object() || !(of.is_array() || of.is_string())) return undefined();
  const int64_t size = length_of(of);
  int64_t at = index.get<int64_t>();
  if (at < 0) at += size;
  if (at < 0 || at >= size) return undefined();
  return of.is_array() ? of[static_cast<size_t>(at)]
                       : Value(characters(of.get_ref<const std::string&>())[static_cast<size_t>(at)]);
}

Value slice(const Value& of, const Value& begin, const Value& end, const Value& step) {
  if (!of.is_array() && !of.is_string()) throw Failure(std::string("a slice of ") + kind_of(of));
  const std::vector<Value> all = elements(of);
  const auto size = static_cast<int64_t>(all.size());
  const auto given = [](const Value& v) { return !v.is_discarded() && !v.is_null(); };
  for (const Value* v : {&begin, &end, &step}) {
    if (given(*v) && !v->is_number_integer()) throw Failure(std::string("a slice with ") + kind_of(*v));
  }
  const int64_t by = given(step) ? step.get<int64_t>() : 1;
  if (by == 0) throw Failure("a slice with step 0");
  // As Python's slice.indices().
  const int64_t least = by < 0 ? -1 : 0, most = by < 0 ? size - 1 : size;
  const auto bound = [&](const Value& v, int64_t otherwise) {
    if (!given(v)) return otherwise;
    int64_t at = v.get<int64_t>();
    if (at < 0) at += size;
    return std::clamp(at, least, most);
  };
  const int64_t from = bound(begin, by < 0 ? most : least), to = bound(end, by < 0 ? least : most);
  Value list = Value::array();
  std::string text;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    if (of.is_array()) list.push_back(all[static_cast<size_t>(i)]);
    if (of.is_string()) text += all[static_cast<size_t>(i)].get_ref<const std::string&>();
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return of.is_array() ? list : Value(text);
}

std::string trimmed(const std::string& text, std::string_view set, bool left, bool right) {
  const std::vector<std::string> all = characters(text);
  const std::vector<std::string> strip = characters(set);
  const auto goes = [&](const std::string& c) {
    if (!set.empty()) return std::find(strip.begin(), strip.end(), c) != strip.end();
    if (c.size() == 1 && c[0] >= 0x1c && c[0] <= 0x1f) return true;  // Python's str.isspace() has them too
    return utf8_length(c, 0) > 0 && is_white_space(utf8_code(c, 0));
  };
  size_t begin = 0, end = all.size();
  while (left && begin < end && goes(all[begin])) ++begin;
  while (right && end > begin && goes(all[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) out += all[i];
  return out;
}

const Value* Arguments::find(size_t i, std::string_view name) const {
  if (i < values.size()) return &values[i];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string Arguments::text(size_t i, std::string_view name, const std::string& otherwise) const {
  const Value* value = find(i, name);
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_string()) throw Failure("the argument " + std::string(name) + " is " + kind_of(*value));
  return value->get<std::string>();
}

}  // namespace kvcc::jinja
