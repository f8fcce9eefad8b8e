#include "calib/text/documents.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/json.h"

namespace kvcc {
namespace {

using Json = nlohmann::ordered_json;

std::string clean(std::string text) {
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  size_t to = 0;
  for (size_t from = 0; from < text.size(); ++from) {
    if (text[from] == '\r' && from + 1 < text.size() && text[from + 1] == '\n') continue;  // a lone CR stays
    text[to++] = text[from];
  }
  text.resize(to);
  return text;
}

/// " = Title = ", but not " = = Section = = ".
bool is_title(std::string_view line) {
  while (line.ends_with(' ')) line.remove_suffix(1);
  return line.size() > 6 && line.starts_with(" = ") && line.ends_with(" =") && line[3] != '=' &&
         line[line.size() - 3] != '=';
}

std::vector<std::string> articles(const std::string& text) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    if (line > begin && is_title(std::string_view(text).substr(line, end - line))) {
      out.push_back(text.substr(begin, line - begin));
      begin = line;
    }
    line = end + 1;
  }
  out.push_back(text.substr(begin));
  std::erase_if(out, [](const std::string& article) { return article.find_first_not_of(" \n") == std::string::npos; });
  return out;
}

/// Formats that are not read, by their first bytes.
void refuse_others(const std::string& path, std::string_view text) {
  const auto refuse = [&](const char* what, const std::string& command) {
    throw bad_input(path, what, "plain text, JSON lines or .npy", command);
  };
  if (text.starts_with("PAR1")) {
    refuse("a parquet file",
           "python3 -c \"import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient='records', "
           "lines=True)\" FILE.parquet FILE.jsonl makes JSON lines of it (pandas and pyarrow)");
  }
  if (text.starts_with("\x1f\x8b")) refuse("compressed by gzip", "gunzip -k FILE unpacks it");
  if (text.starts_with("\x28\xb5\x2f\xfd")) refuse("compressed by zstd", "zstd -d FILE unpacks it");
  if (text.starts_with("PK\x03\x04")) refuse("a zip archive", "unzip FILE unpacks it");
}

/// The documents of one line.
class Lines {
 public:
  explicit Lines(const DocumentsRequest& request) : request_(request) {}

  void add(std::string_view line, size_t number) {
    const std::string place = request_.path + " line " + std::to_string(number);
    const Json object = parse_json<Json>(line, place);
    const auto value = find(object, place);
    const bool chat = value->is_array();
    if (!chat && !value->is_string()) {
      throw bad_input(place, "'" + value.key() + "' is " + json_brief(*value), "a text or a list of messages");
    }
    if (number_ > 0 && chat != documents_.chat) {
      throw bad_input(place, chat ? "a conversation" : "a text",
                      std::string("as in line ") + std::to_string(number_) +
                          (chat ? ", where there is a text" : ", where there is a conversation"),
                      "a file of each, mixed with --dataset A:WEIGHT,B:WEIGHT");
    }
    documents_.chat = chat;
    number_ = number;
    std::string text = chat ? render(*value, object, place) : value->get<std::string>();
    if (!text.empty()) documents_.texts.push_back(std::move(text));
  }

  Documents take() { return std::move(documents_); }

 private:
  Json::const_iterator find(const Json& object, const std::string& place) const {
    std::vector<std::string> names{"text", "messages"};
    if (!request_.field.empty()) names = {request_.field};
    for (const std::string& name : names) {
      if (const auto value = object.find(name); value != object.end()) return value;
    }
    std::string there;
    for (const auto& [name, value] : object.items()) there += (there.empty() ? "" : ", ") + name;
    throw bad_input(place, "its members are " + (there.empty() ? "none" : there),
                    "'" + names[0] + (names.size() > 1 ? "' or '" + names[1] : "") + "'", "--field NAME names another");
  }

  std::string render(const Json& messages, const Json& object, const std::string& place) const {
    for (const Json& message : messages) {
      if (!message.is_object() || !message.contains("role")) {
        throw bad_input(place, "a message " + json_brief(message), "an object with 'role' and 'content'");
      }
    }
    const auto tools = object.find("tools");
    try {
      return request_.chat(messages, tools != object.end() ? *tools : Json());
    } catch (const Error& error) {
      throw bad_input(place, error.what());
    }
  }

  const DocumentsRequest& request_;
  Documents documents_;
  size_t number_ = 0;  ///< of the last line that counted
};

}  // namespace

bool is_json_lines(const std::string& path) {
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

Documents read_documents(const DocumentsRequest& request, Sha256& hash) {
  std::string text = read_text_file(request.path);
  if (!request.plain) refuse_others(request.path, text);
  hash.update(text);
  Documents documents;
  if (request.plain || !is_json_lines(request.path)) {
    if (!request.field.empty()) {
      throw Error(ErrorKind::usage, "--field " + request.field, request.path + " is plain text",
                  "JSON lines: a name that ends in .jsonl, .ndjson or .json");
    }
    text = clean(std::move(text));
    if (request.articles) {
      documents.texts = articles(text);
    } else if (!text.empty()) {
      documents.texts.push_back(std::move(text));
    }
  } else {
    Lines lines(request);
    size_t number = 0;
    std::string_view rest = text;
    if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      ++number;
      if (number == 1 && line.starts_with('[')) {
        throw bad_input(request.path, "one JSON list", "JSON lines: an object a line", "jq -c '.[]' FILE makes them");
      }
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines.add(line, number);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    documents = lines.take();
  }
  return documents;
}

}  // namespace kvcc
