// Files that lie: every count, offset, length and type of a small good file is spoilt, one at a time, and the reader
// must refuse with the place. Random damage must never do worse than a refusal (run under the sanitizers too).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "formats/core/error.h"
#include "formats/weights/gguf_file.h"
#include "formats/weights/safetensors_file.h"

namespace kvcc {
namespace {

using testing::HasSubstr;

class BrokenFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("kvcc-broken-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    path_ = (folder_ / "file é").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }

  template <typename File>
  std::string refusal(const std::string& bytes) const {
    put(bytes);
    try {
      File file{path_};
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_THAT(error.what(), HasSubstr(path_));
      return error.what();
    }
    return "accepted";
  }
  std::filesystem::path folder_;
  std::string path_;
};

struct Bytes {
  std::string data;
  template <typename T>
  Bytes& number(T value) {
    data.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& string(const std::string& text) {
    number<uint64_t>(text.size());
    data += text;
    return *this;
  }
};

struct Tensor {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint32_t type;
  uint64_t offset;
};

struct Gguf {
  uint64_t tensor_count = 2, value_count = 4;
  uint32_t alignment = 32, value_type = 4;
  std::string second_key = "a.text";
  uint64_t array_count = 3;
  std::vector<Tensor> tensors = {{"x", {32, 2}, 2 /* Q4_0 */, 0}, {"y", {5}, 0, 64}};
  size_t data_bytes = 64 + 20;

