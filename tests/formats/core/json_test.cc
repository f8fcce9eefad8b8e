// JSON of files: what is refused, with its place, and members with their types.
#include "formats/core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::string& text) {
  const std::string one = error_of([&] { parse_json<json>(text, "f.json"); });
  EXPECT_EQ(one, error_of([&] { parse_json<ordered_json>(text, "f.json"); }));
  return one;
}

TEST(Json, NamesThatAppearTwiceAreRefusedWithTheirPlace) {
  EXPECT_EQ(refusal(R"({"a":1,"b":{"a":1,"b":[{"a":1}]}})"), "accepted");
  EXPECT_EQ(refusal(R"({"a":1,"a":1})"), "f.json: a: appears twice; wanted each name once");
  EXPECT_THAT(refusal(R"({"a":{"b":[0,{"c":1,"c":1}]}})"), HasSubstr("f.json: a.b.c: appears twice"));
  EXPECT_THAT(refusal(R"({"a":1,"\u0061":2})"), HasSubstr("a: appears twice"));
  EXPECT_LT(refusal("{\"" + std::string(100000, 'x') + "\":1,\"" + std::string(100000, 'x') + "\":1}").size(), 300u);
}

TEST(Json, NestingIsBounded) {
  const auto nested = [](int depth) {
    return R"({"a":)" + std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']') +
           "}";
  };
  EXPECT_EQ(refusal(nested(static_cast<int>(kJsonDepth) - 1)), "accepted");
  EXPECT_EQ(refusal(nested(static_cast<int>(kJsonDepth))), "f.json: a: nests more than 64 deep");
  EXPECT_THAT(refusal(nested(1'000'000)), HasSubstr("nests more than 64 deep"));
}

TEST(Json, WhatIsNoObjectIsRefused) {
  for (const char* text : {"[]", "1", "null", "\"a\""}) EXPECT_EQ(refusal(text), "f.json: not a JSON object");
  for (const char* text : {"", " ", "{", "{}}", "{\"a\":1e999}", "{\"a\":\"\xff\"}", "{\"a\":NaN}"}) {
    EXPECT_THAT(refusal(text), HasSubstr("f.json: not JSON, or truncated")) << text;
    EXPECT_THAT(refusal(text), ::testing::Not(HasSubstr("exception"))) << text;
  }
  EXPECT_LT(refusal("{\"" + std::string(1 << 20, 'x')).size(), 300u);
}

TEST(Json, ManyMembersTakeTimeInProportion) {
  std::string members;
  for (int i = 0; i < 300'000; ++i) members += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":{}";
  EXPECT_EQ(refusal("{" + members + "}"), "accepted");  // in the square of that, it would be minutes
  EXPECT_EQ(parse_json<ordered_json>(R"({"b":{"z":[1,{}],"a":null},"a":"x"})", "f").dump(),
            R"({"b":{"z":[1,{}],"a":null},"a":"x"})");
}

TEST(Json, ValuesKeepTheirTypeAndRange) {
  const json d = json::parse(R"({"int":7,"minus":-1,"half":1.5,"big":4294967299,"huge":18446744073709551615,"text":"x",
    "yes":true,"list":[1,2],"halves":[1,1.5],"map":{"a":1,"b":"x"},"null":null})");
  EXPECT_EQ(json_member<int>(d, "int", "f"), 7);
  EXPECT_EQ(json_member<uint64_t>(d, "huge", "f"), UINT64_MAX);
  EXPECT_EQ(json_member<double>(d, "int", "f"), 7);
  EXPECT_THAT(json_member<std::vector<int>>(d, "list", "f"), ElementsAre(1, 2));
  EXPECT_EQ((json_member<std::array<int, 2>>(d, "list", "f")), (std::array<int, 2>{1, 2}));
  const auto wrong = [&]<class T>(const char* name, T) { return error_of([&] { json_member<T>(d, name, "f"); }); };
  EXPECT_EQ(wrong("none", 0), "f: 'none' is missing");
  EXPECT_EQ(wrong("half", 0), "f: 'half' is 1.5; wanted a whole number");
  EXPECT_EQ(wrong("yes", 0), "f: 'yes' is true; wanted a whole number");
  EXPECT_EQ(wrong("null", 0), "f: 'null' is null; wanted a whole number");
  EXPECT_EQ(wrong("big", 0), "f: 'big' is 4294967299; wanted a whole number in range");
  EXPECT_EQ(wrong("huge", int64_t{0}), "f: 'huge' is 18446744073709551615; wanted a whole number in range");
  EXPECT_EQ(wrong("minus", uint64_t{0}), "f: 'minus' is -1; wanted a whole number from 0, in range");
  EXPECT_EQ(wrong("int", false), "f: 'int' is 7; wanted true or false");
  EXPECT_EQ(wrong("yes", 0.0), "f: 'yes' is true; wanted a number");
  EXPECT_EQ(wrong("int", std::string()), "f: 'int' is 7; wanted text");
  EXPECT_EQ(wrong("halves", std::vector<int>()), "f: 'halves' is 1.5; wanted a whole number");
  EXPECT_THAT(wrong("map", std::vector<int>()), HasSubstr("wanted a list"));
  EXPECT_THAT(wrong("list", std::array<int, 3>()), HasSubstr("a list of another length"));
  EXPECT_EQ(wrong("map", std::map<std::string, int>()), "f: 'map.b' is \"x\"; wanted a whole number");
  EXPECT_THAT(error_of([&] { json_member<int>(d["list"], "int", "f"); }), HasSubstr("an object with a member 'int'"));
}

}  // namespace
}  // namespace kvcc
