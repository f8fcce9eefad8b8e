// What the C API refuses, what it says, and that a refused call leaves the cache as it was, also when memory runs out
// half-way.
#include <cstdlib>
#include <limits>
#include <new>

#include "tests/kernels/runtime/made.h"

namespace {

thread_local int64_t allocations_left = -1;  ///< of this thread; -1: any number

void* allocate(size_t size, size_t align) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* const data = align <= alignof(std::max_align_t) ? std::malloc(size > 0 ? size : 1)
                                                        : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// Of this test program: memory that ends where a test wants it to.
void* operator new(size_t size) { return allocate(size, 1); }
void* operator new[](size_t size) { return allocate(size, 1); }
void* operator new(size_t size, std::align_val_t align) { return allocate(size, static_cast<size_t>(align)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size > 0 ? size : 1); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return std::malloc(size > 0 ? size : 1); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }

namespace kvcc::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

void expect_error(int code, int wanted, const std::string& part) {
  EXPECT_EQ(code, wanted) << kvcc_error_message();
  EXPECT_NE(std::string(kvcc_error_message()).find(part), std::string::npos) << part << "\n" << kvcc_error_message();
}

class Errors : public testing::Test {
 protected:
  Errors() : made_(Case{}), artifact_(open(made_.bytes())), sequence_(create(artifact_.get())), text_(made_, 200) {
    text_.append(made_, sequence_.get(), 0, 100);
    before_ = saved(sequence_.get());
  }
  ~Errors() override { EXPECT_TRUE(saved(sequence_.get()) == before_) << "a refused call changed the cache"; }
  const float* key() const { return text_.key[0].data() + 100 * 128; }
  const float* value() const { return text_.value[0].data() + 100 * 128; }

