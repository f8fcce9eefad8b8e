// Filters, tests and methods.
#include <algorithm>
#include <cctype>
#include <functional>
#include <map>

#include "calib/text/jinja/values.h"

namespace kvcc::jinja {
namespace {

using Filter = std::function<Value(const Value&, const Arguments&)>;
using Test = std::function<bool(const Value&, const Arguments&)>;

const std::string& text(const Value& value) {
  if (!value.is_string()) throw Failure(std::string("a text's method of ") + kind_of(value));
  return value.get_ref<const std::string&>();
}

/// ASCII letters alone; other letters would need Unicode's tables, and are refused rather than left.
std::string cased(const std::string& from, int (*change)(int)) {
  std::string out;
  for (const char c : from) {
    if (static_cast<unsigned char>(c) >= 0x80) throw Failure("upper or lower case beyond ASCII");
    out += static_cast<char>(change(static_cast<unsigned char>(c)));
  }
  return out;
}
std::string lower(const std::string& from) { return cased(from, std::tolower); }
std::string upper(const std::string& from) { return cased(from, std::toupper); }
std::string capitalised(const std::string& from) {
  std::string out = lower(from);
  if (!out.empty()) out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  return out;
}
std::string title(const std::string& from) {
  std::string out = lower(from);
  bool inside = false;
  for (char& c : out) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter && !inside) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    inside = letter;
  }
  return out;
}

std::string replaced(const std::string& in, const std::string& from, const std::string& to, int64_t most) {
  std::string out;
  size_t at = 0;
  if (from.empty()) throw Failure("replace of an empty text");
  while (most != 0) {
    const size_t found = in.find(from, at);
    if (found == std::string::npos) break;
    out += in.substr(at, found - at) + to;
    at = found + from.size();
    --most;
  }
  return out + in.substr(at);
}

Value split(const std::string& from, const Arguments& arguments, bool from_right) {
  const Value* limit = arguments.find(1, "maxsplit");
  int64_t most = limit != nullptr && limit->is_number_integer() ? limit->get<int64_t>() : -1;
  const std::string separator = arguments.text(0, "sep", "");
  std::vector<std::string> parts;
  if (separator.empty()) {
    if (most >= 0) throw Failure("split at white space with a limit");
    std::string word;
    for (const std::string& c : characters(from)) {
      if (trimmed(c, "", true, false).empty()) {
        if (!word.empty()) parts.push_back(std::exchange(word, ""));
      } else {
        word += c;
      }
    }
    if (!word.empty()) parts.push_back(word);
    return parts;
  }
  std::string rest = from;
  while (most != 0) {
    const size_t found = from_right ? rest.rfind(separator) : rest.find(separator);
    if (found == std::string::npos) break;
    const std::string before = rest.substr(0, found), after = rest.substr(found + separator.size());
    parts.push_back(from_right ? after : before);
    rest = from_right ? before : after;
    --most;
  }
  parts.push_back(rest);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value joined(const Value& list, const std::string& between, const std::string& attribute) {
  std::string out;
  bool first = true;
  for (const Value& item : elements(list)) {
    if (!first) out += between;
    first = false;
    out += text_of(attribute.empty() ? item : element(item, attribute));
  }
  return out;
}

Value pairs(const Value& of) {
  Value list = Value::array();
  if (of.is_discarded()) return list;
  if (!of.is_object()) throw Failure(std::string("items of ") + kind_of(of));
  for (const auto& [key, value] : of.items()) list.push_back(Value::array({key, value}));
  return list;
}

/// "a.b" of an object.
Value member(Value of, const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    of = element(of, path.substr(begin, end - begin));
    begin = end + 1;
  }
  return of;
}

/// select, reject, selectattr, rejectattr.
Value chosen(const Value& list, const Arguments& arguments, bool by_attribute, bool wanted) {
  Value out = Value::array();
  const size_t first = by_attribute ? 1 : 0;
  for (const Value& item : elements(list)) {
    const Value value = by_attribute ? member(item, arguments.text(0, "attribute", "")) : item;
    bool good = false;
    if (arguments.values.size() <= first) {
      good = is_true(value);
    } else {
      const Arguments rest{{arguments.values.begin() + static_cast<long>(first) + 1, arguments.values.end()}, {}};
      good = apply_test(arguments.text(first, "test", ""), value, rest);
    }
    if (good == wanted) out.push_back(item);
  }
  return out;
}

Value mapped(const Value& list, const Arguments& arguments) {
  Value out = Value::array();
  const bool by_attribute = arguments.values.empty();
  const Value* otherwise = by_attribute ? arguments.find(1, "default") : nullptr;
  for (const Value& item : elements(list)) {
    if (by_attribute) {
      Value value = member(item, arguments.text(0, "attribute", ""));
      if (value.is_discarded() && otherwise != nullptr) value = *otherwise;
      out.push_back(value);
    } else {
      const Arguments rest{{arguments.values.begin() + 1, arguments.values.end()}, arguments.named};
      out.push_back(apply_filter(arguments.text(0, "filter", ""), item, rest));
    }
  }
  return out;
}

