// Hostile HDF5 files: sizes and addresses that are made up, with checksums that are right.
#include "formats/store/hdf5_structure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "formats/core/error.h"
#include "formats/store/tree.h"
#include "tests/formats/store/hdf5_repair.h"

/// libhdf5 1.10.8 itself does not free everything when it refuses a damaged file. LeakSanitizer calls this.
extern "C" const char* __lsan_default_suppressions();

namespace kvcc {
namespace {

using ::testing::HasSubstr;

Tree small_tree() {
  Tree tree;
  tree["/"].attributes["text"] = text_value("some text");
  tree["/"].attributes["number"] = integer_value(7);
  tree["/"].attributes["ratio"] = float_value(0.5);
  tree["/group"];
  TreeObject& data = tree["/group/data"];
  data.dataset = true;
  data.value = array_value<float>(Element::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  data.attributes["axes"] = text_value("row,column");
  TreeObject& other = tree["/group/other"];
  other.dataset = true;
  other.value = array_value<uint16_t>(Element::u16, {4}, {1, 2, 3, 4});
  return tree;
}

Tree read(const std::string& image) { return hdf5_to_tree(std::as_bytes(std::span(image)), "f.h5"); }

std::string refusal(const std::string& image) {
  try {
    read(image);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("f.h5"));
    return error.what();
  }
  return "accepted";
}

template <class T>
void write(std::string& image, size_t at, T value) {
  ASSERT_LE(at + sizeof value, image.size());
  std::memcpy(image.data() + at, &value, sizeof value);
}

/// The place of a number of 8 bytes from `from` on.
size_t find(const std::string& image, uint64_t number, size_t from = 0) {
  const std::string bytes(reinterpret_cast<const char*>(&number), sizeof number);
  const size_t at = image.find(bytes, from);
  EXPECT_NE(at, std::string::npos) << number;
  return at;
}

TEST(Hdf5Structure, LiesAreRefusedWithTheirPlace) {
  const std::string good = tree_to_hdf5(small_tree());
  ASSERT_EQ(read(good), small_tree());
  const size_t root = 48;
  ASSERT_EQ(good.substr(root, 4), "OHDR");
  const size_t data = good.find(std::string("\0\0\x80\x3f\0\0\0\x40", 8));  // 1 and 2
  ASSERT_NE(data, std::string::npos);
  const size_t layout = find(good, data), axes = good.find("axes"), text = good.find("text"),
               ratio = good.find("ratio");
  const size_t shape = find(good, 2, good.rfind("OHDR", axes));
  const size_t link = good.find("group");
  const auto number = [](size_t at, auto value) {
    return [at, value](std::string& image) { write(image, at, value); };
  };
  const std::map<std::string, std::pair<std::function<void(std::string&)>, const char*>> cases = {
      {"end beyond the file", {number(28, uint64_t{1} << 40), "the file should have 1099511627776"}},
      {"base address", {number(12, uint64_t{8}), "a base address"}},
      {"extension", {number(20, uint64_t{48}), "an extension"}},
      {"root elsewhere", {number(36, uint64_t{1} << 62), "an object of 16 bytes"}},
      {"root in the data", {number(36, uint64_t{data}), "no object"}},
      {"header of 4 GiB", {number(root + 10, uint8_t{255}), ""}},
      {"data beyond the file", {number(layout, uint64_t{good.size()}), "/group/data: damaged"}},
      {"data that wrap", {number(layout, UINT64_MAX - 7), "/group/data: damaged"}},
      {"data in the superblock", {number(layout, uint64_t{0}), "two structures at 0"}},
      {"data in a header", {number(layout, uint64_t{root}), "two structures at 48"}},
      {"fewer bytes than the shape", {number(layout + 8, uint64_t{20}), "/group/data: its shape is not"}},
      {"2^62 rows", {number(shape, uint64_t{1} << 62), "/group/data: its shape is not"}},
      {"a shape that wraps to the right size",
       {number(shape, (uint64_t{1} << 62) + 2), "/group/data: its shape is not"}},
      {"an attribute's name without end", {number(axes + 4, uint8_t{'x'}), "an attribute's name"}},
      {"an attribute's text of 4 GiB", {number(text + 5 + 4, UINT32_MAX), "/ attribute text: its shape and type need"}},
      {"an attribute's text of 0 bytes", {number(text + 5 + 4, uint32_t{0}), "an element of 0 bytes"}},
      {"an attribute of an unknown type", {number(text + 5, uint8_t{0x1c}), "an element type of class 12"}},
      {"an attribute whose mantissa begins nowhere",
       {number(ratio + 6 + 1, uint8_t{0x30}), "/ attribute ratio: damaged"}},
      {"an attribute in VAX order", {number(ratio + 6 + 1, uint8_t{0x61}), "/ attribute ratio: damaged"}},
      {"a link's name with a slash", {number(link + 1, uint8_t{'/'}), "a link's name"}},
      {"a link's name with a NUL", {number(link + 1, uint8_t{0}), "a link's name"}},
      {"a link to nothing", {number(link + 5, UINT64_MAX), "/group: damaged"}},
      {"a link to its own group", {number(link + 5, uint64_t{root}), "/group: a group with several names"}},
  };
  for (const auto& [name, edit_and_message] : cases) {
    std::string image = good;
    edit_and_message.first(image);
    made::repair_hdf5(image);
    EXPECT_NE(refusal(image), "accepted") << name;
    EXPECT_THAT(refusal(image), HasSubstr(edit_and_message.second)) << name;
  }
}

/// Every byte, with right checksums: refused, or read as something. Under the sanitizers too (make check).
TEST(Hdf5Structure, NoByteDoesMoreThanBeRefused) {
  const std::string good = tree_to_hdf5(small_tree());
  int refused = 0;
  for (size_t at = 8; at < good.size(); ++at) {
    for (const uint8_t value : {0, 1, 255, good[at] ^ 1, good[at] ^ 0x80}) {
      std::string image = good;
      image[at] = static_cast<char>(value);
      made::repair_hdf5(image);
      refused += refusal(image) != "accepted";
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace kvcc
