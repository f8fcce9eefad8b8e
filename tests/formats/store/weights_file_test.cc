#include "formats/store/weights_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "formats/core/error.h"
#include "tests/formats/store/made.h"
#include "tests/spec_tables.h"

namespace kvcc {
namespace {

using made::TemporaryFolder;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint16_t kOne = 0x3c00;  // 1.0 in fp16; the next numbers are a little more

/// `exact`: the columns of each row.
QuantisedMatrix matrix(const std::string& name, int layer, int64_t rows, int64_t columns, int bits,
                       std::vector<uint16_t> exact) {
  QuantisedMatrix m;
  m.name = name;
  m.layer = layer;
  m.rows = rows;
  m.columns = columns;
  m.codes.resize(static_cast<size_t>(rows * ((columns * bits + 31) / 32)));
  for (size_t i = 0; i < m.codes.size(); ++i) m.codes[i] = static_cast<uint32_t>(i * 2654435761u + 77u * layer);
  for (int64_t r = 0; r < rows; ++r) {
    for (int c = 0; c < 1 << bits; ++c) m.levels.push_back(static_cast<uint16_t>(kOne + 16 * r + c + layer));
    for (const uint16_t column : exact) {
      m.exact_columns.push_back(column);
      m.exact_values.push_back(1.5f + static_cast<float>(m.exact_values.size()));
    }
    if (!exact.empty()) m.row_ends.push_back(static_cast<uint32_t>(m.exact_values.size()));
  }
  m.fisher_mass = 10 + layer;
  m.fisher_error = 1 + layer;
  m.squared_error = 0.5 + layer;
  m.squared_weight = 100 + layer;
  return m;
}

QuantisedWeights good(double sparse = 0.0045) {
  QuantisedWeights w;
  w.bits = 3;
  w.sparse = sparse;
  w.sensitive = sparse / 9;
  w.model = made::model();
  w.provenance = {"0.1.0", "мир", sha256_hex("text"), "raw", sha256_hex("tokenizer"), "off", sha256_hex("ids"), 4,
                  32,      7};
  const auto some = [&](std::vector<uint16_t> columns) { return sparse > 0 ? columns : std::vector<uint16_t>{}; };
  w.matrices = {matrix("a", 0, 3, 11, 3, some({2, 5})), matrix("b", 0, 2, 5, 3, {}),
                matrix("c", 2, 2, 32, 3, some({31})), matrix("d", 10000, 1, 1, 3, some({0}))};
  return w;
}

void write(const std::string& path, QuantisedWeights& weights) {
  AtomicFile file(path);
  write_weights(file, path, weights);
}

TEST(WeightsFile, RoundTripIsBitEqual) {
  for (const double sparse : {0.0045, 0.0}) {
    const TemporaryFolder folder;
    QuantisedWeights written = good(sparse);
    write(folder / "w.kvcw", written);
    const QuantisedWeights read = read_weights(folder / "w.kvcw");
    EXPECT_EQ(read.matrices, written.matrices);
    EXPECT_EQ(read.bits, 3);
    EXPECT_EQ(read.sparse, sparse);
    EXPECT_EQ(read.sensitive, sparse / 9);
    EXPECT_EQ(read.model.weights_sha256, written.model.weights_sha256);
    EXPECT_EQ(read.model.rope, written.model.rope);
    EXPECT_EQ(read.provenance.text_name, "мир");
    EXPECT_EQ(read.provenance.ids_sha256, written.provenance.ids_sha256);
    EXPECT_EQ(read.provenance.seqlen, 32);
    EXPECT_EQ(read.content_sha256, written.content_sha256);
    EXPECT_THAT(validate_weights(folder / "w.kvcw"), IsEmpty());
    QuantisedWeights again = read;
    write(folder / "again.kvcw", again);
    EXPECT_EQ(read_text_file(folder / "again.kvcw"), read_text_file(folder / "w.kvcw"));
  }
}

TEST(WeightsFile, NameAndBits) {
  EXPECT_EQ(good().name(), "w3-s0.45");
  EXPECT_EQ(good(0).name(), "w3");
  const WeightBits bits = weight_bits({matrix("a", 0, 3, 11, 3, {2, 5})});
  EXPECT_EQ(bits.weights, 33);
  EXPECT_EQ(bits.exact, 6);
  EXPECT_DOUBLE_EQ(bits.codes, 3 * 2 * 32 / 33.0);  // two words a row
  EXPECT_DOUBLE_EQ(bits.levels, 3 * 8 * 16 / 33.0);
  EXPECT_DOUBLE_EQ(bits.sparse, (6 * 48 + 3 * 32) / 33.0);
  EXPECT_DOUBLE_EQ(bits.total(), bits.codes + bits.levels + bits.sparse);
}

TEST(WeightsFile, RefusesToWriteWhatItWouldNotRead) {
  const TemporaryFolder folder;
  QuantisedWeights weights = good();
  weights.matrices[0].levels[1] = 0;
  EXPECT_THROW(write(folder / "w.kvcw", weights), Error);
  EXPECT_THROW(read_text_file(folder / "w.kvcw"), Error);
}

TEST(WeightsFile, PageEqualsCode) {
  auto tables = spec_tables("weights.md", 2, ", ");
  Rows attributes, fields;
  for (const auto& [name, type] : weights_attributes()) {
    attributes.push_back({"`" + std::string(name) + "`", element_name(type)});
  }
  for (const WeightsField& f : weights_fields()) {
    fields.push_back(
        {"`" + std::string(f.path) + "`", element_name(f.type), f.axes, f.unit, f.required ? "yes" : "no"});
  }
  const auto cut = [](Rows rows, size_t cells) {
    for (auto& row : rows) row.resize(cells);
    return rows;
  };
  EXPECT_EQ(cut(tables["name, type"], 2), attributes);
  EXPECT_EQ(cut(tables["dataset, type"], 5), fields);
}

struct Broken {
  const char* name;
  std::function<void(Tree&)> edit;
  const char* message;
  bool seal = true;  ///< make the checksum right again, so that the rule itself is what refuses
};

template <typename T>
void set_element(Tree& tree, const std::string& path, size_t i, T value) {
  std::memcpy(tree.at(path).value.bytes.data() + i * sizeof(T), &value, sizeof(T));
}

void attribute(Tree& tree, const std::string& path, const std::string& name, TreeValue value) {
  tree.at(path).attributes[name] = std::move(value);
}

const std::vector<Broken>& catalogue() {
  static const std::vector<Broken> all = {
      {"OtherFormat", [](Tree& t) { attribute(t, "/", "format", text_value("gguf")); }, "/: format is 'gguf'"},
      {"NoVersion", [](Tree& t) { t["/"].attributes.erase("format_version"); }, "format_version is missing"},
      {"BadVersion", [](Tree& t) { attribute(t, "/", "format_version", text_value("1")); }, "wanted MAJOR.MINOR"},
      {"LaterVersion", [](Tree& t) { attribute(t, "/", "format_version", text_value("2.0")); },
       "/: format 2.0, this build reads up to 1.x"},
      {"Changed", [](Tree& t) { set_element<uint32_t>(t, "/layers/0000/codes", 0, 5); }, "content_sha256", false},
      {"Bits", [](Tree& t) { attribute(t, "/", "bits", integer_value(9)); }, "bits is 9; wanted 1 to 8"},
      {"OtherBits", [](Tree& t) { attribute(t, "/", "bits", integer_value(4)); }, "/layers/0000: codes 8, levels"},
      {"BitsNoNumber", [](Tree& t) { attribute(t, "/", "bits", text_value("3")); },
       "attribute bits is missing or no i64"},
      {"Shares", [](Tree& t) { attribute(t, "/", "sensitive", float_value(0.1)); }, "0 <= sensitive <= sparse < 1"},
      {"NanShare", [](Tree& t) { attribute(t, "/", "sparse", float_value(NAN)); }, "0 <= sensitive <= sparse < 1"},
      {"Model", [](Tree& t) { attribute(t, "/", "model", text_value("{}")); }, "'name' is missing"},
      {"Provenance", [](Tree& t) { attribute(t, "/", "provenance", text_value("[")); }, "/ attribute provenance"},
      {"NoLayers", [](Tree& t) { std::erase_if(t, [](auto& o) { return o.first.size() > 7; }); }, "no matrices"},
      {"NoNames", [](Tree& t) { t["/layers/0000"].attributes.clear(); }, "/layers/0000: attribute matrices is missing"},
      {"SameNames", [](Tree& t) { attribute(t, "/layers/0000", "matrices", text_value("a\na")); }, "named 'a' twice"},
      {"MoreNames", [](Tree& t) { attribute(t, "/layers/0000", "matrices", text_value("a\nb\ne")); },
       "[3, 2] and [3, 4]"},
      {"NoCodes", [](Tree& t) { t.erase("/layers/0002/codes"); }, "/layers/0002/codes: missing"},
      {"WrongType", [](Tree& t) { t.at("/layers/0002/codes").value.type = Element::f32; },
       "f32 [6]; wanted u32 of 1 axes"},
      {"Axes", [](Tree& t) { attribute(t, "/layers/0000/levels", "axes", text_value("code,row")); }, "'row,code'"},
      {"NoUnit", [](Tree& t) { t.at("/layers/0000/value").attributes.erase("unit"); }, "attribute unit is missing"},
      {"ZeroRows", [](Tree& t) { set_element<uint32_t>(t, "/layers/0000/shape", 0, 0); },
       "/layers/0000/shape: [0, 11] of a"},
      {"WideRows", [](Tree& t) { set_element<uint32_t>(t, "/layers/0000/shape", 1, 65537); }, "1 to 65536 columns"},
      {"OtherRows", [](Tree& t) { set_element<uint32_t>(t, "/layers/0000/shape", 0, 4); }, "as shape says"},
      {"SomeExact", [](Tree& t) { t.erase("/layers/0000/column"); }, "some of row_end, column, value"},
      {"LevelsFall", [](Tree& t) { set_element<uint16_t>(t, "/layers/0002/levels", 9, kOne - 1); },
       "of c row 1 code 1"},
      {"LevelInfinite", [](Tree& t) { set_element<uint16_t>(t, "/layers/0002/levels", 7, 0x7c00); },
       "inf of c row 0 code 7"},
      {"LevelNan", [](Tree& t) { set_element<uint16_t>(t, "/layers/0002/levels", 0, 0x7e00); },
       "nan of c row 0 code 0"},
      {"EndFalls", [](Tree& t) { set_element<uint32_t>(t, "/layers/0000/row_end", 1, 1); },
       "/layers/0000/row_end: 1 at row 1"},
      {"EndBeyond", [](Tree& t) { set_element<uint32_t>(t, "/layers/0000/row_end", 0, 99); },
       "/layers/0000/row_end: 99 at row 0"},
      {"LastEnd", [](Tree& t) { set_element<uint32_t>(t, "/layers/0002/row_end", 1, 1); },
       "/layers/0002/row_end: 1 at row 1"},
      {"ColumnBeyond", [](Tree& t) { set_element<uint16_t>(t, "/layers/0000/column", 1, 11); }, "below 11"},
      {"ColumnsFall", [](Tree& t) { set_element<uint16_t>(t, "/layers/0000/column", 1, 2); },
       "/layers/0000/column: 2 at 1"},
      {"ValueInfinite",
       [](Tree& t) { set_element(t, "/layers/0000/value", 2, std::numeric_limits<float>::infinity()); },
       "/layers/0000/value: inf at 2"},
      {"ErrorNegative", [](Tree& t) { set_element(t, "/layers/0000/error", 1, -1.0); }, "/layers/0000/error: -1 of a"},
      {"UnknownRequired",
       [](Tree& t) {
         t["/layers/0000/zeros"] = t.at("/layers/0000/codes");
         attribute(t, "/layers/0000/zeros", "required", text_value("yes"));
       },
       "/layers/0000/zeros: required, and unknown"},
  };
  return all;
}

class BrokenWeights : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenWeights, IsRefusedByNameAndRule) {
  const TemporaryFolder folder;
  QuantisedWeights weights = good();
  const std::string path = folder / "w.kvcw";
  write(path, weights);
  Tree tree;
  {
    const MappedFile file(path);
    tree = hdf5_to_tree(file.bytes(), path);
  }
  GetParam().edit(tree);
  if (GetParam().seal) attribute(tree, "/", "content_sha256", text_value(content_sha256(tree)));
  write_text_file(path, tree_to_hdf5(tree));
  EXPECT_THAT(validate_weights(path), Contains(HasSubstr(GetParam().message)));
  try {
    read_weights(path);
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_EQ(error.place(), path);
  }
}

INSTANTIATE_TEST_SUITE_P(Catalogue, BrokenWeights, ::testing::ValuesIn(catalogue()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(WeightsFile, KeepsToTheOrderOfLayersNotOfNames) {
  const TemporaryFolder folder;
  QuantisedWeights weights = good();
  write(folder / "w.kvcw", weights);
  EXPECT_EQ(read_weights(folder / "w.kvcw").matrices.back().layer, 10000);
}

TEST(WeightsFile, IgnoresWhatItDoesNotKnow) {
  const TemporaryFolder folder;
  QuantisedWeights weights = good();
  const std::string path = folder / "w.kvcw";
  write(path, weights);
  Tree tree;
  {
    const MappedFile file(path);
    tree = hdf5_to_tree(file.bytes(), path);
  }
  tree["/layers/0000/note"] = tree.at("/layers/0000/codes");
  attribute(tree, "/", "format_version", text_value("1.7"));
  attribute(tree, "/", "content_sha256", text_value(content_sha256(tree)));
  write_text_file(path, tree_to_hdf5(tree));
  EXPECT_EQ(read_weights(path).matrices, weights.matrices);
}

TEST(WeightsFile, EveryCutAndFlippedByteIsNoticed) {
  const TemporaryFolder folder;
  QuantisedWeights weights = good();
  const std::string path = folder / "w.kvcw", damaged = folder / "damaged.kvcw";
  write(path, weights);
  const std::string bytes = read_text_file(path);
  for (size_t at = 8; at < bytes.size(); at += 61) {
    std::string text = bytes;
    text[at] = static_cast<char>(text[at] ^ 0x10);
    write_text_file(damaged, text, false);
    try {  // a byte that nothing uses may be another; nothing that is read may
      EXPECT_EQ(read_weights(damaged).matrices, weights.matrices) << "byte " << at;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << "byte " << at;
    }
    write_text_file(damaged, bytes.substr(0, at), false);
    EXPECT_THROW(read_weights(damaged), Error) << "cut at " << at;
  }
}

}  // namespace
}  // namespace kvcc
