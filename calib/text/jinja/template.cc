#include "calib/text/jinja/template.h"

#include <map>
#include <vector>

#include "calib/text/jinja/syntax.h"
#include "calib/text/jinja/values.h"

namespace kvcc::jinja {
namespace {

constexpr int64_t kMostSteps = 5'000'000;
constexpr size_t kMostText = 64 << 20;
constexpr int kMostDepth = 1000;  ///< of calls of this file's functions within each other

using EK = Expression::Kind;
using SK = Statement::Kind;

enum class Flow : uint8_t { on, stop_loop, next_turn };

/// The turn of a loop, for the name `loop`.
struct Turn {
  const std::vector<Value>* items;
  size_t at;
};

struct Variable {
  Value value;
  bool is_namespace = false;
};

struct Scope {
  std::map<std::string, Variable> variables;
  const Turn* turn = nullptr;
};

class Renderer {
 public:
  Renderer(const Value& variables, const std::string& place) : place_(place), scopes_(1) {
    for (const auto& [name, value] : variables.items()) scopes_[0].variables[name] = {value, false};
  }

  std::string run(const Body& body) {
    render(body);
    return std::move(out_);
  }

 private:
  struct Step {
    Step(Renderer& renderer, int line) : renderer_(renderer) {
      renderer.line_ = line;
      if (++renderer.steps_ > kMostSteps) throw Failure("more than 5 million steps");
      if (++renderer.depth_ > kMostDepth) throw Failure("calls too deep within each other");
    }
    ~Step() { --renderer_.depth_; }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    Renderer& renderer_;
  };

  void print(const std::string& text) {
    if (out_.size() + text.size() > kMostText) throw Failure("more than 64 MiB of text");
    out_ += text;
  }

  Variable* find(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return &found->second;
    }
    return nullptr;
  }

