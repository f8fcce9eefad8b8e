// pack, dequantise and copy_pages: equal to the reference to the bit.
#include <algorithm>

#include "formats/layout/mma_launch.h"
#include "tests/gpu/device_tensor.h"
#include "tests/gpu/parity_run.h"

namespace kvcc::gpu {
namespace {

/// Packs `count` tokens of the sequences of `cache` (those from `s` on) that begin at first[i].
void pack_call(Launcher& launcher, const Run& run, const HostTensor& host, KvccCache cache, int s,
               const std::vector<int32_t>& first, int count, uint32_t* status, int32_t repeat_above = 0) {
  if (count <= 0) return;
  const int64_t columns = static_cast<int64_t>(run.c.heads) * host.spec.head_dim;
  std::vector<float> rows;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto from = host.sequences[s + i].x.begin() + first[i] * columns;
    rows.insert(rows.end(), from, from + count * columns);
  }
  const Array<uint8_t> x(launcher, as_bytes(rows, host.spec.pack_dtype));
  const Array<int32_t> starts(launcher, first);
  const Array<uint32_t> selected(launcher, first.size() * count * 2 * cache.tail);
  const Array<float> inliers(launcher, first.size() * count * 2);
  KvccPackParams p{};
  p.cache = cache;
  p.x = x.data();
  p.first = starts.data();
  p.status = status;
  p.count = count;
  p.selected = selected.data();
  p.inliers = inliers.data();
  p.repeat_above = repeat_above;
  for (const Part& part : run.set.parts) {
    const TensorKernels& kernels = run.kernels(part, host.spec.tensor);
    if (kernels.select) launcher.launch(kernels.select, kvcc_grid_mma_pack_select(&p), &p, "pack, select");
    const KvccGrid grid = run.set.layout == Layout::mma             ? kvcc_grid_mma_pack(&p)
                          : host.spec.axis == device::Axis::channel ? kvcc_grid_pack_channel(&p)
                                                                    : kvcc_grid_pack_token(&p);
    launcher.launch(kernels.pack, grid, &p, "pack");
  }
  launcher.wait("pack");
}

/// Page i of the pool of `from` to page i of `to`, for all pages of the table.
void copy_pool(Launcher& launcher, const HostTensor& host, const std::vector<int32_t>& table, const KvccCache& from,
               const KvccCache& to) {
  std::vector<int32_t> pairs;
  for (const int32_t page : table) {
    if (page >= 0) pairs.insert(pairs.end(), {page, page});
  }
  const Array<int32_t> device_pairs(launcher, pairs);
  KvccCopyPagesParams p{};
  p.source = from.pages;
  p.target = to.pages;
  p.pairs = device_pairs.data();
  p.source_page_bytes = from.page_bytes;
  p.target_page_bytes = to.page_bytes;
  p.fixed_bytes = host.fixed_bytes;
  p.lists = host.lists;
  p.source_capacity = from.sparse_capacity;
  p.target_capacity = to.sparse_capacity;
  p.count = static_cast<int32_t>(pairs.size() / 2);
  launcher.launch(copy_pages_kernel(), kvcc_grid_copy_pages(&p), &p, "copy_pages");
  launcher.wait("copy_pages");
}

/// Packs all and compares. capacity: that of the lists until a tile has no room; then the pages are copied to those of
/// the reference's capacity, and the call is repeated. -1: the reference's from the start.
std::string pack_all(Launcher& launcher, Run& run, mma::Tensor t, int32_t capacity) {
  const HostTensor& host = run.host(t);
  const DeviceTensor device(launcher, host, false, run.random);
  const Array<uint32_t> status(launcher, 1);
  status.fill(0);
  const int64_t page_bytes = (host.fixed_bytes + int64_t{host.lists} * std::max(capacity, 0) * 4 + 127) / 128 * 128;
  const Array<uint8_t> pages(launcher, device.pool_pages() * page_bytes);
  pages.fill(0);
  bool small = capacity >= 0;
  const auto shortened = [&](KvccCache cache) {
    cache.pages = pages.data();
    cache.page_bytes = page_bytes;
    cache.sparse_capacity = capacity;
    return cache;
  };
  const auto pack = [&](const KvccCache& cache, int s, const std::vector<int32_t>& first, int count) {
    pack_call(launcher, run, host, small ? shortened(cache) : cache, s, first, count, status.data());
    if (!small || device.most_needed() <= static_cast<uint32_t>(capacity)) return;
    small = false;
    copy_pool(launcher, host, device.table(), shortened(device.view()), device.view());
    pack_call(launcher, run, host, cache, s, first, count, status.data(), capacity);
  };
  // All tokens but those of the residual window: what a sequence has beyond the shortest one, then what all have in
  // common in one ragged call, and the last token of each alone.
  std::vector<int32_t> tokens, first;
  for (const Sequence& s : host.sequences) {
    tokens.push_back(std::max(s.length - run.c.residual, std::min(s.length, run.c.sink)));
  }
  const int32_t common = *std::min_element(tokens.begin(), tokens.end());
  for (size_t s = 0; s < tokens.size(); ++s) {
    first.push_back(tokens[s] - common);
    pack(device.view(static_cast<int>(s)), static_cast<int>(s), {0}, first.back());
  }
  pack(device.view(), 0, first, common - 1);
  for (int32_t& token : first) token += std::max(common - 1, 0);
  if (common > 0) pack(device.view(), 0, first, 1);
  if (const uint32_t bits = status.download()[0]; bits != 0) return "status " + std::to_string(bits) + "; wanted 0";
  if (small) return "no tile needs more than " + std::to_string(capacity) + " records";
  return device.compare_packed();
}

}  // namespace