  Made made_;
  Artifact artifact_;
  Sequence sequence_;
  Text text_;
  std::string before_;
  float x_[6 * 64] = {};
};

TEST_F(Errors, EveryNullIsNamed) {
  KvccSequence* const s = sequence_.get();
  KvccArtifact* a = nullptr;
  KvccSequence* made = nullptr;
  KvccShape shape;
  KvccUsage usage;
  const int32_t* ids;
  int64_t count;
  expect_error(kvcc_artifact_open(nullptr, &a), KVCC_USAGE, "path: null");
  expect_error(kvcc_artifact_open("x", nullptr), KVCC_USAGE, "artifact: null");
  expect_error(kvcc_artifact_open_memory(nullptr, 5, "x", &a), KVCC_USAGE, "bytes: null");
  expect_error(kvcc_artifact_open_memory("x", 1, nullptr, &a), KVCC_USAGE, "name: null");
  expect_error(kvcc_artifact_open_memory("x", 1, "x", nullptr), KVCC_USAGE, "artifact: null");
  expect_error(kvcc_artifact_shape(nullptr, &shape), KVCC_USAGE, "artifact: null");
  expect_error(kvcc_artifact_shape(artifact_.get(), nullptr), KVCC_USAGE, "shape: null");
  expect_error(kvcc_create(nullptr, nullptr, &made), KVCC_USAGE, "artifact: null");
  expect_error(kvcc_create(artifact_.get(), nullptr, nullptr), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_append(nullptr, 0, x_, x_, 1), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_append(s, 0, nullptr, x_, 1), KVCC_USAGE, "key: null");
  expect_error(kvcc_append(s, 0, x_, nullptr, 1), KVCC_USAGE, "value: null");
  expect_error(kvcc_attend(nullptr, 0, x_, 0, 0, x_), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_attend(s, 0, nullptr, 0, 0, x_), KVCC_USAGE, "query: null");
  expect_error(kvcc_attend(s, 0, x_, 0, 0, nullptr), KVCC_USAGE, "out: null");
  expect_error(kvcc_append_attend(nullptr, 0, x_, x_, x_, 1, 0, 0, x_), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_append_attend(s, 0, nullptr, x_, x_, 1, 0, 0, x_), KVCC_USAGE, "key: null");
  expect_error(kvcc_append_attend(s, 0, x_, nullptr, x_, 1, 0, 0, x_), KVCC_USAGE, "value: null");
  expect_error(kvcc_append_attend(s, 0, x_, x_, nullptr, 1, 0, 0, x_), KVCC_USAGE, "query: null");
  expect_error(kvcc_append_attend(s, 0, x_, x_, x_, 1, 0, 0, nullptr), KVCC_USAGE, "out: null");
  expect_error(kvcc_rotate(nullptr, x_, 0, 1), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_rotate(s, nullptr, 0, 1), KVCC_USAGE, "query: null");
  expect_error(kvcc_read(nullptr, 0, 0, 1, x_, x_), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_usage(nullptr, &usage), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_usage(s, nullptr), KVCC_USAGE, "usage: null");
  expect_error(kvcc_save(nullptr, "x", nullptr, 0), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_save(s, nullptr, nullptr, 0), KVCC_USAGE, "path: null");
  expect_error(kvcc_save(s, "x", nullptr, 1), KVCC_USAGE, "tokens: null");
  expect_error(kvcc_load(nullptr, "x", nullptr, &made), KVCC_USAGE, "artifact: null");
  expect_error(kvcc_load(artifact_.get(), nullptr, nullptr, &made), KVCC_USAGE, "path: null");
  expect_error(kvcc_load(artifact_.get(), "x", nullptr, nullptr), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_tokens(nullptr, &ids, &count), KVCC_USAGE, "sequence: null");
  expect_error(kvcc_tokens(s, nullptr, &count), KVCC_USAGE, "tokens: null");
  expect_error(kvcc_tokens(s, &ids, nullptr), KVCC_USAGE, "count: null");
  EXPECT_EQ(kvcc_length(nullptr, 0), -1);
  kvcc_free(nullptr);
  kvcc_artifact_free(nullptr);
}

TEST_F(Errors, NumbersOutOfRange) {
  KvccSequence* const s = sequence_.get();
  for (const int32_t layer : {-1, 2, 1 << 30}) {
    expect_error(kvcc_append(s, layer, x_, x_, 1), KVCC_USAGE, "layer: " + std::to_string(layer) + "; wanted 0 to 1");
    expect_error(kvcc_attend(s, layer, x_, 0, 0, x_), KVCC_USAGE, "layer");
    expect_error(kvcc_append_attend(s, layer, x_, x_, x_, 1, 0, 0, x_), KVCC_USAGE, "layer");
    expect_error(kvcc_read(s, layer, 0, 0, nullptr, nullptr), KVCC_USAGE, "layer");
    EXPECT_EQ(kvcc_length(s, layer), -1);
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();
  for (const int64_t count : {int64_t{-1}, kLeast, int64_t{1} << 24, kMost}) {
    expect_error(kvcc_append(s, 0, x_, x_, count), KVCC_USAGE, "at most 16777216 in all");
    expect_error(kvcc_append_attend(s, 0, x_, x_, x_, count, 0, 0, x_), KVCC_USAGE, "at most 16777216 in all");
  }
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{-1, 1}, {0, 101}, {100, 1}, {101, 0}, {0, -1}, {kMost, kMost}, {50, kMost}}) {
    expect_error(kvcc_read(s, 0, first, count, x_, x_), KVCC_USAGE, "of the 100");
  }
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{-1, 1}, {0, -1}, {1 << 24, 1}, {kMost, kMost}}) {
    expect_error(kvcc_rotate(s, x_, first, count), KVCC_USAGE, "positions");
    expect_error(kvcc_rotate_layer(s, 0, x_, first, count), KVCC_USAGE, "positions");
  }
  expect_error(kvcc_attend(s, 0, x_, kNan, 0, x_), KVCC_USAGE, "multiplier");
  expect_error(kvcc_attend(s, 0, x_, 0, -1, x_), KVCC_USAGE, "window");
  expect_error(kvcc_append_attend(s, 0, x_, x_, x_, 1, kInfinity, 0, x_), KVCC_USAGE, "multiplier");
  expect_error(kvcc_append_attend(s, 0, x_, x_, x_, 1, 0, -5, x_), KVCC_USAGE, "window");
  expect_error(kvcc_save(s, "x", nullptr, -1), KVCC_USAGE, "count");
  const Sequence empty = create(artifact_.get());
  expect_error(kvcc_attend(empty.get(), 0, x_, 0, 0, x_), KVCC_USAGE, "append first");
  EXPECT_EQ(kvcc_append(empty.get(), 0, nullptr, nullptr, 0), KVCC_OK);
  EXPECT_EQ(kvcc_append_attend(empty.get(), 0, nullptr, nullptr, nullptr, 0, 0, 0, nullptr), KVCC_OK);
  EXPECT_EQ(kvcc_rotate(empty.get(), nullptr, 0, 0), KVCC_OK);
  EXPECT_EQ(kvcc_read(empty.get(), 0, 0, 0, nullptr, nullptr), KVCC_OK);
  ASSERT_EQ(kvcc_append(empty.get(), 1, key(), value(), 3), KVCC_OK);
  expect_error(kvcc_save(empty.get(), "x", nullptr, 0), KVCC_USAGE, "layer 1 holds 3 tokens; wanted 0");
}