  Flow render(const Body& body) {
    for (const Statement& statement : body.statements) {
      Flow flow = Flow::on;
      try {
        const Step step(*this, statement.line);
        flow = render(statement);
      } catch (const Failure& failure) {
        throw template_error(place_, line_, failure.what());
      }
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  Flow render(const Statement& s) {
    switch (s.kind) {
      case SK::text:
        print(s.text);
        return Flow::on;
      case SK::output:
        print(text_of(value(s.expressions[0])));
        return Flow::on;
      case SK::branch:
        for (size_t i = 0; i < s.expressions.size(); ++i) {
          if (is_true(value(s.expressions[i]))) return render(s.bodies[i]);
        }
        return s.bodies.size() > s.expressions.size() ? render(s.bodies.back()) : Flow::on;
      case SK::loop:
        loop(s);
        return Flow::on;
      case SK::assign:
        assign(s);
        return Flow::on;
      case SK::assign_block:
        set(s.names, captured(s.bodies[0]));
        return Flow::on;
      case SK::macro:
        macros_[s.text] = &s;
        return Flow::on;
      case SK::block:
        return render(s.bodies[0]);
      case SK::stop_loop:
        return Flow::stop_loop;
      case SK::next_turn:
        return Flow::next_turn;
    }
    return Flow::on;
  }

  std::string captured(const Body& body) {
    std::string outside;
    std::swap(outside, out_);
    render(body);
    std::swap(outside, out_);
    return outside;
  }

  void loop(const Statement& s) {
    std::vector<Value> items = elements(value(s.expressions[0]));
    if (s.expressions.size() > 1) {  // the loop counts those alone that the condition lets through
      std::vector<Value> kept;
      for (Value& item : items) {
        scopes_.emplace_back();
        set(s.names, item);
        const bool keep = is_true(value(s.expressions[1]));
        scopes_.pop_back();
        if (keep) kept.push_back(std::move(item));
      }
      items = std::move(kept);
    }
    if (items.empty() && s.bodies.size() > 1) {
      render(s.bodies[1]);
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const Turn turn{&items, i};
      scopes_.emplace_back();
      scopes_.back().turn = &turn;
      set(s.names, items[i]);
      const Flow flow = render(s.bodies[0]);
      scopes_.pop_back();
      if (flow == Flow::stop_loop) break;
    }
  }

  void set(const std::vector<std::string>& names, const Value& value, bool is_namespace = false) {
    auto& variables = scopes_.back().variables;
    if (names.size() == 1) {
      variables[names[0]] = {value, is_namespace};
      return;
    }
    const std::vector<Value> parts = elements(value);
    if (parts.size() != names.size()) throw Failure("as many values as names are wanted");
    for (size_t i = 0; i < names.size(); ++i) variables[names[i]] = {parts[i], false};
  }

  void assign(const Statement& s) {
    const Expression& from = s.expressions[0];
    const bool makes = from.kind == EK::call && from.children[0].kind == EK::name &&
                       from.children[0].text == "namespace" && find("namespace") == nullptr;
    Value made = value(from);
    if (s.text.empty()) return set(s.names, made, makes);
    Variable* variable = find(s.text);
    if (variable == nullptr || !variable->is_namespace) throw Failure("'" + s.text + "' is no namespace");
    variable->value[s.names[0]] = std::move(made);
  }

  Value value(const Expression& e) {
    const Step step(*this, e.line);
    switch (e.kind) {
      case EK::literal:
        return e.value;
      case EK::name: {
        const Variable* variable = find(e.text);
        return variable != nullptr ? variable->value : undefined();
      }
      case EK::list: {
        Value list = Value::array();
        for (const Expression& child : e.children) list.push_back(value(child));
        return list;
      }
      case EK::object: {
        Value object = Value::object();
        for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
          object[text_of(value(e.children[i]))] = value(e.children[i + 1]);
        }
        return object;
      }
      case EK::attribute:
        return attribute(e);
      case EK::item: {
        const Value of = value(e.children[0]);
        return element(named(of, e.children[0]), value(e.children[1]));
      }
      case EK::slice:
        return slice(value(e.children[0]), value(e.children[1]), value(e.children[2]), value(e.children[3]));
      case EK::call:
        return call(e);
      case EK::filter:
        return apply_filter(e.text, value(e.children[0]), arguments(e, 1));
      case EK::test:
        if (e.text == "defined" && is_function(e.children[0])) return true;
        if (e.text == "undefined" && is_function(e.children[0])) return false;
        return apply_test(e.text, value(e.children[0]), arguments(e, 1));
      case EK::unary: {
        const Value of = value(e.children[0]);
        if (e.text == "not") return !is_true(of);
        return arithmetic(e.text, 0, of);
      }
      case EK::binary:
        return binary(e);
      case EK::choice:
        return value(e.children[is_true(value(e.children[0])) ? 1 : 2]);
    }
    return undefined();
  }

  /// The value, which must be defined to have members.
  const Value& named(const Value& of, const Expression& e) const {
    if (of.is_discarded()) throw Failure((e.text.empty() ? "something" : "'" + e.text + "'") + " is undefined");
    return of;
  }

  bool is_function(const Expression& e) {
    if (e.kind != EK::name || find(e.text) != nullptr) return false;
    return macros_.contains(e.text) || e.text == "raise_exception" || e.text == "namespace" || e.text == "range" ||
           e.text == "dict";
  }

  Value attribute(const Expression& e) {
    const Expression& base = e.children[0];
    if (base.kind == EK::name && base.text == "loop" && find("loop") == nullptr) return loop_value(e.text);
    if (e.text.starts_with("__")) throw Failure("the member '" + e.text + "'");
    const Value of = value(base);
    const Value found = element(named(of, base), e.text);
    if (found.is_discarded() && of.is_object() && (e.text == "items" || e.text == "get" || e.text == "keys")) {
      throw Failure("the method '" + e.text + "' without a call");
    }
    return found;
  }

  Value loop_value(const std::string& name) const {
    const Turn* turn = nullptr;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend() && turn == nullptr; ++scope) turn = scope->turn;
    if (turn == nullptr) throw Failure("'loop' is undefined");
    const size_t at = turn->at, size = turn->items->size();
    const auto number = [](size_t n) { return Value(static_cast<int64_t>(n)); };
    if (name == "index") return number(at + 1);
    if (name == "index0") return number(at);
    if (name == "revindex") return number(size - at);
    if (name == "revindex0") return number(size - at - 1);
    if (name == "length") return number(size);
    if (name == "first") return at == 0;
    if (name == "last") return at + 1 == size;
    if (name == "previtem") return at > 0 ? (*turn->items)[at - 1] : undefined();
    if (name == "nextitem") return at + 1 < size ? (*turn->items)[at + 1] : undefined();
    throw Failure("loop." + name + ", which kvcc has not");
  }

