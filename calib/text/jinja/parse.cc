#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "calib/text/jinja/syntax.h"
#include "calib/text/jinja/tokens.h"

namespace kvcc::jinja {
namespace {

constexpr int kMostDepth = 400;  ///< of nested statements and expressions; running them recurses as deep

using EK = Expression::Kind;
using SK = Statement::Kind;
using TK = Token::Kind;

class Parser {
 public:
  Parser(const std::string& source, const std::string& place) : place_(place), tokens_(tokenise(source, place)) {}

  Body run() {
    Body body = statements({});
    if (now().kind != TK::end) fail("the tag '" + now().text + "' closes nothing");
    return body;
  }

 private:
  [[noreturn]] void fail(const std::string& found, const std::string& wanted = "") const {
    throw template_error(place_, now().line, found, wanted);
  }
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(TK kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool is_mark(std::string_view text) const { return is(TK::mark, text); }
  bool is_word(std::string_view text) const { return is(TK::name, text); }
  bool accept(std::string_view text) {
    if (!is_mark(text) && !is_word(text)) return false;
    take();
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail("'" + now().text + "'", "'" + std::string(text) + "'");
  }
  std::string name(const char* wanted) {
    if (now().kind != TK::name) fail("'" + now().text + "'", wanted);
    return take().text;
  }
  void end_tag() {
    if (now().kind != TK::end_block) fail("'" + now().text + "'", "%}");
    take();
  }

  struct Deeper {
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMostDepth) parser_.fail("nested more than 400 deep");
    }
    ~Deeper() { --parser_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser& parser_;
  };

  /// Up to a tag of one of these names (which is left), or the end.
  Body statements(const std::set<std::string>& ends) {
    const Deeper deeper(*this);
    Body body;
    while (now().kind != TK::end) {
      Statement s;
      s.line = now().line;
      if (now().kind == TK::data) {
        s.text = take().text;
        body.statements.push_back(std::move(s));
      } else if (now().kind == TK::begin_output) {
        take();
        s.kind = SK::output;
        s.expressions.push_back(tuple());
        if (now().kind != TK::end_output) fail("'" + now().text + "'", "}}");
        take();
        body.statements.push_back(std::move(s));
      } else {
        if (ends.contains(ahead().text)) return body;
        take();
        statement(std::move(s), body);
      }
    }
    if (!ends.empty()) fail("the template ends", "{% " + *ends.begin() + " %}");
    return body;
  }

  /// The body up to {% `end` %}, which is taken too.
  Body body_to(const std::string& end) {
    end_tag();
    Body body = statements({end});
    take();
    take();
    return body;
  }

  void statement(Statement s, Body& body) {
    const std::string tag = name("the name of a tag");
    if (tag == "if") {
      branch(s);
    } else if (tag == "for") {
      loop(s);
    } else if (tag == "set") {
      assign(s);
    } else if (tag == "macro") {
      macro(s);
    } else if (tag == "break" || tag == "continue") {
      s.kind = tag == "break" ? SK::stop_loop : SK::next_turn;
      if (loops_ == 0) fail("'" + tag + "' outside of a loop");
    } else if (tag == "generation") {  // marks the answers; what is in it is text as ever
      s.kind = SK::block;
      s.bodies.push_back(body_to("endgeneration"));
    } else {
      fail("the tag '" + tag + "'", "one of if, for, set, macro, break, continue, generation");
    }
    end_tag();
    body.statements.push_back(std::move(s));
  }

  void branch(Statement& s) {
    s.kind = SK::branch;
    while (true) {
      s.expressions.push_back(tuple());
      end_tag();
      s.bodies.push_back(statements({"elif", "else", "endif"}));
      take();
      const std::string tag = take().text;
      if (tag == "endif") return;
      if (tag == "elif") continue;
      s.bodies.push_back(body_to("endif"));
      return;
    }
  }

  void loop(Statement& s) {
    s.kind = SK::loop;
    s.names = targets();
    expect("in");
    s.expressions.push_back(disjunction());
    if (accept("if")) s.expressions.push_back(expression());
    end_tag();
    ++loops_;
    s.bodies.push_back(statements({"else", "endfor"}));
    --loops_;
    take();
    if (take().text == "else") s.bodies.push_back(body_to("endfor"));
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool brackets = accept("(");
    do names.push_back(name("a name to assign to"));
    while (accept(","));
    if (brackets) expect(")");
    return names;
  }

