// What a sequence gives back is what the reference codec makes of what it was given, bit for bit, however the tokens
// came.
#include "tests/kernels/runtime/made.h"

namespace kvcc::test {
namespace {

class Reading : public testing::TestWithParam<Case> {};

void expect_rows(const std::vector<float>& wanted, const std::vector<float>& found, int64_t columns) {
  ASSERT_EQ(wanted.size(), found.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(float_bits(wanted[i]), float_bits(found[i]))
        << "token " << i / columns << ", column " << i % columns << ": " << found[i] << " for " << wanted[i];
  }
}

TEST_P(Reading, GivesBackWhatTheReferenceCodecDoes) {
  Made made(GetParam());
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get(), options(2));
  const Text text(made, 300);
  for (int64_t done = 0; done < text.tokens;) {
    const int64_t count = std::min<int64_t>(text.tokens - done, 1 + made.random()() % (done % 2 ? 90 : 3));
    text.append(made, sequence.get(), done, count);
    done += count;
    if (made.random()() % 3 != 0 && done < text.tokens) continue;
    for (int l = 0; l < made.of().shape.layers; ++l) {
      ASSERT_EQ(kvcc_length(sequence.get(), l), done);
      const int64_t first = done == text.tokens ? 0 : made.random()() % done, tokens = done - first;
      std::vector<float> key(tokens * made.key_columns()), value(tokens * made.value_columns());
      ASSERT_EQ(kvcc_read(sequence.get(), l, first, tokens, key.data(), value.data()), KVCC_OK) << kvcc_error_message();
      for (const bool keys : {true, false}) {
        const int64_t n = keys ? made.key_columns() : made.value_columns();
        std::vector<float> x = keys ? text.key[l] : text.value[l];
        x.resize(done * n);
        std::vector<float> wanted = made.given_back(keys, l, x);
        wanted.erase(wanted.begin(), wanted.begin() + first * n);
        ASSERT_NO_FATAL_FAILURE(expect_rows(wanted, keys ? key : value, n)) << "layer " << l << ", keys: " << keys;
      }
    }
  }
}

TEST_P(Reading, FilesDoNotShowHowTokensCame) {
  Made made(GetParam());
  const Artifact artifact = open(made.bytes());
  const Text text(made, 260);
  const Sequence at_once = create(artifact.get());
  text.append(made, at_once.get(), 0, text.tokens);
  const std::string wanted = saved(at_once.get());
  for (int run = 0; run < 3; ++run) {
    const Sequence sequence = create(artifact.get(), options(1 + run));
    for (int64_t done = 0; done < text.tokens;) {
      const int64_t count = run == 0 ? 1 : std::min<int64_t>(text.tokens - done, 1 + made.random()() % 100);
      ASSERT_NO_FATAL_FAILURE(text.append(made, sequence.get(), done, count));
      done += count;
    }
    ASSERT_TRUE(saved(sequence.get()) == wanted) << "run " << run;
  }
}

TEST_P(Reading, UsageCountsWhatIsThere) {
  Made made(GetParam());
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  KvccUsage usage;
  ASSERT_EQ(kvcc_usage(sequence.get(), &usage), KVCC_OK);
  EXPECT_EQ(usage.tokens, 0);
  EXPECT_EQ(usage.packed_bytes + usage.exact_bytes + usage.fp16_bytes, 0);
  const Text text(made, 200);
  text.append(made, sequence.get(), 0, 200);
  ASSERT_EQ(kvcc_usage(sequence.get(), &usage), KVCC_OK);
  const int64_t columns = made.key_columns() + made.value_columns(), layers = made.of().shape.layers;
  const Scheme& s = made.codebook().scheme;
  EXPECT_EQ(usage.tokens, 200);
  EXPECT_EQ(usage.fp16_bytes, 200 * columns * 2 * layers);
  EXPECT_EQ(usage.exact_bytes, std::min(200, s.sink + s.residual) * columns * 2 * layers);
  const int64_t pages = (200 - s.sink - s.residual + 63) / 64;
  const int least_bits = s.is_vector() ? 1 : 2;  // an element
  EXPECT_GE(usage.packed_bytes, pages * 64 * columns * layers * least_bits / 8);
  EXPECT_EQ(usage.packed_bytes % (pages * 128), 0);
  EXPECT_GE(usage.reserved_bytes, usage.packed_bytes + usage.exact_bytes);
}

// Lists that are too short, again and again: one head has nothing but outliers.
TEST(Overflow, ListsGrowAndNothingIsLost) {
  for (const char* scheme : {"k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,sink=1",
                             "k=nuq3@prerope/channel,v=nuq3@token,sparse=1%,residual=7"}) {
    Made made({.scheme = scheme, .shape = {1, 6, 3, 64, 64}});
    const Artifact artifact = open(made.bytes());
    Text text(made, 190);
    for (int64_t t = 0; t < text.tokens; ++t) {  // more and more of them
      for (int c = 0; c < 64; ++c) {
        if (static_cast<int64_t>(made.random()() % 190) >= t) continue;
        text.key[0][t * 192 + 128 + c] *= 100;
        text.value[0][t * 192 + c] *= 1e-4f;  // then all of a token's outliers lie in the other heads
      }
    }
    const Sequence one = create(artifact.get()), all = create(artifact.get(), options(2));
    for (int64_t t = 0; t < text.tokens; ++t) ASSERT_NO_FATAL_FAILURE(text.append(made, one.get(), t, 1));
    ASSERT_NO_FATAL_FAILURE(text.append(made, all.get(), 0, text.tokens));
    EXPECT_TRUE(saved(one.get()) == saved(all.get()));
    std::vector<float> key(text.key[0].size()), value(text.value[0].size());
    ASSERT_EQ(kvcc_read(one.get(), 0, 0, text.tokens, key.data(), value.data()), KVCC_OK);
    expect_rows(made.given_back(true, 0, text.key[0]), key, 192);
    expect_rows(made.given_back(false, 0, text.value[0]), value, 192);
  }
}

TEST(Arrays, NeedNoAlignment) {
  Made made(Case{});
  const Artifact artifact = open(made.bytes());
  const Text text(made, 100);
  std::vector<float> key = text.key[0], value = text.value[0], query = made.queries(1);
  const Sequence straight = create(artifact.get()), odd = create(artifact.get());
  std::vector<float> out(6 * 64), odd_out(6 * 64 + 1), read(key.size()), odd_read(key.size() + 1);
  ASSERT_EQ(kvcc_append(straight.get(), 0, key.data(), value.data(), 100), KVCC_OK);
  ASSERT_EQ(kvcc_attend(straight.get(), 0, query.data(), 0, 0, out.data()), KVCC_OK);
  ASSERT_EQ(kvcc_read(straight.get(), 0, 0, 100, read.data(), nullptr), KVCC_OK);
  for (std::vector<float>* x : {&key, &value, &query}) x->insert(x->begin(), 0.0f);
  ASSERT_EQ(kvcc_append(odd.get(), 0, key.data() + 1, value.data() + 1, 100), KVCC_OK);
  ASSERT_EQ(kvcc_attend(odd.get(), 0, query.data() + 1, 0, 0, odd_out.data() + 1), KVCC_OK);
  ASSERT_EQ(kvcc_read(odd.get(), 0, 0, 100, odd_read.data() + 1, nullptr), KVCC_OK);
  EXPECT_EQ(std::memcmp(out.data(), odd_out.data() + 1, out.size() * 4), 0);
  EXPECT_EQ(std::memcmp(read.data(), odd_read.data() + 1, read.size() * 4), 0);
}

INSTANTIATE_TEST_SUITE_P(Schemes, Reading, testing::ValuesIn(cases()));

}  // namespace
}  // namespace kvcc::test
