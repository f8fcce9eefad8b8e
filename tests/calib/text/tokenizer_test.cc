// Properties that need no oracle: what is encoded decodes to itself, and the pieces of text that are not text survive.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "calib/text/python_random.h"
#include "calib/text/regex.h"
#include "calib/text/tokenizer.h"
#include "calib/text/tokenizer_spec.h"
#include "calib/text/utf8.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

// GPT-2's alphabet, written the other way round than in the source: from the byte.
std::string letter(unsigned byte) {
  static const std::vector<uint32_t> kCodes = [] {
    std::vector<uint32_t> codes;
    uint32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b > 32 && b < 127) || (b > 160 && b != 173);
      codes.push_back(printable ? b : next++);
    }
    return codes;
  }();
  std::string text;
  append_utf8(text, kCodes[byte]);
  return text;
}

TokenizerSource all_bytes() {
  TokenizerSource source;
  source.place = "made.gguf";
  source.gguf_model = "gpt2";
  source.gguf_pre = "smollm";
  for (unsigned byte = 0; byte < 256; ++byte) source.gguf_tokens.push_back(letter(byte));
  const auto merge = [&](const std::string& a, const std::string& b) {
    source.gguf_tokens.push_back(a + b);
    source.gguf_merges.push_back(a + " " + b);
  };
  merge("t", "h");
  merge(letter(' '), "th");
  merge("th", "e");
  merge(letter(0xc3), letter(0xa9));  // é
  source.gguf_tokens.push_back("<|end|>");
  source.gguf_token_types.assign(source.gguf_tokens.size(), 1);
  source.gguf_token_types.back() = 3;
  return source;
}

TEST(Tokenizer, GoldenByHand) {
  const auto tokenizer = make_tokenizer(all_bytes());
  const auto id = [](const char* token) {
    const auto& tokens = all_bytes().gguf_tokens;
    return static_cast<int32_t>(std::find(tokens.begin(), tokens.end(), token) - tokens.begin());
  };
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->encode(""), std::vector<int32_t>{});
  // Ranks decide: " th" (rank 1) comes before "the" (rank 2).
  EXPECT_EQ(tokenizer->encode("the the"), (std::vector<int32_t>{258, 257, 'e'}));
  EXPECT_EQ(tokenizer->encode("é"), (std::vector<int32_t>{259}));
  EXPECT_EQ(tokenizer->encode("\xc3"), (std::vector<int32_t>{0xc3}));
  EXPECT_EQ(tokenizer->encode("12"), (std::vector<int32_t>{'1', '2'}));
  EXPECT_EQ(tokenizer->encode("t<|end|>h"), (std::vector<int32_t>{'t', 260, 'h'}));
  EXPECT_EQ(id("th"), 256);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{258, 257, 'e', 259, 260}), "the the\xc3\xa9<|end|>");
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  const auto tokenizer = make_tokenizer(all_bytes());
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{261}), Error);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), Error);
}

TEST(Tokenizer, WhatIsEncodedDecodesToItself) {
  const auto tokenizer = make_tokenizer(all_bytes());
  rc::check("any bytes",
            [&](const std::string& text) { RC_ASSERT(tokenizer->decode(tokenizer->encode(text)) == text); });
  rc::check("bytes near text", [&] {
    const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
        " ", "the", " th", "é", "\xc3", "\xff", "1", "\n", "<|end|>", "<|", "'s", "字", "\xe5\xad"));
    std::string text;
    for (const std::string& part : parts) text += part;
    RC_ASSERT(tokenizer->decode(tokenizer->encode(text)) == text);
  });
}

TEST(Tokenizer, F18_ProgressGoesForwardToTheEnd) {
  const auto tokenizer = make_tokenizer(all_bytes());
  std::string text;
  for (int i = 0; i < 300000; ++i) text += i % 7 ? "x" : " the";
  std::vector<size_t> seen;
  tokenizer->encode(text, [&](size_t done) { seen.push_back(done); });
  EXPECT_GE(seen.size(), 2u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), text.size());
}

