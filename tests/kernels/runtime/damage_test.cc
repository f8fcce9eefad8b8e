// Cache files that are cut short, damaged or foreign: refused by name, and never a crash.
#include <cmath>
#include <set>

#include "tests/kernels/runtime/files.h"

namespace kvcc::test {
namespace {

void expect_refused(const KvccArtifact* artifact, const std::string& file, const std::string& why) {
  EXPECT_EQ(load(artifact, file), nullptr) << why;
  EXPECT_NE(std::string(kvcc_error_message()).find(why), std::string::npos) << why << "\n" << kvcc_error_message();
}

TEST(CacheFile, RefusesEveryTruncationAndFlippedBit) {
  const Example example;
  const std::string& file = example.file();
  const ordered_json header = header_of(file);
  const size_t padding = 8 + header.dump().size(), data = file.size() - data_of(file).size();
  std::set<size_t> sizes = {padding, data - 1};
  for (size_t size = 0; size < file.size(); size += size < 32 ? 1 : 17) sizes.insert(size);
  for (const auto& [name, entry] : header.items()) {
    for (size_t i = 0; i < 3 && name != "__metadata__"; ++i) {
      sizes.insert(data + entry["data_offsets"][0].get<size_t>() + i - 1);
    }
  }
  for (const size_t size : sizes) ASSERT_EQ(load(example.artifact(), file.substr(0, size)), nullptr) << size;
  EXPECT_EQ(load(example.artifact(), file + "x"), nullptr);
  for (size_t i = 0; i < file.size(); i += 3) {
    if (i >= padding && i < data) continue;  // spaces, or others that JSON takes for none
    std::string flipped = file;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
    ASSERT_EQ(load(example.artifact(), flipped), nullptr) << "byte " << i;
  }
}

TEST(CacheFile, NamesWhatIsWrongWithIt) {
  const Example example;
  const ordered_json header = header_of(example.file());
  const std::string data = data_of(example.file());
  const auto with = [&](const char* name, const char* value) {
    ordered_json changed = header;
    changed["__metadata__"][name] = value;
    return file_of(changed, data);
  };
  const auto* const a = example.artifact();
  expect_refused(a, "", "truncated");
  expect_refused(a, file_of({{"__metadata__", ordered_json::object()}}, ""), "no packed cache");
  expect_refused(a, with("format", "x"), "no packed cache");
  expect_refused(a, with("format_version", "2.0"), "up to 1.x");
  expect_refused(a, with("format_version", "one"), "MAJOR.MINOR");
  expect_refused(a, with("layout", "mma-2"), "mma-1");
  expect_refused(a, with("artifact_sha256", std::string(64, 'b').c_str()), std::string(64, 'b'));
  expect_refused(a, with("artifact_sha256", std::string(64, 'b').c_str()), std::string(64, 'a'));
  expect_refused(a, with("artifact_sha256", "b"), "64 lower-case");
  expect_refused(a, with("sink", "2"), "as the artifact says");
  expect_refused(a, with("kv_heads", "2"), "as the artifact says");
  expect_refused(a, with("tokens", "-1"), "0 to 16777216");
  expect_refused(a, with("tokens", "99999999999999999999"), "0 to 16777216");
  expect_refused(a, with("tokens", "300"), "layers.0.key.pages");
  expect_refused(a, with("tokens", "0"), "layers.0.key.pages");
  expect_refused(a, with("tokens", "2"), "records in order, of filled slots");
  expect_refused(a, with("key_capacity", "4,4"), "1 numbers");
  expect_refused(a, with("key_capacity", "2048"), "1024");
  expect_refused(a, with("key_capacity", "5"), "multiples of 4");
  expect_refused(a, with("key_capacity", "0"), "layers.0.key.pages");
  expect_refused(a, with("key_capacity", ""), "for each layer");
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    ordered_json without = header;  // its bytes become another's, so that no hole gives it away
    without.erase(name);
    without["other"] = entry;
    expect_refused(a, file_of(without, data), name + ": no such tensor");
    ordered_json other = header;
    other[name]["dtype"] = "I8";
    other[name]["shape"] = {end - begin};
    expect_refused(a, file_of(other, data), name + ": I8");
  }
  ordered_json hole = header;
  hole.erase("token_ids");
  expect_refused(a, file_of(hole, data), "12 bytes of the data belong to no tensor");
}

// What a page may not hold, with a checksum that is right.
TEST(CacheFile, ChecksWhatReadersRelyOn) {
  const Example example;
  const ordered_json header = header_of(example.file());
  const std::string data = data_of(example.file());
  const auto with = [&](const std::string& tensor, size_t offset, const std::vector<uint16_t>& halves) {
    std::string changed = data;
    std::memcpy(changed.data() + header[tensor]["data_offsets"][0].get<size_t>() + offset, halves.data(),
                halves.size() * 2);
    EXPECT_NE(changed, data);
    return file_of(header, changed);
  };
  const auto* const a = example.artifact();
  const std::string key = "layers.0.key.pages", value = "layers.0.value.pages";
  // Keys: codes 384 bytes, class ends at 384, records at 400. Values: ranges at 384, ends at 640, records at 656.
  const size_t ends = 384, records = 400;
  expect_refused(a, with(key, ends, {3}), "record 2");
  expect_refused(a, with(key, ends + 2, {1}), "class end 1 of class 1; wanted 2 to 4");
  expect_refused(a, with(key, ends, {65535}), "class end 65535 of class 0");
  expect_refused(a, with(key, ends + 14, {5}), "class end 5 of class 7; wanted 2 to 4");
  expect_refused(a, with(key, ends + 14, {3}), "record 2");
  expect_refused(a, with(key, ends, {0, 2}), "records in order");          // then they would be of slots 8 to 15
  expect_refused(a, with(key, records, {0x390f, 0, 0x3903}), "record 0");  // the other way round, codes exchanged
  expect_refused(a, with(key, records, {0x3903 + 16}), "record 0");        // a channel beyond the head
  expect_refused(a, with(key, records, {0x3903 ^ 0x800}), "record 0");     // another code
  expect_refused(a, with(key, records, {0x3903 ^ 0x100}), "record 0");     // another token
  expect_refused(a, with(key, records + 2, {0x7c00}), "finite");
  expect_refused(a, with(value, 384, {0}), "scale not above 0");
  expect_refused(a, with(value, 384, {0x8001}), "scale not above 0");
  expect_refused(a, with(value, 384, {0x7c00}), "range");
  expect_refused(a, with(value, 386, {0xfe00}), "range");
  expect_refused(a, with(value, 640, {3, 3, 3, 3, 3, 3, 3, 3}), "slot 1: 1 outliers; wanted 2");
  expect_refused(a, with("layers.0.key.exact", 6, {0x7e00}), "element 3 is not finite");
}

TEST(CacheFile, RandomDamageWithARightChecksumNeverCrashes) {
  Made made(cases()[3]);
  const Artifact artifact = open(made.bytes());
  const Sequence sequence = create(artifact.get());
  const Text text(made, 150);
  text.append(made, sequence.get(), 0, 150);
  const std::string file = saved(sequence.get());
  const ordered_json header = header_of(file);
  int loaded = 0;
  for (int run = 0; run < 300; ++run) {
    std::string data = data_of(file);
    for (int i = 0; i < 1 + run % 4; ++i) data[made.random()() % data.size()] = static_cast<char>(made.random()());
    const Sequence found = load(artifact.get(), file_of(header, data));
    if (found == nullptr) continue;
    ++loaded;
    std::vector<float> query = made.queries(1), out(made.of().shape.query_heads * 64);
    ASSERT_EQ(kvcc_attend(found.get(), 0, query.data(), 0, 0, out.data()), KVCC_OK);
    for (const float x : out) ASSERT_TRUE(std::isfinite(x));
    text.append(made, found.get(), 0, 100);
  }
  EXPECT_GT(loaded, 20);  // another code, or another value of an outlier, is as good
  EXPECT_LT(loaded, 300);
}

}  // namespace
}  // namespace kvcc::test
