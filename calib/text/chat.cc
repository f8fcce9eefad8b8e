#include "calib/text/chat.h"

#include <algorithm>

#include "formats/core/error.h"

namespace kvcc {
namespace {

const ChatFormat kFormats[] = {
    {"ChatML",
     {"<|im_start|>", "<|im_end|>"},
     "<|im_start|>system\n",
     "<|im_start|>user\n",
     "<|im_end|>\n",
     "<|im_start|>assistant\n",
     "\n"},
    {"Llama 3",
     {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     "<|start_header_id|>system<|end_header_id|>\n\n",
     "<|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     ""},
};

/// Id of a special token by its text; -1: the vocabulary has none.
int32_t special_id(const Tokenizer& tokenizer, const char* text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  return ids.size() == 1 && tokenizer.is_special(ids[0]) ? ids[0] : -1;
}

}  // namespace

std::string ChatFormat::turn(const std::string& user, const std::string& system, bool first) const {
  std::string text = first ? "" : between;
  if (first && !system.empty()) text += system_begin + system + message_end;
  return text + user_begin + user + message_end + assistant_begin;
}

const ChatFormat& chat_format(const Tokenizer& tokenizer, const std::string& place) {
  std::string known;
  for (const ChatFormat& format : kFormats) {
    const bool all = std::all_of(format.marks.begin(), format.marks.end(),
                                 [&](const char* mark) { return special_id(tokenizer, mark) >= 0; });
    if (all) return format;
    known += std::string(known.empty() ? "" : ", ") + format.name;
  }
  throw bad_input(place, "a vocabulary without the tokens of a known chat format", "one of " + known,
                  "leave --chat out, and write the model's own marks into the prompt");
}

std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, int64_t eos) {
  std::vector<int32_t> ids;
  if (eos >= 0) ids.push_back(static_cast<int32_t>(eos));
  for (const char* name :
       {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>", "<end_of_turn>", "<|end|>"}) {
    const int32_t id = special_id(tokenizer, name);
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

}  // namespace kvcc
