// Templates as trees. Not for other folders.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/core/error.h"

namespace kvcc::jinja {

using Value = nlohmann::ordered_json;

/// What a name stands for that has no value.
inline Value undefined() { return Value(Value::value_t::discarded); }

struct NamedArgument;

struct Expression {
  enum class Kind : uint8_t {
    literal,
    name,
    list,       ///< also a tuple
    object,     ///< children: key, value, key, value, …
    attribute,  ///< child.text
    item,       ///< child[child]
    slice,      ///< child[child:child:child]; a literal that is undefined where one is left out
    call,       ///< child(children…); of a name or an attribute
    filter,     ///< child | text(children…)
    test,       ///< child is text(children…)
    unary,      ///< "not", "-", "+"
    binary,     ///< "+", "==", "and", "in", …
    choice,     ///< children: condition, then, else
  };
  Kind kind = Kind::literal;
  int line = 1;
  std::string text;
  Value value;
  std::vector<Expression> children;
  std::vector<NamedArgument> named;
};

struct NamedArgument {
  std::string name;
  Expression value;
};

struct Statement;

struct Body {
  std::vector<Statement> statements;
};

struct Statement {
  enum class Kind : uint8_t { text, output, branch, loop, assign, assign_block, macro, block, stop_loop, next_turn };
  Kind kind = Kind::text;
  int line = 1;
  std::string text;                ///< as it is printed; name of a macro or a namespace
  std::vector<std::string> names;  ///< targets; parameters of a macro; of a namespace its member
  /// output, assign: the value. branch: conditions. loop: the list and, where there is one, the condition. macro:
  /// defaults of its last parameters.
  std::vector<Expression> expressions;
  std::vector<Body> bodies;  ///< branch: one a condition, then else; loop: body and else
};

/// Template text to a tree; `place` is for errors.
Body parse(const std::string& source, const std::string& place);

inline Error template_error(const std::string& place, int line, const std::string& found,
                            const std::string& wanted = "") {
  return bad_input(place + " line " + std::to_string(line), found, wanted,
                   "render the conversations elsewhere and give them as texts, or as --ids");
}

}  // namespace kvcc::jinja
