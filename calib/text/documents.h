// Files of text as documents: plain text, articles of Wikitext, JSON lines with texts or conversations.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/core/hash.h"

namespace kvcc {

/// What a file holds. JSON lines go by the name's end: .jsonl, .ndjson or .json.
struct DocumentsRequest {
  std::string path;
  bool plain = false;     ///< text whatever its name and first bytes
  bool articles = false;  ///< plain text is cut before each of Wikitext's headings of the first level, " = Title = "
  /// Member of each line: a text, or the messages of a conversation. "": `text`, and where a line has none `messages`.
  std::string field;
  /// Messages as text, by the model's own template; `tools` may be null. Called for conversations only.
  std::function<std::string(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools)> chat;
};

struct Documents {
  std::vector<std::string> texts;  ///< byte-order mark off, CRLF to LF, but for what JSON lines hold; none is empty
  bool chat = false;               ///< all are conversations
};

/// Reads a file; its bytes go into `hash`. Throws Error(bad_input): a line that is no JSON object or lacks the field is
/// named by its number, as is a mixture of texts and conversations; parquet and compressed files are refused with the
/// command that converts them.
Documents read_documents(const DocumentsRequest& request, Sha256& hash);

/// Whether the name's end is one of JSON lines.
bool is_json_lines(const std::string& path);

}  // namespace kvcc