  void assign(Statement& s) {
    s.kind = SK::assign;
    if (ahead().kind == TK::mark && ahead().text == ".") {
      s.text = name("a namespace");
      expect(".");
      s.names = {name("a member")};
    } else {
      s.names = targets();
    }
    if (accept("=")) {
      s.expressions.push_back(tuple());
      return;
    }
    if (now().kind != TK::end_block || s.names.size() > 1 || !s.text.empty()) fail("'" + now().text + "'", "'='");
    s.kind = SK::assign_block;
    s.bodies.push_back(body_to("endset"));
  }

  void macro(Statement& s) {
    s.kind = SK::macro;
    s.text = name("a macro's name");
    expect("(");
    while (!accept(")")) {
      s.names.push_back(name("a parameter"));
      if (accept("=")) {
        s.expressions.push_back(expression());
      } else if (!s.expressions.empty()) {
        fail("a parameter without default after one with", "defaults last");
      }
      if (!is_mark(")")) expect(",");
    }
    const int loops = std::exchange(loops_, 0);
    s.bodies.push_back(body_to("endmacro"));
    loops_ = loops;
  }

  Expression make(EK kind, std::string text = "") const {
    Expression e;
    e.kind = kind;
    e.line = now().line;
    e.text = std::move(text);
    return e;
  }
  Expression made(EK kind, std::string text, std::vector<Expression> children) const {
    Expression e = make(kind, std::move(text));
    e.children = std::move(children);
    return e;
  }

  /// expression, or several with commas between: a list.
  Expression tuple() {
    Expression first = expression();
    if (!is_mark(",")) return first;
    Expression list = made(EK::list, "", {std::move(first)});
    while (accept(",")) {
      if (is_mark(")") || now().kind == TK::end_block || now().kind == TK::end_output) break;
      list.children.push_back(expression());
    }
    return list;
  }

  Expression expression() {
    const Deeper deeper(*this);
    Expression e = disjunction();
    while (accept("if")) {
      Expression condition = disjunction(), otherwise = make(EK::literal);
      otherwise.value = undefined();
      if (accept("else")) otherwise = expression();
      e = made(EK::choice, "", {std::move(condition), std::move(e), std::move(otherwise)});
    }
    return e;
  }

  using Level = Expression (Parser::*)();
  Expression left_to_right(Level next, std::initializer_list<const char*> operators) {
    Expression e = (this->*next)();
    for (int count = 0;; ++count) {
      const auto found =
          std::find_if(operators.begin(), operators.end(), [&](const char* o) { return is_mark(o) || is_word(o); });
      if (found == operators.end()) return e;
      if (count > kMostDepth) fail("more than 400 operators in a row");
      take();
      e = made(EK::binary, *found, {std::move(e), (this->*next)()});
    }
  }

  Expression disjunction() { return left_to_right(&Parser::conjunction, {"or"}); }
  Expression conjunction() { return left_to_right(&Parser::negation, {"and"}); }
  Expression negation() {
    const Deeper deeper(*this);
    if (!accept("not")) return comparison();
    return made(EK::unary, "not", {negation()});
  }

  /// a < b < c is (a < b) and (b < c), as in Python.
  Expression comparison() {
    Expression left = sum();
    std::optional<Expression> all;
    while (true) {
      std::string text;
      for (const char* mark : {"==", "!=", "<", "<=", ">", ">="}) {
        if (is_mark(mark)) text = mark;
      }
      if (is_word("in")) text = "in";
      if (is_word("not") && ahead().kind == TK::name && ahead().text == "in") {
        take();
        text = "not in";
      }
      if (text.empty()) return all ? std::move(*all) : std::move(left);
      take();
      Expression right = sum();
      Expression one = made(EK::binary, text, {left, right});
      all = all ? made(EK::binary, "and", {std::move(*all), std::move(one)}) : std::move(one);
      left = std::move(right);
    }
  }

  Expression sum() { return left_to_right(&Parser::joined, {"+", "-"}); }
  Expression joined() { return left_to_right(&Parser::product, {"~"}); }
  Expression product() { return left_to_right(&Parser::power, {"*", "/", "//", "%"}); }
  Expression power() { return left_to_right(&Parser::filtered, {"**"}); }

  Expression filtered() {
    const Deeper deeper(*this);
    Expression e = sign();
    for (int count = 0;; ++count) {
      if (count > kMostDepth) fail("more than 400 filters in a row");
      if (accept("|")) {
        Expression filter = made(EK::filter, name("a filter"), {std::move(e)});
        if (accept("(")) arguments(filter);
        e = std::move(filter);
      } else if (accept("is")) {
        const bool negated = accept("not");
        e = test(std::move(e));
        if (negated) e = made(EK::unary, "not", {std::move(e)});
      } else {
        return e;
      }
    }
  }