  Arguments arguments(const Expression& e, size_t first) {
    Arguments out;
    for (size_t i = first; i < e.children.size(); ++i) out.values.push_back(value(e.children[i]));
    for (const auto& [name, expression] : e.named) out.named.emplace_back(name, value(expression));
    return out;
  }

  Value binary(const Expression& e) {
    const std::string& mark = e.text;
    const Value a = value(e.children[0]);
    if (mark == "and") return is_true(a) ? value(e.children[1]) : a;
    if (mark == "or") return is_true(a) ? a : value(e.children[1]);
    const Value b = value(e.children[1]);
    if (mark == "~") return text_of(a) + text_of(b);
    if (mark == "==") return equal(a, b);
    if (mark == "!=") return !equal(a, b);
    if (mark == "in") return contains(b, a);
    if (mark == "not in") return !contains(b, a);
    if (mark == "<") return compare(a, b) < 0;
    if (mark == "<=") return compare(a, b) <= 0;
    if (mark == ">") return compare(a, b) > 0;
    if (mark == ">=") return compare(a, b) >= 0;
    for (size_t i = 0; i < 2; ++i) named(i == 0 ? a : b, e.children[i]);
    return arithmetic(mark, a, b);
  }

  Value call(const Expression& e) {
    const Expression& what = e.children[0];
    if (what.kind == EK::attribute) {
      const Value of = value(what.children[0]);
      return call_method(what.text, named(of, what.children[0]), arguments(e, 1));
    }
    if (what.kind != EK::name || find(what.text) != nullptr) throw Failure("a call of what is no function");
    const Arguments given = arguments(e, 1);
    if (const auto macro = macros_.find(what.text); macro != macros_.end()) return call_macro(*macro->second, given);
    if (what.text == "raise_exception") {
      throw Failure("the template refuses it: " + text_of(given.values.empty() ? Value("") : given.values[0]));
    }
    if (what.text == "range") return range(given);
    if (what.text == "namespace" || what.text == "dict") {
      Value object = given.values.empty() ? Value::object() : given.values[0];
      if (!object.is_object()) throw Failure(what.text + " of " + kind_of(object));
      for (const auto& [name, item] : given.named) object[name] = item;
      return object;
    }
    throw Failure("the function '" + what.text + "', which kvcc has not");
  }

  Value range(const Arguments& given) const {
    for (const Value& v : given.values) {
      if (!v.is_number_integer()) throw Failure(std::string("range of ") + kind_of(v));
    }
    if (given.values.empty() || given.values.size() > 3) throw Failure("range of no or more than 3 numbers");
    const bool one = given.values.size() == 1;
    const int64_t from = one ? 0 : given.values[0].get<int64_t>(), to = given.values[one ? 0 : 1].get<int64_t>();
    const int64_t by = given.values.size() == 3 ? given.values[2].get<int64_t>() : 1;
    if (by == 0) throw Failure("range with step 0");
    Value list = Value::array();
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
      if (list.size() >= 100'000) throw Failure("range of more than 100,000 numbers");
      list.push_back(i);
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    return list;
  }

  /// A macro sees its arguments and what the template has set outside of loops.
  Value call_macro(const Statement& macro, const Arguments& given) {
    Scope own;
    const size_t without_default = macro.names.size() - macro.expressions.size();
    if (given.values.size() > macro.names.size()) throw Failure("too many arguments of " + macro.text);
    for (size_t i = 0; i < macro.names.size(); ++i) {
      const Value* argument = given.find(i, macro.names[i]);
      Value v = undefined();
      if (argument != nullptr) {
        v = *argument;
      } else if (i >= without_default) {
        v = value(macro.expressions[i - without_default]);
      }
      own.variables[macro.names[i]] = {std::move(v), false};
    }
    std::vector<Scope> outside(std::make_move_iterator(scopes_.begin() + 1), std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(own));
    std::string text = captured(macro.bodies[0]);
    scopes_.resize(1);
    for (Scope& scope : outside) scopes_.push_back(std::move(scope));
    return text;
  }

  const std::string& place_;
  std::vector<Scope> scopes_;
  std::map<std::string, const Statement*> macros_;
  std::string out_;
  int64_t steps_ = 0;
  int depth_ = 0, line_ = 1;
};

}  // namespace

Template::Template(const std::string& source, const std::string& place)
    : place_(place), body_(std::make_shared<Body>(parse(source, place))) {}

std::string Template::render(const nlohmann::ordered_json& variables) const {
  return Renderer(variables, place_).run(*body_);
}

}  // namespace kvcc::jinja
