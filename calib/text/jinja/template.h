// The part of Jinja 2 that chat templates are written in (https://jinja.palletsprojects.com/en/stable/templates/), set
// up as transformers sets it up: trim_blocks, lstrip_blocks, break and continue, tojson without HTML escapes.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace kvcc::jinja {

struct Body;

/// There are text, comments, white space control, if, for (with its condition, else, break, continue), set (of names,
/// pairs, members of a namespace, and as a block), macro, generation; all operators; the filters, tests and methods
/// that calls.cc lists; namespace, range, dict and raise_exception. Values are JSON, so that a tuple is a list and
/// prints as one; a list or object is a copy wherever it goes, so that nothing changes it; case is changed in ASCII
/// alone. Anything else of Jinja is refused by its name, never guessed.
class Template {
 public:
  /// Throws Error(bad_input) at `place` with the line, for what is wrong or not there.
  Template(const std::string& source, const std::string& place);
  /// `variables` is an object. Throws Error(bad_input) as above, for what the template itself raises, and beyond 64 MiB
  /// of text or 5 million steps.
  std::string render(const nlohmann::ordered_json& variables) const;

 private:
  std::string place_;
  std::shared_ptr<const Body> body_;
};

}  // namespace kvcc::jinja