Value with_default(const Value& value, const Arguments& arguments) {
  const Value* falsy = arguments.find(1, "boolean");
  const bool missing = value.is_discarded() || (falsy != nullptr && is_true(*falsy) && !is_true(value));
  const Value* otherwise = arguments.find(0, "default_value");
  return missing ? (otherwise != nullptr ? *otherwise : Value("")) : value;
}

Value as_json(const Value& value, const Arguments& arguments) {
  for (const char* name : {"separators", "sort_keys"}) {
    if (arguments.find(9, name) != nullptr) throw Failure(std::string("tojson with ") + name);
  }
  const Value* indent = arguments.find(0, "indent");
  return json_of(value, indent != nullptr && indent->is_number_integer() ? indent->get<int>() : -1);
}

Value indented(const Value& value, const Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const Value *first = arguments.find(1, "first"), *blank = arguments.find(2, "blank");
  const std::string pad(width != nullptr && width->is_number_integer() ? std::clamp(width->get<int>(), 0, 1000) : 4,
                        ' ');
  const std::string from = text_of(value);
  std::string out = first != nullptr && is_true(*first) ? pad : "";
  for (size_t i = 0; i < from.size(); ++i) {
    out += from[i];
    const bool empty = i + 1 < from.size() && from[i + 1] == '\n' && !(blank != nullptr && is_true(*blank));
    if (from[i] == '\n' && !empty && i + 1 < from.size()) out += pad;
  }
  return out;
}

Value as_integer(const Value& value) {
  if (value.is_number()) return static_cast<int64_t>(value.get<double>());
  try {
    return static_cast<int64_t>(std::stoll(text_of(value)));
  } catch (const std::exception&) {
    return int64_t{0};
  }
}

const std::map<std::string, Filter>& filters() {
  using A = Arguments;
  static const Filter kLength = [](const Value& v, const A&) { return length_of(v); };
  static const Filter kTrim = [](const Value& v, const A& a) {
    return trimmed(text_of(v), a.text(0, "chars", ""), true, true);
  };
  static const std::map<std::string, Filter> kAll = {
      {"abs", [](const Value& v, const A&) { return compare(v, 0) < 0 ? arithmetic("-", 0, v) : v; }},
      {"capitalize", [](const Value& v, const A&) { return capitalised(text_of(v)); }},
      {"count", kLength},
      {"d", with_default},
      {"default", with_default},
      {"first",
       [](const Value& v, const A&) {
         const std::vector<Value> all = elements(v);
         return all.empty() ? undefined() : all.front();
       }},
      {"indent", indented},
      {"int", [](const Value& v, const A&) { return as_integer(v); }},
      {"items", [](const Value& v, const A&) { return pairs(v); }},
      {"join", [](const Value& v, const A& a) { return joined(v, a.text(0, "d", ""), a.text(1, "attribute", "")); }},
      {"last",
       [](const Value& v, const A&) {
         const std::vector<Value> all = elements(v);
         return all.empty() ? undefined() : all.back();
       }},
      {"length", kLength},
      {"list", [](const Value& v, const A&) { return Value(elements(v)); }},
      {"lower", [](const Value& v, const A&) { return lower(text_of(v)); }},
      {"map", mapped},
      {"reject", [](const Value& v, const A& a) { return chosen(v, a, false, false); }},
      {"rejectattr", [](const Value& v, const A& a) { return chosen(v, a, true, false); }},
      {"replace",
       [](const Value& v, const A& a) { return replaced(text_of(v), a.text(0, "old", ""), a.text(1, "new", ""), -1); }},
      {"reverse", [](const Value& v, const A&) { return slice(v, undefined(), undefined(), -1); }},
      {"safe", [](const Value& v, const A&) { return v; }},
      {"select", [](const Value& v, const A& a) { return chosen(v, a, false, true); }},
      {"selectattr", [](const Value& v, const A& a) { return chosen(v, a, true, true); }},
      {"string", [](const Value& v, const A&) { return text_of(v); }},
      {"title", [](const Value& v, const A&) { return title(text_of(v)); }},
      {"tojson", as_json},
      {"trim", kTrim},
      {"upper", [](const Value& v, const A&) { return upper(text_of(v)); }},
  };
  return kAll;
}

const Value& only(const Arguments& arguments) {
  if (arguments.values.size() != 1) throw Failure("a test without its one argument");
  return arguments.values[0];
}

