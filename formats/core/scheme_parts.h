// Shared by scheme.cc (the spelt-out form) and presets.cc; not for other folders.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/core/error.h"
#include "formats/core/scheme.h"

namespace kvcc::scheme_parts {

/// Error(usage) about `text`, the scheme as the user gave it.
Error refuse(std::string_view text, std::string found, std::string wanted = "", std::string hint = "");

/// "1%", "0.5%" or a plain fraction below 0.5 ("0.01"). Throws refuse(text, …).
double parse_sparse(std::string_view value, std::string_view text);
/// The same below another bound, for the key that is named.
double parse_share(std::string_view key, std::string_view value, double below, std::string_view text);
/// Effective bits an element, above 0 and at most 16. Throws refuse(text, …).
double parse_budget(std::string_view value, std::string_view text);
/// The shortest percentage that parse_sparse reads as exactly this number, else the plain fraction.
std::string sparse_text(double sparse);
/// A whole number of tokens, 0 to 2^30. Throws refuse(text, …).
int parse_count(std::string_view key, std::string_view value, std::string_view text);

/// One tensor: "nuq3@prerope/channel" for key "k", "nuq3@token" for "v", "fp" for both. Throws refuse(text, …).
TensorScheme parse_tensor(std::string_view key, std::string_view value, std::string_view text);
std::string tensor_text(const TensorScheme& tensor, bool key);
/// A JSON object, further dimensions included.
std::string tensor_json(const TensorScheme& tensor, bool key);
/// Sets what "k-rotate" names; false when the key names no dimension of a tensor.
bool set_dimension(Scheme& scheme, std::string_view key, std::string_view value, std::string_view text);
/// ",k-rotate=hadamard" for each dimension that is not at its default; `key` is "k" or "v".
std::string dimension_texts(const TensorScheme& tensor, const char* key);
std::vector<std::string> dimension_keys();

/// The scheme of a preset's name; nothing when the text has the form of no preset. Throws for a preset of a later
/// release and for a preset whose parts are out of range.
std::optional<Scheme> parse_preset(std::string_view text);
/// The nearest preset to a misspelt name, or "".
std::string nearest_preset(std::string_view text);

/// The same of the published systems (presets_published.cc), which have a fixed name and options of their own.
std::optional<Scheme> parse_published(std::string_view text);
/// The name of the published system that the scheme is, options included, and what is said of it; "" and null for none.
std::pair<std::string, const PresetInfo*> published_name(const Scheme& scheme);
/// All names, without options.
std::vector<std::string> published_names();
const std::vector<PresetInfo>& published_presets();

/// The same of vector codebooks (presets_vector.cc): "kvcc-2", "kvcc-1.5-head", "kvcc-4-channels-sink4".
std::optional<Scheme> parse_vector(std::string_view text);
std::pair<std::string, const PresetInfo*> vector_name(const Scheme& scheme);
std::vector<std::string> vector_names();
const PresetInfo& vector_preset();

/// Refuses, by name, what no part of kvcc can fit or evaluate.
void check(const Scheme& scheme, std::string_view text);

}  // namespace kvcc::scheme_parts
