// The checks of layout mma-1: a case for every message, and that whatever is right passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <limits>

#include "formats/core/error.h"
#include "kernels/host/checks.h"

namespace kvcc::host {
namespace {

using linear::Sparse;
using testing::HasSubstr;

// Never followed: any address does.
template <class T>
T* device(uintptr_t at = 0x7000) {
  return reinterpret_cast<T*>(at);
}
template <class T>
void shift(T*& pointer, intptr_t bytes) {
  pointer = reinterpret_cast<T*>(reinterpret_cast<intptr_t>(pointer) + bytes);
}

KernelFacts facts(const char* name, mma::Tensor tensor, bool token_axis, Sparse sparse) {
  KernelFacts f;
  f.name = name;
  f.bits = 3;
  f.head_dim = 128;
  f.token_axis = token_axis;
  f.sparse = sparse;
  f.rotary_dim = tensor == mma::Tensor::key ? 128 : 0;
  f.group = 4;
  f.layers = 32;
  f.kv_heads = 8;
  f.layout = Layout::mma;
  f.tensor = tensor;
  return f;
}
KernelFacts key_facts(const char* name) { return facts(name, mma::Tensor::key, false, Sparse::csr); }
KernelFacts value_facts(const char* name) { return facts(name, mma::Tensor::value, true, Sparse::tail); }

KvccCache good_cache(const KernelFacts& f) {
  KvccCache c{};
  c.pages = device<uint8_t>();
  c.page_table = device<int32_t>();
  c.lengths = device<int32_t>(0x8004);
  c.exact = device<uint16_t>();
  if (!f.token_axis) c.scale = c.zero = c.lower = c.upper = device<float>();
  c.needed = device<uint32_t>();
  c.head_words = f.mixed ? device<uint32_t>() : nullptr;
  c.code_words = static_cast<int32_t>(f.kv_heads * mma::tile_words(f.head_dim, f.bits));
  c.sparse_capacity = f.sparse == Sparse::none ? 0 : 176;
  c.tail = f.sparse == Sparse::tail ? 5 : 0;
  const int classes = f.sparse == Sparse::none ? 0 : 8;
  c.page_bytes = kvcc_mma_page_bytes(c.code_words, f.token_axis, classes, f.kv_heads, c.sparse_capacity);
  c.max_pages = 16;
  c.sequences = 2;
  c.heads = f.kv_heads;
  c.sink = 1;
  c.residual = 32;
  c.layer = 31;
  return c;
}
KvccRope good_rope() { return {device<float>(), device<float>(), device<uint16_t>(), device<uint16_t>()}; }

KvccPackParams good_pack(const KernelFacts& f) {
  KvccPackParams p{};
  p.cache = good_cache(f);
  p.x = device<void>();
  p.first = device<int32_t>();
  p.status = device<uint32_t>();
  p.count = 7;
  if (f.token_axis) p.inliers = device<float>();
  if (f.sparse == Sparse::tail) p.selected = device<uint32_t>();
  return p;
}
KvccMmaKeyScoresParams good_scores(const KernelFacts& f) {
  KvccMmaKeyScoresParams p{};
  p.cache = good_cache(f);
  if (f.rotary_dim > 0) p.rope = good_rope();
  p.query = device<void>();
  p.scores = device<float>();
  p.scores_stride = 1000;
  p.multiplier = 0.088f;
  p.group = f.group;
  p.splits = 3;
  return p;
}
KvccValueMixParams good_mix(const KernelFacts& f) {
  KvccValueMixParams p{};
  p.cache = good_cache(f);
  p.weights = device<void>();
  p.partial = device<float>();
  p.out = device<float>();
  p.weights_stride = 1000;
  p.group = f.group;
  p.splits = 3;
  return p;
}
KvccAttentionParams good_attention(const KernelFacts& key, const KernelFacts& value) {
  KvccAttentionParams p{};
  p.key = good_cache(key);
  p.value = good_cache(value);
  if (key.rotary_dim > 0) p.rope = good_rope();
  p.query = device<void>();
  p.partial = device<float>();
  p.out = device<float>();
  p.multiplier = 0.088f;
  p.group = key.group;
  p.splits = 3;
  return p;
}

constexpr Extent kExtent{1000, 16};

template <class Check>
std::string refusal(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    return error.what();
  }
  return "accepted";
}

template <class Params>
struct Spoil {
  const char* wanted;  ///< part of the message
  std::function<void(Params&)> spoil;
};

/// Cache arguments; `cache` finds the one to spoil in the params.
template <class Params>
std::vector<Spoil<Params>> cache_spoils(KvccCache Params::*cache, const std::string& at, bool packs) {
  static std::vector<std::string> texts;  // keeps what the spoils point at
  texts.reserve(1000);
  std::vector<Spoil<Params>> all;
  const auto add = [&](const std::string& wanted, std::function<void(KvccCache&)> spoil) {
    texts.push_back(at + wanted);
    all.push_back({texts.back().c_str(), [cache, spoil](Params& p) { spoil(p.*cache); }});
  };
  add("pages: null; wanted a device address", [](KvccCache& c) { c.pages = nullptr; });
  add("pages: not aligned; wanted 128-byte alignment", [](KvccCache& c) { c.pages += 64; });
  add("page_table: not aligned; wanted 4-byte alignment", [](KvccCache& c) { shift(c.page_table, 2); });
  add("exact: null", [](KvccCache& c) { c.exact = nullptr; });
  add("exact: not aligned; wanted 16-byte alignment", [](KvccCache& c) { c.exact += 4; });
  add("heads: 7; wanted 8", [](KvccCache& c) { c.heads = 7; });
  add("layer: 32; wanted 0 to 31", [](KvccCache& c) { c.layer = 32; });
  add("layer: -1; wanted 0 to 31", [](KvccCache& c) { c.layer = -1; });
  add("sequences: 0; wanted at least 1", [](KvccCache& c) { c.sequences = 0; });
  add("sequences: 65536; wanted at most 65535", [](KvccCache& c) { c.sequences = 65536; });
  add("sink: -1; wanted at least 0", [](KvccCache& c) { c.sink = -1; });
  add("residual: -1; wanted at least 0", [](KvccCache& c) { c.residual = -1; });
  add("code_words: 9; wanted 6144", [](KvccCache& c) { c.code_words = 9; });
  add("sparse_capacity: -4; wanted at least 0", [](KvccCache& c) { c.sparse_capacity = -4; });
  add("sparse_capacity: 178; wanted a multiple of 4", [](KvccCache& c) { c.sparse_capacity = 178; });
  add("sparse_capacity: 8196; wanted at most 8192", [](KvccCache& c) { c.sparse_capacity = 8196; });
  add("page_bytes: 128; wanted ", [](KvccCache& c) { c.page_bytes = 128; });
  add("max_pages: 15; wanted at least 16", [packs](KvccCache& c) {
    c.max_pages = 15;
    if (!packs) c.residual = 30;  // 1000 - 1 - 30 = 969 tokens
  });
  if (!packs) {
    add("lengths: null", [](KvccCache& c) { c.lengths = nullptr; });
    add("lengths: not aligned; wanted 4-byte", [](KvccCache& c) { shift(c.lengths, 1); });
  }
  return all;
}

template <class Params>
void expect_each(const std::vector<Spoil<Params>>& spoils, const Params& good,
                 const std::function<void(const Params&)>& check, const std::string& name) {
  EXPECT_EQ(refusal([&] { check(good); }), "accepted");
  for (const Spoil<Params>& s : spoils) {
    Params p = good;
    s.spoil(p);
    const std::string message = refusal([&] { check(p); });
    EXPECT_THAT(message, HasSubstr(name + ", "));
    EXPECT_THAT(message, HasSubstr(s.wanted));
  }
}

template <class Params>
std::vector<Spoil<Params>> operator+(std::vector<Spoil<Params>> a, const std::vector<Spoil<Params>>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(MmaChecks, PackKey) {
  using P = KvccPackParams;
  const KernelFacts f = key_facts("pack_key");
  const std::vector<Spoil<P>> own = {
      {"cache.scale: null", [](P& p) { p.cache.scale = nullptr; }},
      {"cache.zero: not aligned; wanted 16-byte", [](P& p) { shift(p.cache.zero, 4); }},
      {"cache.lower: null", [](P& p) { p.cache.lower = nullptr; }},
      {"cache.upper: null", [](P& p) { p.cache.upper = nullptr; }},
      {"cache.needed: null", [](P& p) { p.cache.needed = nullptr; }},
      {"cache.tail: 1; wanted 0", [](P& p) { p.cache.tail = 1; }},
      {"x: null", [](P& p) { p.x = nullptr; }},
      {"x: not aligned; wanted 16-byte", [](P& p) { shift(p.x, 2); }},
      {"first: null", [](P& p) { p.first = nullptr; }},
      {"status: null", [](P& p) { p.status = nullptr; }},
      {"count: 0; wanted at least 1", [](P& p) { p.count = 0; }},
      {"repeat_above: -1; wanted at least 0", [](P& p) { p.repeat_above = -1; }},
      {"selected: an address; wanted null: scales are static", [](P& p) { p.selected = device<uint32_t>(); }},
      {"inliers: an address; wanted null: scales are static", [](P& p) { p.inliers = device<float>(); }},
  };
  expect_each<P>(
      own + cache_spoils(&P::cache, "cache.", true), good_pack(f), [&](const P& p) { check(f, p, kExtent); },
      "pack_key");
  P p = good_pack(f);
  p.cache.lengths = nullptr;  // pack does not read it
  p.repeat_above = 176;
  EXPECT_EQ(refusal([&] { check(f, p, kExtent); }), "accepted");
}

TEST(MmaChecks, PackValue) {
  using P = KvccPackParams;
  const KernelFacts f = value_facts("pack_value");
  const std::vector<Spoil<P>> own = {
      {"cache.tail: 0; wanted at least 1", [](P& p) { p.cache.tail = 0; }},
      {"cache.tail: 512; wanted at least one value of a token between the tails", [](P& p) { p.cache.tail = 512; }},
      {"cache.needed: null", [](P& p) { p.cache.needed = nullptr; }},
      {"inliers: null", [](P& p) { p.inliers = nullptr; }},
      {"inliers: not aligned; wanted 8-byte", [](P& p) { shift(p.inliers, 4); }},
      {"selected: null", [](P& p) { p.selected = nullptr; }},
  };
  expect_each<P>(
      own + cache_spoils(&P::cache, "cache.", true), good_pack(f), [&](const P& p) { check(f, p, kExtent); },
      "pack_value");
}

TEST(MmaChecks, WithoutSparsePart) {
  using P = KvccPackParams;
  const KernelFacts f = facts("pack_value", mma::Tensor::value, true, Sparse::none);
  P p = good_pack(f);
  p.cache.needed = nullptr;
  expect_each<P>(
      {{"cache.sparse_capacity: 4; wanted 0", [](P& q) { q.cache.sparse_capacity = 4; }},
       {"cache.tail: 1; wanted 0", [](P& q) { q.cache.tail = 1; }},
       {"repeat_above: 4; wanted 0", [](P& q) { q.repeat_above = 4; }},
       {"selected: an address; wanted null: the kernel has no sparse part",
        [](P& q) { q.selected = device<uint32_t>(); }}},
      p, [&](const P& q) { check(f, q, kExtent); }, "pack_value");
}

TEST(MmaChecks, MixedWidths) {
  using P = KvccMmaKeyScoresParams;
  KernelFacts f = key_facts("key_scores");
  f.mixed = true;
  expect_each<P>(
      {{"cache.head_words: null", [](P& p) { p.cache.head_words = nullptr; }},
       {"cache.code_words: 6145; wanted a multiple of 256", [](P& p) { p.cache.code_words = 6145; }},
       {"cache.code_words: 3840; wanted at least 4096", [](P& p) { p.cache.code_words = 3840; }},
       {"cache.code_words: 16640; wanted at most 16384", [](P& p) { p.cache.code_words = 16640; }}},
      good_scores(f), [&](const P& p) { check(f, p, kExtent); }, "key_scores");
}

TEST(MmaChecks, KeyScores) {
  using P = KvccMmaKeyScoresParams;
  const KernelFacts f = key_facts("key_scores");
  const auto run = [&](const P& p) { check(f, p, kExtent); };
  const std::vector<Spoil<P>> own = {
      {"rope.base_cosine: null", [](P& p) { p.rope.base_cosine = nullptr; }},
      {"rope.base_sine: null", [](P& p) { p.rope.base_sine = nullptr; }},
      {"rope.relative_cosine: null", [](P& p) { p.rope.relative_cosine = nullptr; }},
      {"rope.relative_sine: not aligned; wanted 16-byte", [](P& p) { shift(p.rope.relative_sine, 8); }},
      {"query: null", [](P& p) { p.query = nullptr; }},
      {"query: not aligned; wanted 16-byte", [](P& p) { shift(p.query, 8); }},
      {"scores: null", [](P& p) { p.scores = nullptr; }},
      {"scores_stride: 999; wanted at least 1000", [](P& p) { p.scores_stride = 999; }},
      {"group: 8; wanted 4", [](P& p) { p.group = 8; }},
      {"multiplier: not finite", [](P& p) { p.multiplier = std::numeric_limits<float>::quiet_NaN(); }},
      {"splits: 0; wanted at least 1", [](P& p) { p.splits = 0; }},
      {"window: -1; wanted at least 0", [](P& p) { p.window = -1; }},
  };
  expect_each<P>(own + cache_spoils(&P::cache, "cache.", false), good_scores(f), run, "key_scores");

  EXPECT_THAT(refusal([&] {
                check(f, good_scores(f), Extent{1000, 15});
              }),
              HasSubstr("rows of rope.base_cosine: 15; wanted at least 16"));
  KernelFacts other = f;
  other.rotary_dim = 0;
  EXPECT_THAT(refusal([&] { check(other, good_scores(f), kExtent); }),
              HasSubstr("rope.base_cosine: an address; wanted null: the kernel has no RoPE"));
  EXPECT_EQ(refusal([&] { check(other, good_scores(other), Extent{1000, 0}); }), "accepted");
  other = f;
  other.group_tile = 16;
  EXPECT_THAT(refusal([&] { check(other, good_scores(other), kExtent); }),
              HasSubstr("group: 4; wanted above 8, as the kernel is for tiles of 16 query heads"));
  other = f;
  other.group = 9;
  EXPECT_THAT(refusal([&] { check(other, good_scores(other), kExtent); }),
              HasSubstr("group: 9; wanted at most 8, as the kernel is for tiles of 8 query heads"));
  other = f;
  other.kv_heads = 40000;
  other.group = 17;
  other.group_tile = 16;
  EXPECT_THAT(refusal([&] { check(other, good_scores(other), kExtent); }),
              HasSubstr("blocks of query heads: 80000; wanted at most 65535"));
}

TEST(MmaChecks, ValueMix) {
  using P = KvccValueMixParams;
  const KernelFacts f = value_facts("value_mix");
  const std::vector<Spoil<P>> own = {
      {"weights: null", [](P& p) { p.weights = nullptr; }},
      {"weights: not aligned; wanted 2-byte", [](P& p) { shift(p.weights, 1); }},
      {"out: null", [](P& p) { p.out = nullptr; }},
      {"group: 3; wanted 4", [](P& p) { p.group = 3; }},
      {"splits: 0; wanted at least 1", [](P& p) { p.splits = 0; }},
      {"partial: null", [](P& p) { p.partial = nullptr; }},
      {"weights_stride: 999; wanted at least 1000", [](P& p) { p.weights_stride = 999; }},
      {"window: -1; wanted at least 0", [](P& p) { p.window = -1; }},
  };
  expect_each<P>(
      own + cache_spoils(&P::cache, "cache.", false), good_mix(f), [&](const P& p) { check(f, p, kExtent); },
      "value_mix");
  P p = good_mix(f);
  p.splits = 1;
  p.partial = nullptr;
  p.window = 100;
  EXPECT_EQ(refusal([&] { check(f, p, kExtent); }), "accepted");
}

TEST(MmaChecks, Dequantise) {
  using P = KvccDequantiseParams;
  const KernelFacts f = value_facts("dequantise_value");
  const P good{good_cache(f), device<float>(), device<int32_t>(), 5};
  const std::vector<Spoil<P>> own = {{"out: null", [](P& p) { p.out = nullptr; }},
                                     {"out: not aligned; wanted 8-byte", [](P& p) { shift(p.out, 4); }},
                                     {"first: null", [](P& p) { p.first = nullptr; }},
                                     {"count: 0; wanted at least 1", [](P& p) { p.count = 0; }}};
  expect_each<P>(
      own + cache_spoils(&P::cache, "cache.", false), good, [&](const P& p) { check(f, p, kExtent); },
      "dequantise_value");
}

TEST(MmaChecks, Attention) {
  using P = KvccAttentionParams;
  const KernelFacts key = key_facts("attention"), value = value_facts("attention");
  const std::vector<Spoil<P>> own = {
      {"value.page_table: not the keys'; wanted key.page_table", [](P& p) { shift(p.value.page_table, 8); }},
      {"value.max_pages: not the keys'", [](P& p) { p.value.max_pages = 17; }},
      {"value.lengths: not the keys'", [](P& p) { shift(p.value.lengths, 8); }},
      {"value.sink: not the keys'", [](P& p) { p.value.sink = 0; }},
      {"value.residual: not the keys'", [](P& p) { p.value.residual = 64; }},
      {"value.sequences: not the keys'", [](P& p) { p.value.sequences = 1; }},
      {"value.layer: not the keys'", [](P& p) { p.value.layer = 30; }},
      {"rope.base_sine: null", [](P& p) { p.rope.base_sine = nullptr; }},
      {"query: null", [](P& p) { p.query = nullptr; }},
      {"out: null", [](P& p) { p.out = nullptr; }},
      {"partial: null", [](P& p) { p.partial = nullptr; }},
      {"splits: -1; wanted at least 1", [](P& p) { p.splits = -1; }},
      {"group: 5; wanted 4", [](P& p) { p.group = 5; }},
      {"multiplier: not finite", [](P& p) { p.multiplier = std::numeric_limits<float>::infinity(); }},
      {"window: -1; wanted at least 0", [](P& p) { p.window = -1; }},
  };
  const auto run = [&](const P& p) { check(key, value, p, kExtent); };
  expect_each<P>(own + cache_spoils(&P::key, "key.", false) + cache_spoils(&P::value, "value.", false),
                 good_attention(key, value), run, "attention");
  EXPECT_THAT(refusal([&] {
                check(key, value, good_attention(key, value), Extent{1025, 16});
              }),
              HasSubstr("rows of rope.base_cosine: 16; wanted at least 17"));
  KernelFacts fewer = value;  // widths of the two are compiled in; heads must agree all the same
  fewer.kv_heads = 4;
  EXPECT_THAT(refusal([&] { check(key, fewer, good_attention(key, fewer), kExtent); }),
              HasSubstr("value.heads: not the keys'"));
}

TEST(MmaChecks, CopyPages) {
  using P = KvccCopyPagesParams;
  P good{};
  good.source = device<uint8_t>();
  good.target = device<uint8_t>(0x9000);
  good.pairs = device<int32_t>();
  good.fixed_bytes = 24704;
  good.lists = 8;
  good.source_capacity = 176;
  good.target_capacity = 192;
  good.source_page_bytes = 30336;
  good.target_page_bytes = 30848;
  good.count = 3;
  const auto run = [&](const P& p) { check("copy_pages", p); };
  expect_each<P>({{"source: null", [](P& p) { p.source = nullptr; }},
                  {"source: not aligned; wanted 128-byte", [](P& p) { p.source += 16; }},
                  {"target: null", [](P& p) { p.target = nullptr; }},
                  {"pairs: null", [](P& p) { p.pairs = nullptr; }},
                  {"count: 0; wanted at least 1", [](P& p) { p.count = 0; }},
                  {"fixed_bytes: 0; wanted at least 4", [](P& p) { p.fixed_bytes = 0; }},
                  {"fixed_bytes: 24702; wanted a multiple of 4", [](P& p) { p.fixed_bytes = 24702; }},
                  {"lists: -1; wanted at least 0", [](P& p) { p.lists = -1; }},
                  {"source_capacity: 176; wanted 0", [](P& p) { p.lists = 0; }},
                  {"source_capacity: -1; wanted at least 0", [](P& p) { p.source_capacity = -1; }},
                  {"target_capacity: -1; wanted at least 0", [](P& p) { p.target_capacity = -1; }},
                  {"source_page_bytes: 30208; wanted 30336", [](P& p) { p.source_page_bytes = 30208; }},
                  {"target_page_bytes: 30720; wanted 30848", [](P& p) { p.target_page_bytes = 30720; }},
                  {"target_page_bytes: 30848; wanted 30336", [](P& p) { p.target = const_cast<uint8_t*>(p.source); }}},
                 good, run, "copy_pages");
}

TEST(MmaChecks, TheOtherLayoutsParams) {
  const KernelFacts f = key_facts("key_scores");
  KvccKeyScoresParams p{};
  EXPECT_THAT(refusal([&] { check(f, p); }),
              HasSubstr("params: those of layout linear-1; wanted those of the kernel's"));
  KernelFacts old = f;
  old.layout = Layout::linear;
  EXPECT_THAT(refusal([&] { check(old, good_scores(f), kExtent); }), HasSubstr("params: those of layout mma-1"));
}

/// Any geometry whose params follow the contract is accepted, and one page short of it is not.
TEST(MmaChecks, WhatIsRightPasses) {
  EXPECT_TRUE(rc::check("params that follow the contract", [] {
    const auto pick = [](std::initializer_list<int> of) { return *rc::gen::elementOf(std::vector<int>(of)); };
    KernelFacts key = key_facts("attention"), value = value_facts("attention");
    key.bits = pick({2, 3, 4, 8});
    value.bits = pick({2, 3, 4, 8});
    key.head_dim = value.head_dim = pick({64, 80, 96, 128, 192, 256});
    key.group = value.group = *rc::gen::inRange(1, 17);
    key.group_tile = value.group_tile = key.group <= 8 ? 8 : 16;
    key.kv_heads = value.kv_heads = *rc::gen::inRange(1, 33);
    key.token_axis = pick({0, 1});
    value.token_axis = pick({0, 1});
    const bool sparse = pick({0, 1}) && key.kv_heads * key.head_dim > 10;
    key.sparse = !sparse ? Sparse::none : key.token_axis ? Sparse::tail : Sparse::csr;
    value.sparse = !sparse ? Sparse::none : value.token_axis ? Sparse::tail : Sparse::csr;
    key.rotary_dim = pick({0, 32, 64});
    const int sink = pick({0, 1, 4}), residual = pick({0, 32, 128}), length = *rc::gen::inRange(0, 5000);
    const int pages = std::max(1, (length - sink - residual + 63) / 64);
    const Extent extent{length, (length + 63) / 64};

    KvccAttentionParams a = good_attention(key, value);
    for (KvccCache* c : {&a.key, &a.value}) {
      c->sink = sink;
      c->residual = residual;
      c->max_pages = pages;
      if (sink + residual == 0) c->exact = nullptr;
    }
    a.window = pick({0, 1, 4096});
    check(key, value, a, extent);
    KvccMmaKeyScoresParams s = good_scores(key);
    s.cache = a.key;
    s.scores_stride = std::max(1, length);
    check(key, s, extent);
    KvccValueMixParams v = good_mix(value);
    v.cache = a.value;
    v.weights_stride = std::max(1, length);
    check(value, v, extent);
    check(value, KvccDequantiseParams{a.value, device<float>(), device<int32_t>(), 1}, extent);
    KvccPackParams k = good_pack(key);
    k.cache = a.key;
    k.cache.max_pages = std::max(1, (length - sink + 63) / 64);
    check(key, k, extent);
    if (pages > 1) {
      a.key.max_pages = a.value.max_pages = pages - 1;
      RC_ASSERT_THROWS_AS(check(key, value, a, extent), Error);
    }
  }));
}

}  // namespace
}  // namespace kvcc::host