const std::map<std::string, Test>& tests() {
  using A = Arguments;
  static const Test kEqual = [](const Value& v, const A& a) { return equal(v, only(a)); };
  static const Test kLess = [](const Value& v, const A& a) { return compare(v, only(a)) < 0; };
  static const Test kMore = [](const Value& v, const A& a) { return compare(v, only(a)) > 0; };
  static const Test kOther = [](const Value& v, const A& a) { return !equal(v, only(a)); };
  static const std::map<std::string, Test> kAll = {
      {"!=", kOther},
      {"==", kEqual},
      {"boolean", [](const Value& v, const A&) { return v.is_boolean(); }},
      {"defined", [](const Value& v, const A&) { return !v.is_discarded(); }},
      {"divisibleby", [](const Value& v, const A& a) { return equal(arithmetic("%", v, only(a)), 0); }},
      {"eq", kEqual},
      {"equalto", kEqual},
      {"<", kLess},
      {"<=", [](const Value& v, const A& a) { return compare(v, only(a)) <= 0; }},
      {">", kMore},
      {">=", [](const Value& v, const A& a) { return compare(v, only(a)) >= 0; }},
      {"ge", [](const Value& v, const A& a) { return compare(v, only(a)) >= 0; }},
      {"greaterthan", kMore},
      {"gt", kMore},
      {"le", [](const Value& v, const A& a) { return compare(v, only(a)) <= 0; }},
      {"lessthan", kLess},
      {"lt", kLess},
      {"even", [](const Value& v, const A&) { return equal(arithmetic("%", v, 2), 0); }},
      {"false", [](const Value& v, const A&) { return v.is_boolean() && !v.get<bool>(); }},
      {"float", [](const Value& v, const A&) { return v.is_number_float(); }},
      {"in", [](const Value& v, const A& a) { return contains(only(a), v); }},
      {"integer", [](const Value& v, const A&) { return v.is_number_integer(); }},
      {"iterable", [](const Value& v, const A&) { return v.is_string() || v.is_structured() || v.is_discarded(); }},
      {"mapping", [](const Value& v, const A&) { return v.is_object(); }},
      {"ne", kOther},
      {"none", [](const Value& v, const A&) { return v.is_null(); }},
      {"number", [](const Value& v, const A&) { return v.is_number() || v.is_boolean(); }},
      {"odd", [](const Value& v, const A&) { return equal(arithmetic("%", v, 2), 1); }},
      {"sequence", [](const Value& v, const A&) { return v.is_string() || v.is_structured() || v.is_discarded(); }},
      {"string", [](const Value& v, const A&) { return v.is_string(); }},
      {"true", [](const Value& v, const A&) { return v.is_boolean() && v.get<bool>(); }},
      {"undefined", [](const Value& v, const A&) { return v.is_discarded(); }},
  };
  return kAll;
}

const std::map<std::string, Filter>& text_methods() {
  using A = Arguments;
  static const auto kStrip = [](bool left, bool right) -> Filter {
    return [=](const Value& v, const A& a) { return trimmed(text(v), a.text(0, "chars", ""), left, right); };
  };
  static const std::map<std::string, Filter> kAll = {
      {"capitalize", [](const Value& v, const A&) { return capitalised(text(v)); }},
      {"endswith", [](const Value& v, const A& a) { return text(v).ends_with(a.text(0, "suffix", "")); }},
      {"find",
       [](const Value& v, const A& a) -> Value {
         const size_t at = text(v).find(a.text(0, "sub", ""));
         if (at == std::string::npos) return int64_t{-1};
         return static_cast<int64_t>(characters(text(v).substr(0, at)).size());
       }},
      {"join", [](const Value& v, const A& a) { return joined(only(a), text(v), ""); }},
      {"lower", [](const Value& v, const A&) { return lower(text(v)); }},
      {"lstrip", kStrip(true, false)},
      {"replace",
       [](const Value& v, const A& a) {
         const Value* most = a.find(2, "count");
         return replaced(text(v), a.text(0, "old", ""), a.text(1, "new", ""),
                         most != nullptr && most->is_number_integer() ? most->get<int64_t>() : -1);
       }},
      {"rsplit", [](const Value& v, const A& a) { return split(text(v), a, true); }},
      {"rstrip", kStrip(false, true)},
      {"split", [](const Value& v, const A& a) { return split(text(v), a, false); }},
      {"startswith", [](const Value& v, const A& a) { return text(v).starts_with(a.text(0, "prefix", "")); }},
      {"strip", kStrip(true, true)},
      {"title", [](const Value& v, const A&) { return title(text(v)); }},
      {"upper", [](const Value& v, const A&) { return upper(text(v)); }},
  };
  return kAll;
}

Value get(const Value& of, const Arguments& arguments) {
  const Value found = element(of, arguments.text(0, "key", ""));
  if (!found.is_discarded()) return found;
  const Value* otherwise = arguments.find(1, "default");
  return otherwise != nullptr ? *otherwise : Value();
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) throw Failure("the filter '" + name + "', which kvcc has not");
  return found->second(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw Failure("the test '" + name + "', which kvcc has not");
  return found->second(value, arguments);
}

Value call_method(const std::string& name, const Value& of, const Arguments& arguments) {
  if (of.is_object()) {
    if (name == "get") return get(of, arguments);
    if (name == "items") return pairs(of);
    if (name == "keys") return Value(elements(of));
    if (name == "values") {
      Value list = Value::array();
      for (const Value& value : of) list.push_back(value);
      return list;
    }
  }
  const auto found = text_methods().find(name);
  if (found == text_methods().end() || !of.is_string()) {
    throw Failure("the method '" + name + "' of " + kind_of(of) + ", which kvcc has not");
  }
  return found->second(of, arguments);
}

}  // namespace kvcc::jinja