TEST_F(Errors, OptionsAreChecked) {
  KvccSequence* made = nullptr;
  const auto refused = [&](const auto& change, const std::string& part) {
    KvccOptions o = options();
    change(o);
    expect_error(kvcc_create(artifact_.get(), &o, &made), KVCC_USAGE, part);
    EXPECT_EQ(made, nullptr);
  };
  refused([](KvccOptions& o) { o.size = 0; }, "options.size");
  refused([](KvccOptions& o) { o.threads = -1; }, "options.threads: -1");
  refused([](KvccOptions& o) { o.threads = 5000; }, "options.threads: 5000");
  refused([](KvccOptions& o) { o.max_tokens = -1; }, "options.max_tokens");
  refused([](KvccOptions& o) { o.max_tokens = (1 << 24) + 1; }, "options.max_tokens");
  refused([](KvccOptions& o) { o.arithmetic = 3; }, "options.arithmetic");
  refused([](KvccOptions& o) { o.reserved = 1; }, "options.reserved");
  refused([](KvccOptions& o) { o.units = ""; }, "options.units");
  struct {
    KvccOptions o;
    int64_t later;
  } larger{options(), 0};
  larger.o.size = sizeof larger;
  ASSERT_EQ(kvcc_create(artifact_.get(), &larger.o, &made), KVCC_OK) << kvcc_error_message();
  kvcc_free(made);
  larger.later = 1;
  expect_error(kvcc_create(artifact_.get(), &larger.o, &made), KVCC_USAGE, "options.size");
  ASSERT_EQ(kvcc_create(artifact_.get(), nullptr, &made), KVCC_OK);
  kvcc_free(made);
}

TEST_F(Errors, ValuesAreNamedByTokenHeadAndChannel) {
  std::vector<float> good(128 * 3, 0.5f), bad = good, query(6 * 64 * 3, 1.0f), out(query);
  bad[128 + 64 + 5] = kNan;
  expect_error(kvcc_append(sequence_.get(), 0, bad.data(), good.data(), 3), KVCC_BAD_INPUT,
               "key of layer 0, token 101, head 1, channel 5");
  expect_error(kvcc_append(sequence_.get(), 1, good.data(), bad.data(), 3), KVCC_BAD_INPUT,
               "value of layer 1, token 101, head 1, channel 5");
  bad[128 + 64 + 5] = -kInfinity;
  expect_error(kvcc_append_attend(sequence_.get(), 1, good.data(), bad.data(), query.data(), 3, 0, 0, out.data()),
               KVCC_BAD_INPUT, "value of layer 1, token 101, head 1, channel 5");
  bad[128 + 64 + 5] = 65520;  // an outlier, which would be infinite in fp16
  expect_error(kvcc_append(sequence_.get(), 0, bad.data(), good.data(), 3), KVCC_BAD_INPUT, "head 1, channel 5");
  expect_error(kvcc_append(sequence_.get(), 0, good.data(), bad.data(), 3), KVCC_BAD_INPUT, "head 1, channel 5");
  query[384 + 64 * 2 + 7] = kNan;
  expect_error(kvcc_append_attend(sequence_.get(), 1, good.data(), good.data(), query.data(), 3, 0, 0, out.data()),
               KVCC_BAD_INPUT, "query 1, head 2, channel 7");
  expect_error(kvcc_attend(sequence_.get(), 1, query.data() + 384, 0, 0, out.data()), KVCC_BAD_INPUT,
               "query 0, head 2");
}

