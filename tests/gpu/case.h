// A parity case: what is made on the host from a seed, and what the reference says of it. Host only.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "formats/layout/launch.h"
#include "kernels/reference/attention.h"
#include "tests/gpu/sets.h"

namespace kvcc::gpu {

struct Case {
  std::string set{};
  int heads = 2, group = 1;
  int sink = 0, residual = 0, window = 0;
  std::vector<int> lengths{};  ///< of the sequences, ragged
  std::vector<int> splits{1};  ///< each is run
  int tail = 2;                ///< where the set's sparse part is tails
  int layer = 0;
  double factor = 1;  ///< of the rotary tables
  uint32_t seed = 1;
};
std::string describe(const Case& c);

/// One sequence of one tensor, and what the reference makes of it.
struct Sequence {
  int length = 0;
  std::vector<float> x;          ///< [T, H, D], values that every dtype holds exactly
  std::vector<uint8_t> pages;    ///< [pages, page_bytes]
  std::vector<uint8_t> wide;     ///< the same with wide_capacity
  std::vector<uint16_t> exact;   ///< [sink + residual, H, D]
  std::vector<uint32_t> needed;  ///< [pages] or [pages, H]
  std::vector<float> unpacked;   ///< [T, H, D]
  std::vector<float> spread;     ///< [T, H, D] of what the bounds of mma_keys.cuh and mma_values.cuh are in units
};

/// One tensor of a case: all its sequences with pages of one shape.
struct HostTensor {
  Spec spec;
  Layout layout = Layout::mma;
  KvccCache facts{};  ///< the numbers, without pointers
  int64_t wide_page_bytes = 0;
  int32_t wide_capacity = 0;
  int64_t fixed_bytes = 0;  ///< of a page before its records
  int32_t lists = 0;        ///< record lists of a page
  std::vector<float> scale, zero, lower, upper;
  std::vector<uint32_t> head_words;
  std::vector<Sequence> sequences;
};

HostTensor make_tensor(const Case& c, const Spec& spec, Layout layout, std::mt19937& random);

/// x as the bytes of a dtype.
std::vector<uint8_t> as_bytes(const std::vector<float>& x, device::Dtype dtype);
/// [rows, columns], values that every dtype holds exactly.
std::vector<float> made_rows(int64_t rows, int64_t columns, std::mt19937& random);

/// Rotary tables of both layouts for positions below `positions`, and what they are made from.
struct Rotary {
  reference::Rotation rotation;
  std::vector<float> cosine, sine;            ///< linear-1
  std::vector<float> base_cosine, base_sine;  ///< mma-1
  std::vector<uint16_t> relative_cosine, relative_sine;
};
Rotary make_rotary(const Spec& spec, int64_t positions, double factor);

}  // namespace kvcc::gpu
