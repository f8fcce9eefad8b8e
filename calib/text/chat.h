// Chat formats, known by the tokens that a vocabulary has. A model's own template (Jinja) is not run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calib/text/tokenizer.h"

namespace kvcc {

struct ChatFormat {
  const char* name;
  std::vector<const char*> marks;             ///< tokens that a vocabulary of this format has
  const char *system_begin, *user_begin;      ///< before a message
  const char *message_end, *assistant_begin;  ///< after a message; before the answer
  const char* between;                        ///< from an answer's last token to the next message

  /// Text of a user's message, up to where the answer begins. `system`: put first, "" for none; only at the beginning.
  std::string turn(const std::string& user, const std::string& system, bool first) const;
};

/// The format of a vocabulary. Throws Error(bad_input) at `place` when it is none of those known.
const ChatFormat& chat_format(const Tokenizer& tokenizer, const std::string& place);

/// Tokens that end a text or a turn: `eos` (-1: none) and those of known names that the vocabulary has.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, int64_t eos);

}  // namespace kvcc