TEST(Tokenizer, HashTellsWhatDecidesTheIds) {
  const std::string base = make_tokenizer(all_bytes())->sha256();
  EXPECT_EQ(base, make_tokenizer(all_bytes())->sha256());
  TokenizerSource other = all_bytes();
  std::swap(other.gguf_merges[0], other.gguf_merges[3]);
  EXPECT_NE(base, make_tokenizer(other)->sha256());
  other = all_bytes();
  other.gguf_pre = "gpt-2";
  EXPECT_NE(base, make_tokenizer(other)->sha256());
  other = all_bytes();
  other.gguf_token_types.back() = 1;
  EXPECT_NE(base, make_tokenizer(other)->sha256());
}

TEST(Tokenizer, BrokenVocabulariesAreRefused) {
  const auto refusal = [](void (*spoil)(TokenizerSource&)) {
    TokenizerSource source = all_bytes();
    spoil(source);
    try {
      make_tokenizer(source);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_THAT(error.hint(), testing::HasSubstr("--ids FILE"));
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_tokens.clear(); }), HasSubstr("no tokenizer.ggml.tokens"));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_merges.push_back("nothing"); }), HasSubstr("\"nothing\""));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_merges.push_back(""); }), HasSubstr("merge 4"));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_merges.push_back(" "); }), HasSubstr("merge 4"));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_merges.push_back("a zz"); }), HasSubstr("merge 4"));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_merges.push_back("a b"); }), HasSubstr("makes no token"));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s.gguf_add_bos = 1; }), HasSubstr("bos_token_id is -1"));
  EXPECT_THAT(refusal([](TokenizerSource& s) { s = TokenizerSource(); }), HasSubstr("no tokenizer"));
}

TEST(Utf8, AgreesWithADecoderWrittenTheOtherWay) {
  // Every code point encodes to something of the right length, and nothing else is taken for one.
  size_t accepted = 0;
  for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 97) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    append_utf8(text, code);
    ASSERT_EQ(utf8_length(text, 0), text.size()) << code;
    ASSERT_EQ(utf8_code(text, 0), code);
    for (size_t n = 1; n < text.size(); ++n) ASSERT_EQ(utf8_length(text.substr(0, n), 0), 0u) << code;
    ++accepted;
  }
  EXPECT_GT(accepted, 12288u);
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_length(bad, 0), 0u);
  }
  EXPECT_EQ(utf8_length("", 0), 0u);
}

TEST(Regex, SpacesAreUnicodes) {
  const Regex space(R"(\s)", "test"), none(R"(\S)", "test"), inside(R"([^\s])", "test");
  size_t begin = 0, end = 0;
  for (const uint32_t code : {0x9u, 0x20u, 0x85u, 0xa0u, 0x180eu, 0x200bu, 0x2028u, 0x3000u, 0xfeffu, 0x61u}) {
    std::string text;
    append_utf8(text, code);
    EXPECT_EQ(space.find(text, 0, begin, end), is_white_space(code)) << code;
    EXPECT_EQ(none.find(text, 0, begin, end), !is_white_space(code)) << code;
    EXPECT_EQ(inside.find(text, 0, begin, end), !is_white_space(code)) << code;
  }
  EXPECT_THROW(Regex(R"(\h)", "test"), Error);
  EXPECT_THROW(Regex("[a&&b]", "test"), Error);
  EXPECT_THROW(Regex("a?", "test"), Error);
}

TEST(Regex, LongMatchesDoNotExhaustAnything) {
  const Regex pattern(R"((?:a|b)+c|\s+(?!\S)|\p{L}+)", "test");  // a group repeated: backtracking needs memory
  std::string text(300000, 'a');
  size_t begin = 0, end = 0;
  ASSERT_TRUE(pattern.find(text, 0, begin, end));
  EXPECT_EQ(end, text.size());
}

TEST(PythonRandom, FirstNumbersOfCPython) {
  PythonRandom zero(0);  // random.seed(0); [random.getrandbits(32) for _ in range(4)]
  EXPECT_EQ(zero.bits32(), 3626764237u);
  EXPECT_EQ(zero.bits32(), 1654615998u);
  EXPECT_EQ(zero.bits32(), 3255389356u);
  EXPECT_EQ(zero.bits32(), 3823568514u);
}

}  // namespace
}  // namespace kvcc
