// Shared by scheme.cc (the spelt-out form) and presets.cc; not for other folders.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/core/error.h"
#include "formats/core/scheme.h"

namespace kvcc::scheme_parts {

/// Error(usage) about `text`, the scheme as the user gave it.
Error refuse(std::string_view text, std::string found, std::string wanted = "", std::string hint = "");

/// "1%", "0.5%" or a plain fraction below 0.5 ("0.01"). Throws refuse(text, …).
double parse_sparse(std::string_view value, std::string_view text);
/// The shortest percentage that parse_sparse reads as exactly this number, else the plain fraction.
std::string sparse_text(double sparse);
/// A whole number of tokens, 0 to 2^30. Throws refuse(text, …).
int parse_count(std::string_view key, std::string_view value, std::string_view text);

/// The scheme of a preset's name; nothing when the text has the form of no preset. Throws for a preset of a later
/// release and for a preset whose parts are out of range.
std::optional<Scheme> parse_preset(std::string_view text);
/// The nearest preset to a misspelt name, or "".
std::string nearest_preset(std::string_view text);

/// Refuses, by name, what no part of kvcc can fit or evaluate.
void check(const Scheme& scheme, std::string_view text);

}  // namespace kvcc::scheme_parts
