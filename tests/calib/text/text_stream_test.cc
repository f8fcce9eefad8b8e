// Text that comes in pieces, and the chat formats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "calib/text/chat.h"
#include "calib/text/text_stream.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

TEST(TextStream, HoldsBackWhatIsNotACharacterYet) {
  TextStream stream;
  EXPECT_EQ(stream.push("a\xe2\x82"), "a");
  EXPECT_EQ(stream.push("\xac"), "€");
  EXPECT_EQ(stream.push("\xf0\x9f"), "");
  EXPECT_EQ(stream.push("\x98\x80!"), "\xf0\x9f\x98\x80!");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, BytesOfNoCharacterAreReplacedAtOnce) {
  TextStream stream;
  EXPECT_EQ(stream.push("\xff"), kReplacement);
  EXPECT_EQ(stream.push("\xe2"), "");
  EXPECT_EQ(stream.push("A"), std::string(kReplacement) + "A");  // the lead byte's rest can't come any more
  EXPECT_EQ(stream.push("\xed\xa0"), std::string(kReplacement) + kReplacement);  // a surrogate
  EXPECT_EQ(stream.push("\xf4"), "");
  EXPECT_EQ(stream.finish(), kReplacement);
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, CutsDoNotMatter) {
  EXPECT_TRUE(rc::check([](const std::string& text, const std::vector<bool>& cuts) {
    TextStream whole, cut;
    std::string wanted = whole.push(text), found, piece;
    wanted += whole.finish();
    for (size_t i = 0; i < text.size(); ++i) {
      piece += text[i];
      if (i < cuts.size() && cuts[i]) found += cut.push(std::exchange(piece, ""));
    }
    found += cut.push(piece);
    found += cut.finish();
    RC_ASSERT(found == wanted);
  }));
}

/// A vocabulary of single letters and of the given control tokens.
std::unique_ptr<Tokenizer> vocabulary(const std::vector<std::string>& control) {
  TokenizerSource source;
  source.place = "made.gguf";
  source.gguf_model = "gpt2";
  source.gguf_pre = "gpt-2";
  for (char c = '!'; c <= '~'; ++c) source.gguf_tokens.emplace_back(1, c);
  source.gguf_token_types.assign(source.gguf_tokens.size(), 1);
  for (const std::string& token : control) {
    source.gguf_tokens.push_back(token);
    source.gguf_token_types.push_back(3);
  }
  return make_tokenizer(source);
}

TEST(Chat, FormatsAreKnownByTheirTokens) {
  const auto chatml = vocabulary({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  const ChatFormat& format = chat_format(*chatml, "model");
  // SmolLM2's own template, for a system message and a user's.
  EXPECT_EQ(format.turn("Hi", "Be brief.", true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(format.turn("Hi", "Be brief.", false), "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const auto llama = vocabulary({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  EXPECT_EQ(chat_format(*llama, "model").turn("Hi", "", true),
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  try {
    chat_format(*vocabulary({"<|im_start|>"}), "model.gguf");
    FAIL() << "one mark of two is no format";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("model.gguf"), testing::HasSubstr("ChatML, Llama 3")));
  }
}

TEST(Chat, EndTokens) {
  const auto tokenizer = vocabulary({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  const int32_t first = tokenizer->encode("<|endoftext|>").at(0);
  EXPECT_TRUE(tokenizer->is_special(first));
  EXPECT_FALSE(tokenizer->is_special(0));
  EXPECT_THAT(end_tokens(*tokenizer, first + 2), testing::UnorderedElementsAre(first, first + 2));
  EXPECT_THAT(end_tokens(*tokenizer, -1), testing::UnorderedElementsAre(first, first + 2));
  EXPECT_THAT(end_tokens(*vocabulary({}), 7), testing::ElementsAre(7));
  for (const char* of_a_turn : {"<end_of_turn>", "<|end|>"}) {  // Gemma's, Phi-3's
    const auto other = vocabulary({of_a_turn});
    EXPECT_THAT(end_tokens(*other, -1), testing::ElementsAre(other->encode(of_a_turn).at(0))) << of_a_turn;
  }
}

}  // namespace
}  // namespace kvcc