  Expression sign() {
    const Deeper deeper(*this);
    for (const char* mark : {"-", "+"}) {
      if (accept(mark)) return made(EK::unary, mark, {sign()});
    }
    return suffixed(primary());
  }

  Expression test(Expression of) {
    Expression e = made(EK::test, is_mark("==") || is_mark("!=") ? take().text : name("a test"), {std::move(of)});
    const bool starts = now().kind == TK::string || now().kind == TK::number || is_mark("[") || is_mark("{") ||
                        (now().kind == TK::name && !is_word("else") && !is_word("or") && !is_word("and") &&
                         !is_word("is") && !is_word("if") && !is_word("in") && !is_word("not"));
    if (accept("(")) {
      arguments(e);
    } else if (starts) {
      e.children.push_back(suffixed(primary()));
    }
    return e;
  }

  /// What follows "(" up to ")", onto the children and named arguments.
  void arguments(Expression& e) {
    while (!accept(")")) {
      if (is_mark("*") || is_mark("**")) fail("'" + now().text + "' before an argument", "arguments one by one");
      if (now().kind == TK::name && ahead().kind == TK::mark && ahead().text == "=") {
        std::string argument = take().text;
        take();
        e.named.push_back({std::move(argument), expression()});
      } else {
        e.children.push_back(expression());
      }
      if (!is_mark(")")) expect(",");
    }
  }

  Expression suffixed(Expression e) {
    for (int count = 0;; ++count) {
      if (count > kMostDepth) fail("more than 400 members in a row");
      if (accept(".")) {
        if (now().kind == TK::number) {
          Expression index = primary();
          e = made(EK::item, "", {std::move(e), std::move(index)});
        } else {
          e = made(EK::attribute, name("a member"), {std::move(e)});
        }
      } else if (accept("[")) {
        e = subscript(std::move(e));
      } else if (accept("(")) {
        Expression call = made(EK::call, "", {std::move(e)});
        arguments(call);
        e = std::move(call);
      } else {
        return e;
      }
    }
  }

  Expression subscript(Expression of) {
    Expression nothing = make(EK::literal);
    nothing.value = undefined();
    Expression e = made(EK::slice, "", {std::move(of)});
    bool is_slice = false;
    for (int part = 0; part < 3; ++part) {
      e.children.push_back(is_mark(":") || is_mark("]") ? nothing : expression());
      if (!is_mark(":")) break;
      take();
      is_slice = true;
    }
    expect("]");
    if (!is_slice) e.kind = EK::item;
    while (is_slice && e.children.size() < 4) e.children.push_back(nothing);
    return e;
  }

  Expression primary() {
    const Deeper deeper(*this);
    Expression e = make(EK::literal);
    if (now().kind == TK::string) {
      std::string text;
      while (now().kind == TK::string) text += take().text;
      e.value = std::move(text);
    } else if (now().kind == TK::number) {
      e.value = number(take().text);
    } else if (now().kind == TK::name) {
      const std::string word = take().text;
      if (word == "true" || word == "True" || word == "false" || word == "False") {
        e.value = word == "true" || word == "True";
      } else if (word != "none" && word != "None") {
        e.kind = EK::name;
        e.text = word;
      }
    } else if (accept("(")) {
      if (accept(")")) return make(EK::list);
      e = tuple();
      expect(")");
    } else if (accept("[")) {
      e.kind = EK::list;
      while (!accept("]")) {
        e.children.push_back(expression());
        if (!is_mark("]")) expect(",");
      }
    } else if (accept("{")) {
      e.kind = EK::object;
      while (!accept("}")) {
        e.children.push_back(expression());
        expect(":");
        e.children.push_back(expression());
        if (!is_mark("}")) expect(",");
      }
    } else {
      fail("'" + now().text + "'", "an expression");
    }
    return e;
  }

  Value number(std::string text) const {
    std::erase(text, '_');
    const char *begin = text.data(), *end = begin + text.size();
    int64_t whole = 0;
    double real = 0;
    if (const auto [stop, error] = std::from_chars(begin, end, whole); error == std::errc() && stop == end)
      return whole;
    if (const auto [stop, error] = std::from_chars(begin, end, real); error == std::errc() && stop == end) return real;
    fail("the number " + text);
  }

  const std::string& place_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

Body parse(const std::string& source, const std::string& place) { return Parser(source, place).run(); }

}  // namespace kvcc::jinja