std::string check_pack(Launcher& launcher, Run& run, mma::Tensor t) { return pack_all(launcher, run, t, -1); }

std::string check_repeat(Launcher& launcher, Run& run, mma::Tensor t) {
  uint32_t most = 0;
  for (const Sequence& s : run.host(t).sequences) {
    for (const uint32_t needed : s.needed) most = std::max(most, needed);
  }
  return pack_all(launcher, run, t, static_cast<int32_t>(most * 3 / 4 / 4 * 4));
}

std::string check_dequantise(Launcher& launcher, Run& run, mma::Tensor t) {
  const HostTensor& host = run.host(t);
  const DeviceTensor device(launcher, host, true, run.random);
  const int64_t columns = static_cast<int64_t>(run.c.heads) * host.spec.head_dim;
  for (const bool whole : {true, false}) {
    const int32_t count = whole ? run.longest : 70;
    std::vector<int32_t> first;
    for (const Sequence& s : host.sequences) first.push_back(whole ? 0 : s.length / 3);
    const Array<int32_t> starts(launcher, first);
    const Array<float> out(launcher, run.sequences() * count * columns);
    KvccDequantiseParams p{};
    p.cache = device.view();
    p.out = out.data();
    p.first = starts.data();
    p.count = count;
    for (const Part& part : run.set.parts) {
      const KvccGrid grid =
          run.set.layout == Layout::mma ? kvcc_grid_mma_dequantise(&p) : kvcc_grid_dequantise(&p, host.spec.head_dim);
      launcher.launch(run.kernels(part, t).dequantise, grid, &p, "dequantise");
    }
    std::vector<float> wanted(out.size(), bits_float(0xffffffffu));
    for (size_t s = 0; s < first.size(); ++s) {
      const Sequence& sequence = host.sequences[s];
      const int64_t rows = std::min<int64_t>(count, sequence.length - first[s]);
      std::copy_n(sequence.unpacked.begin() + first[s] * columns, rows * columns,
                  wanted.begin() + static_cast<int64_t>(s) * count * columns);
    }
    const std::string off = first_difference("[S, count, H, D]", out.download(), wanted);
    if (!off.empty()) return off;
  }
  return "";
}

std::string check_copy(Launcher& launcher, Run& run, mma::Tensor t) {
  const HostTensor& host = run.host(t);
  const DeviceTensor device(launcher, host, true, run.random);
  std::vector<int32_t> pairs;
  std::vector<uint8_t> wanted;
  for (size_t s = 0; s < host.sequences.size(); ++s) {
    wanted.insert(wanted.end(), host.sequences[s].wide.begin(), host.sequences[s].wide.end());
  }
  const int32_t total = static_cast<int32_t>(wanted.size() / host.wide_page_bytes);
  for (const int32_t page : device.table()) {
    if (page < 0) continue;
    pairs.push_back(page);
    pairs.push_back(total - 1 - static_cast<int32_t>(pairs.size() / 2));  // the other way round
  }
  const Array<int32_t> device_pairs(launcher, pairs);
  const Array<uint8_t> target(launcher, wanted.size());
  target.fill(0);
  KvccCopyPagesParams p{};
  p.source = device.view().pages;
  p.target = target.data();
  p.pairs = device_pairs.data();
  p.source_page_bytes = host.facts.page_bytes;
  p.target_page_bytes = host.wide_page_bytes;
  p.fixed_bytes = host.fixed_bytes;
  p.lists = host.lists;
  // linear-1 tails are one list of a fixed size
  const bool tails = host.layout == Layout::linear && host.spec.sparse == linear::Sparse::tail;
  p.source_capacity = tails ? 64 * 2 * host.facts.tail : host.facts.sparse_capacity;
  p.target_capacity = tails ? p.source_capacity : host.wide_capacity;
  p.count = total;
  launcher.launch(copy_pages_kernel(), kvcc_grid_copy_pages(&p), &p, "copy_pages");
  std::vector<uint8_t> found = target.download(), ordered(found.size());
  for (int32_t i = 0; i < total; ++i) {
    std::copy_n(found.begin() + (total - 1 - i) * host.wide_page_bytes, host.wide_page_bytes,
                ordered.begin() + i * host.wide_page_bytes);
  }
  return first_difference("bytes of the pages", ordered, wanted);
}

}  // namespace kvcc::gpu