TEST(Values, WhatFitsIsTaken) {
  // The greatest fp16 number, and the greatest float that rounds to it; without a sparse part anything finite.
  Made sparse(Case{});
  const Artifact a = open(sparse.bytes());
  const Sequence s = create(a.get());
  std::vector<float> x(3 * 128, 1.0f);
  for (int t = 0; t < 3; ++t) x[t * 128 + 9] = t == 1 ? -65504.0f : std::nextafter(65520.0f, 0.0f);
  EXPECT_EQ(kvcc_append(s.get(), 0, x.data(), x.data(), 3), KVCC_OK) << kvcc_error_message();
  Made dense({.scheme = "k=nuq3@prerope/channel,v=nuq3@token,sparse=0%", .shape = {1, 2, 2, 64, 64}});
  const Artifact b = open(dense.bytes());
  const Sequence d = create(b.get());
  x[0] = 3e38f;
  std::vector<float> value(128, 1.0f), back(128);
  ASSERT_EQ(kvcc_append(d.get(), 0, x.data(), value.data(), 1), KVCC_OK) << kvcc_error_message();
  ASSERT_EQ(kvcc_read(d.get(), 0, 0, 1, back.data(), nullptr), KVCC_OK);
  x.resize(128);
  EXPECT_EQ(back, dense.given_back(true, 0, x));
  value[3] = 3e38f;  // the token's range does not fit
  expect_error(kvcc_append(d.get(), 0, x.data(), value.data(), 1), KVCC_BAD_INPUT, "value of layer 0, token 1");
}

// Memory ends at the first allocation, the second, ...: each time the cache must be as it was, and good to go on with.
void exhaust(const Case& c, int64_t before, int64_t count, bool attends) {
  Made made(c);
  const Artifact artifact = open(made.bytes());
  const CacheShape& s = made.of().shape;
  Text text(made, before + count);
  for (int64_t i = before * 128; i < (before + count) * 128; i += 3) text.key[0][i] *= 50;  // lists must grow
  const std::vector<float> query = made.queries(count);
  std::vector<float> out(count * s.query_heads * s.value_head_dim);
  const Sequence sequence = create(artifact.get());
  text.append(made, sequence.get(), 0, before);
  const std::string whole = saved(sequence.get());
  int failures = 0;
  for (int code = KVCC_NO_MEMORY; code != KVCC_OK; ++failures) {
    ASSERT_LT(failures, 400);
    const float* const key = text.key[0].data() + before * 128;
    const float* const value = text.value[0].data() + before * 128;
    allocations_left = failures;
    code = attends ? kvcc_append_attend(sequence.get(), 0, key, value, query.data(), count, 0, 0, out.data())
                   : kvcc_append(sequence.get(), 0, key, value, count);
    allocations_left = -1;
    if (code == KVCC_OK) break;
    ASSERT_EQ(code, KVCC_NO_MEMORY) << kvcc_error_message();
    ASSERT_STREQ(kvcc_error_message(), "memory ran out");
    ASSERT_EQ(kvcc_length(sequence.get(), 0), before);
    ASSERT_TRUE(saved(sequence.get()) == whole) << "after " << failures << " allocations";
  }
  EXPECT_GT(failures, 1);
  for (int l = 1; l < s.layers; ++l) {
    ASSERT_EQ(
        kvcc_append(sequence.get(), l, text.key[l].data() + before * 128, text.value[l].data() + before * 128, count),
        KVCC_OK);
  }
  const Sequence straight = create(artifact.get());
  text.append(made, straight.get(), 0, before + count);
  EXPECT_TRUE(saved(sequence.get()) == saved(straight.get()));
}

TEST(Memory, RunsOutAndNothingHasChanged) {
  for (const bool attends : {false, true}) {
    for (const char* scheme :
         {"kvcc-nuq3-1%-sink1", "k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=2,residual=20"}) {
      for (const auto& [before, count] : {std::pair<int64_t, int64_t>{0, 5}, {1, 40}, {50, 1}, {90, 100}}) {
        SCOPED_TRACE(std::string(scheme) + ", " + std::to_string(before) + " + " + std::to_string(count));
        ASSERT_NO_FATAL_FAILURE(exhaust({.scheme = scheme}, before, count, attends));
      }
    }
  }
}

TEST(Messages, AreOfTheThreadAndWhole) {
  KvccArtifact* artifact = nullptr;
  const std::string name(5000, 'n');
  expect_error(kvcc_artifact_open(name.c_str(), &artifact), KVCC_BAD_INPUT, "nnnn");
  EXPECT_LT(std::strlen(kvcc_error_message()), 2048u);
  std::string letters;
  for (int i = 0; i < 3000; ++i) letters += "é";
  expect_error(kvcc_artifact_open(letters.c_str(), &artifact), KVCC_BAD_INPUT, "éé");
  const std::string message = kvcc_error_message();
  EXPECT_EQ(static_cast<unsigned char>(message.back()), 0xa9u);  // no half of a letter
  EXPECT_STREQ(kvcc_version(), "0.1.0");
}

}  // namespace
}  // namespace kvcc::test