  std::string bytes() const {
    Bytes out;
    out.data = "GGUF";
    out.number<uint32_t>(3).number(tensor_count).number(value_count);
    out.string("general.alignment").number(value_type).number(alignment);
    out.string(second_key).number<uint32_t>(8).string("text");
    out.string("a.strings").number<uint32_t>(9).number<uint32_t>(8).number(array_count);
    out.string("one").string("").string("three");
    out.string("a.numbers").number<uint32_t>(9).number<uint32_t>(2).number<uint64_t>(2);
    out.number<uint16_t>(7).number<uint16_t>(65535);
    for (const Tensor& t : tensors) {
      out.string(t.name).number<uint32_t>(static_cast<uint32_t>(t.dims.size()));
      for (const uint64_t d : t.dims) out.number(d);
      out.number(t.type).number(t.offset);
    }
    while (out.data.size() % 32) out.data += '\0';
    out.data += std::string(data_bytes, '\1');
    return out.data;
  }
};

TEST_F(BrokenFiles, GoodGgufIsRead) {
  put(Gguf().bytes());
  const GgufFile file(path_);
  EXPECT_EQ(file.text("a.text"), "text");
  EXPECT_EQ(file.texts("a.strings"), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_EQ(file.integers("a.numbers"), (std::vector<int64_t>{7, 65535}));
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_THROW(file.integer("a.text"), Error);
  EXPECT_THROW(file.texts("a.numbers"), Error);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.find("x")->shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(file.find("x")->bytes.size(), 36u);
  EXPECT_EQ(file.find("y")->bytes.size(), 20u);
}

TEST_F(BrokenFiles, F06_GgufTruncatedAtEveryLength) {
  const std::string whole = Gguf().bytes();
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string message = refusal<GgufFile>(whole.substr(0, n));
    EXPECT_THAT(message, HasSubstr("truncated")) << n << " of " << whole.size();
  }
  EXPECT_EQ(refusal<GgufFile>(whole), "accepted");
}

TEST_F(BrokenFiles, F15_GgufThatLies) {
  const struct {
    const char* what;
    std::function<void(Gguf&)> spoil;
    const char* message;
  } cases[] = {
      {"tensor count", [](Gguf& g) { g.tensor_count = UINT64_MAX; }, "truncated: claims 18446744073709551615 tensors"},
      {"one tensor too many", [](Gguf& g) { g.tensor_count = 3; }, ""},
      {"metadata count", [](Gguf& g) { g.value_count = 1ull << 61; }, "truncated: claims 2305843009213693952 metadata"},
      {"value type", [](Gguf& g) { g.value_type = 13; }, "general.alignment has value type 13"},
      {"array count", [](Gguf& g) { g.array_count = 1ull << 60; }, "truncated: claims 1152921504606846976 elements of"},
      {"key twice", [](Gguf& g) { g.second_key = "general.alignment"; }, "general.alignment appears twice"},
      {"alignment 0", [](Gguf& g) { g.alignment = 0; }, "general.alignment is 0"},
      {"alignment 48", [](Gguf& g) { g.alignment = 48; }, "general.alignment is 48"},
      {"alignment huge", [](Gguf& g) { g.alignment = 1u << 31; }, "general.alignment"},
      {"name twice", [](Gguf& g) { g.tensors[1].name = "x"; }, "tensor x: its name appears twice"},
      {"offset 2^40", [](Gguf& g) { g.tensors[1].offset = 1ull << 40; }, "tensor y: truncated: needs 20 bytes"},
      {"offset wraps", [](Gguf& g) { g.tensors[1].offset = UINT64_MAX - 31; }, "tensor y: truncated"},
      {"offset unaligned", [](Gguf& g) { g.tensors[1].offset = 65; }, "tensor y: offset 65"},
      {"overlap", [](Gguf& g) { g.tensors[1].offset = 32; }, "tensor y: its bytes overlap those of x"},
      {"rank",
       [](Gguf& g) {
         g.tensors[0].dims = {32, 1, 1, 1, 1};
       },
       "tensor x: 5 dimensions"},
      {"zero extent",
       [](Gguf& g) {
         g.tensors[0].dims = {32, 0};
       },
       "tensor x: a dimension of 0"},
      {"product wraps",
       [](Gguf& g) {
         g.tensors[0].dims = {1ull << 32, 1ull << 32};
       },
       "tensor x: shape"},
      {"product wraps to small",
       [](Gguf& g) {
         g.tensors[1].dims = {5, (1ull << 62) + 1, 4};
       },
       "overflows"},
      {"bytes wrap", [](Gguf& g) { g.tensors[1].dims = {1ull << 62}; }, "tensor y: shape"},
      {"past the end", [](Gguf& g) { g.tensors[1].dims = {6}; }, "tensor y: truncated: needs 24 bytes at offset 64"},
      {"half a block",
       [](Gguf& g) {
         g.tensors[0].dims = {33, 2};
       },
       "tensor x: rows of 33 values in Q4_0"},
      {"unread type", [](Gguf& g) { g.tensors[0].type = 15; }, "tensor x: weight type Q8_K; wanted one of F32"},
      {"unknown type", [](Gguf& g) { g.tensors[0].type = 4000; }, "tensor x: weight type number 4000"},
  };
  for (const auto& c : cases) {
    Gguf file;
    c.spoil(file);
    const std::string message = refusal<GgufFile>(file.bytes());
    EXPECT_THAT(message, HasSubstr(c.message)) << c.what;
    EXPECT_NE(message, "accepted") << c.what;
  }
}

TEST_F(BrokenFiles, GgufNestedArraysAreSkippedButNotWithoutEnd) {
  for (const int depth : {1, 3, 100000}) {
    Bytes out;
    out.data = "GGUF";
    out.number<uint32_t>(3).number<uint64_t>(0).number<uint64_t>(1).string("deep").number<uint32_t>(9);
    for (int i = 0; i < depth; ++i) out.number<uint32_t>(9).number<uint64_t>(1);
    out.number<uint32_t>(0).number<uint64_t>(1).number<uint8_t>(5);
    EXPECT_THAT(refusal<GgufFile>(out.data), HasSubstr(depth < 4 ? "accepted" : "nests arrays")) << depth;
  }
}

std::string safetensors(const std::string& header, size_t data_bytes) {
  Bytes out;
  out.number<uint64_t>(header.size());
  return out.data + header + std::string(data_bytes, '\1');
}

const char* const kGood = R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                          R"("y":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

TEST_F(BrokenFiles, F06_SafetensorsTruncatedAtEveryLength) {
  const std::string whole = safetensors(kGood, 32);
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_THAT(refusal<SafetensorsFile>(whole.substr(0, n)), HasSubstr("truncated: needs ")) << n;
  }
  EXPECT_THAT(refusal<SafetensorsFile>(whole.substr(0, 5)), HasSubstr("needs 8 bytes, has 5 bytes"));
  put(whole);
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.tensors()[1].type, WeightType::bf16);
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(BrokenFiles, F03_SafetensorsThatLie) {
  const struct {
    const char *header, *message;
  } cases[] = {
      {R"({"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}})", "tensor w: data_offsets cover 4 bytes"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4000000]}})", "tensor w: truncated: needs 4000000"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", "tensor w: data_offsets run backwards"},
      {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "tensor w: data_offsets cover"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", "tensor w: data_offsets cover"},
      {R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "tensor w: an extent of the shape is -1"},
      {R"({"w":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", "tensor w: an extent of the shape is 1.5"},
      {R"({"w":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "is a array"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", "tensor w: data_offsets is"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "tensor w: data_offsets is not a pair"},
      {R"({"w":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "tensor w: shape is not a list"},
      {R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "tensor w: dtype is not a string"},
      {R"({"w":{"shape":[1],"data_offsets":[0,4]}})", "tensor w: no dtype"},
      {R"({"w":5})", "tensor w: no dtype"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"v":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       "overlap"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "header: w: appears twice"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1]}})", "header: w.shape: appears twice"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "28 bytes of the data belong to no tensor"},
      {R"({"w":{"dtype":"F32","shape":[7],"data_offsets":[4,32]}})", "4 bytes of the data belong to no tensor"},
      {R"({"__metadata__":{"format":1}})", "__metadata__: format is 1"},
      {R"([1,2])", "not a JSON object"},
      {R"({"w":)", "not JSON"},
      {"{\"\xff\":1}", "not JSON"},
  };
  for (const auto& c : cases)
    EXPECT_THAT(refusal<SafetensorsFile>(safetensors(c.header, 32)), HasSubstr(c.message)) << c.header;
  Bytes long_header;
  long_header.number<uint64_t>(UINT64_MAX);
  EXPECT_THAT(refusal<SafetensorsFile>(long_header.data + "{}"), HasSubstr("claims a header of"));
  // A shape that nests so deep that printing or destroying it by recursion would overflow the stack.
  const std::string deep = R"({"w":{"dtype":"F32","data_offsets":[0,4],"shape":[)" + std::string(200000, '[') +
                           std::string(200000, ']') + "]}}";
  EXPECT_THAT(refusal<SafetensorsFile>(safetensors(deep, 32)), HasSubstr("header: w.shape: nests more than 64 deep"));
}

// Random damage: an Error or a file whose tensors can be looked at, nothing else.
template <typename File>
int survive(const std::string& path, const std::string& good, int rounds) {
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = good;
    for (int hits = static_cast<int>(random() % 3); hits >= 0; --hits) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        default:
          for (size_t i = at; i < std::min(at + 8, bytes.size()); ++i)
            bytes[i] = static_cast<char>(random() % 2 ? 255 : 0);
      }
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    try {
      const File file(path);
      unsigned sum = 0;
      for (const auto& tensor : file.tensors()) {
        for (const std::byte b : tensor.bytes) sum += static_cast<unsigned>(b);
      }
      volatile unsigned sink = sum;
      (void)sink;
    } catch (const Error&) {
      ++refused;
    }
  }
  return refused;
}

TEST_F(BrokenFiles, RandomDamageNeverDoesWorseThanARefusal) {
  EXPECT_GT(survive<GgufFile>(path_, Gguf().bytes(), 4000), 1000);
  EXPECT_GT(survive<SafetensorsFile>(path_, safetensors(kGood, 32), 4000), 1000);
}

}  // namespace
}  // namespace kvcc
