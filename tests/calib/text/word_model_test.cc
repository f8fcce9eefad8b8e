// Properties of the models of words that need no oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "calib/text/charsmap.h"
#include "calib/text/sentencepiece_proto.h"
#include "calib/text/splitter.h"
#include "calib/text/word_model.h"
#include "formats/core/error.h"

namespace kvcc {
namespace {

// Characters a, b, c and the mark, some merges, and no token for anything else.
TokenizerSpec characters(bool fuse) {
  TokenizerSpec spec;
  spec.place = "made";
  spec.tokens = {"<unk>", "a", "b", "c", kSpaceMark};
  const auto merge = [&](int32_t left, int32_t right) {
    spec.merges.emplace_back(left, right);
    spec.tokens.push_back(spec.tokens[static_cast<size_t>(left)] + spec.tokens[static_cast<size_t>(right)]);
  };
  merge(1, 2);  // ab
  merge(4, 1);  // the mark and a
  merge(5, 5);  // abab
  merge(6, 2);  // the mark and ab: only reached when "ab" was not merged before
  spec.unknown = 0;
  spec.fuse_unknown = fuse;
  return spec;
}

TEST(Borders, CuttingThereChangesNoId) {
  for (const bool fuse : {false, true}) {
    const TokenizerSpec spec = characters(fuse);
    const auto model = make_bpe(spec);
    const Borders borders(spec);
    size_t cuts = 0;
    rc::check("cut or whole", [&] {
      const auto parts = *rc::gen::container<std::vector<std::string>>(
          rc::gen::element<std::string>("a", "b", "c", kSpaceMark, "é", "字", "ab", "abab"));
      std::string text;
      for (const std::string& part : parts) text += part;
      std::vector<int32_t> whole, cut;
      model->encode(text, whole);
      for (size_t at = 0, end; at < text.size(); at = end) {
        end = borders.part_end(text, at);
        cuts += end < text.size();
        model->encode(std::string_view(text).substr(at, end - at), cut);
      }
      RC_ASSERT(whole == cut);
    });
    EXPECT_GT(cuts, 100u);
  }
}

TEST(Unigram, TakesTheMostProbableSegmentation) {
  TokenizerSpec spec;
  spec.place = "made";
  spec.kind = ModelKind::unigram;
  spec.tokens = {"<unk>", "a", "b", "ab", "aba", "<0xC3>", "<0xA9>"};
  spec.scores = {0, -1, -1, -1.5, -4, -9, -9};
  spec.unknown = 0;
  const auto encode = [&](const char* text) {
    std::vector<int32_t> ids;
    make_unigram(spec)->encode(text, ids);
    return ids;
  };
  EXPECT_THAT(encode("aba"), testing::ElementsAre(3, 1));  // -2.5, and not -4 or -3
  EXPECT_THAT(encode("aéé字b"), testing::ElementsAre(1, 0, 2));
  spec.byte_fallback = true;
  EXPECT_THAT(encode("aéb"), testing::ElementsAre(1, 5, 6, 2));
  EXPECT_THAT(encode("aé字b"), testing::ElementsAre(1, 0, 2));  // not all of its bytes have tokens
  EXPECT_THAT(encode(""), testing::IsEmpty());
  spec.unknown = -1;
  EXPECT_THROW(make_unigram(spec), Error);
}

TEST(Splitter, BehavioursAtMatchesInARow) {
  const auto words = [](Behaviour behaviour, bool invert) {
    const Splitter splitter({{.pattern = "-", .behaviour = behaviour, .invert = invert}}, "made");
    std::string joined;
    splitter.run("-a--b-", {}, [&](std::string_view word) { joined += "[" + std::string(word) + "]"; });
    return joined;
  };
  EXPECT_EQ(words(Behaviour::isolated, false), "[-][a][-][-][b][-]");
  EXPECT_EQ(words(Behaviour::removed, false), "[a][b]");
  EXPECT_EQ(words(Behaviour::removed, true), "[-][-][-][-]");
  EXPECT_EQ(words(Behaviour::merged_with_previous, false), "[-][a-][-][b-]");
  EXPECT_EQ(words(Behaviour::merged_with_next, false), "[-a][-][-b][-]");
  EXPECT_EQ(words(Behaviour::contiguous, false), "[-][a][--][b][-]");
}

TEST(SentencePieceProto, WhatIsWrittenIsRead) {
  SentencePieceModel model;
  model.pieces = {{"<unk>", 0, PieceType::unknown},
                  {"a", -1.5f, PieceType::normal},
                  {std::string(200, 'b'), -2, PieceType::unused}};
  model.removes_spaces = true;
  const std::string bytes = serialise(model);
  const SentencePieceFacts facts = read_facts(bytes, "made");
  EXPECT_THAT(facts.texts, testing::ElementsAre("<unk>", "a", std::string(200, 'b')));
  EXPECT_THAT(facts.types, testing::ElementsAre(PieceType::unknown, PieceType::normal, PieceType::unused));
  EXPECT_THAT(facts.scores, testing::ElementsAre(0, -1.5f, -2));
  EXPECT_TRUE(facts.bpe && facts.space_before && facts.removes_spaces && facts.marks_spaces && !facts.mark_after);
  const SentencePieceFacts changed = read_facts(without_spaces_changed(bytes), "made");
  EXPECT_TRUE(!changed.space_before && !changed.removes_spaces);
  for (size_t size = 1; size < bytes.size(); ++size) {  // cut anywhere: read up to there, or refused
    try {
      EXPECT_LE(read_facts(std::string_view(bytes).substr(0, size), "made").texts.size(), 3u);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    }
  }
}

TEST(Charsmap, EveryUnitThatATextCanReachIsChecked) {
  // A trie in which "A" becomes "a": the root leads to units 256 to 511, unit 256 ^ 'A' to its value.
  std::vector<uint32_t> units(1024);
  units[0] = 256u << 10;
  units[256 ^ 'A'] = 'A' | 1u << 8 | (512u ^ 256u ^ 'A') << 10;
  units[512] = 1u << 31;  // the value 0: the text at 0
  const auto table = [&](const std::string& texts) {
    const auto size = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    bytes.append(reinterpret_cast<const char*>(units.data()), size);
    return bytes + texts;
  };
  const std::string a("a\0", 2);
  EXPECT_EQ(Charsmap(table(a), "made").find("Axy"), "a");
  EXPECT_EQ(Charsmap(table(a), "made").find("xA"), std::nullopt);
  const auto refused = [&](const std::string& bytes) { EXPECT_THROW(Charsmap(bytes, "made"), Error); };
  refused("");
  refused(table(""));
  refused(table("a"));                       // no end
  refused(table(std::string("\xc3\0", 2)));  // no UTF-8
  refused(table(a).substr(0, 2000));
  units[512] = 1u << 31 | 7;  // beyond the texts
  refused(table(a));
  units[512] = 1u << 31 | 1;  // the empty text: what is found is left out
  EXPECT_EQ(Charsmap(table(a), "made").find("A"), "");
  units[256 ^ 'A'] = 'A' | 1u << 8 | 4096u << 10;  // beyond the trie
  refused(table(a));
}

}  // namespace
}  // namespace kvcc
