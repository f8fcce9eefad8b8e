#include "formats/store/weights_file.h"

#include <fmt/format.h>

#include <map>

#include "formats/core/error.h"
#include "formats/store/model_json.h"
#include "formats/store/problems.h"
#include "formats/store/versions.h"
#include "formats/store/weights_parse.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

void put_dataset(Tree& tree, const std::string& group, size_t field, TreeValue value) {
  const WeightsField& f = weights_fields()[field];
  TreeObject& object = tree[group + "/" + f.path];
  object.dataset = true;
  object.value = std::move(value);
  object.attributes["axes"] = text_value(f.axes);
  object.attributes["unit"] = text_value(f.unit);
}

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// One layer's matrices, one after another, as the datasets of its group.
void put_layer(Tree& tree, int layer, const std::vector<const QuantisedMatrix*>& matrices, int bits) {
  const std::string group = fmt::format("/layers/{:04}", layer);
  std::string names;
  std::vector<uint32_t> shape, codes, row_ends;
  std::vector<uint16_t> levels, columns;
  std::vector<float> values;
  std::vector<double> errors;
  for (const QuantisedMatrix* m : matrices) {
    names += (names.empty() ? "" : "\n") + m->name;
    shape.push_back(static_cast<uint32_t>(m->rows));
    shape.push_back(static_cast<uint32_t>(m->columns));
    append(codes, m->codes);
    append(levels, m->levels);
    const auto first = static_cast<uint32_t>(values.size());
    for (int64_t r = 0; r < m->rows; ++r) row_ends.push_back(first + (m->row_ends.empty() ? 0 : m->row_ends[r]));
    append(columns, m->exact_columns);
    append(values, m->exact_values);
    for (const double v : {m->fisher_mass, m->fisher_error, m->squared_error, m->squared_weight}) errors.push_back(v);
  }
  const auto count = [](const auto& data) { return static_cast<int64_t>(data.size()); };
  const int64_t rows = count(row_ends), each = int64_t{1} << bits;
  tree[group].attributes["matrices"] = text_value(names);
  put_dataset(tree, group, 0, array_value(Element::u32, {count(matrices), 2}, shape));
  put_dataset(tree, group, 1, array_value(Element::u32, {count(codes)}, codes));
  put_dataset(tree, group, 2, array_value(Element::u16, {rows, each}, levels));
  put_dataset(tree, group, 3, array_value(Element::f64, {count(matrices), 4}, errors));
  if (values.empty()) return;
  put_dataset(tree, group, 4, array_value(Element::u32, {rows}, row_ends));
  put_dataset(tree, group, 5, array_value(Element::u16, {count(columns)}, columns));
  put_dataset(tree, group, 6, array_value(Element::f32, {count(values)}, values));
}

Tree tree_of(const QuantisedWeights& weights) {
  Tree tree;
  auto& root = tree["/"].attributes;
  root["format"] = text_value("kvcc-weights");
  root["format_version"] = text_value(kWeightsVersion);
  root["bits"] = integer_value(weights.bits);
  root["sparse"] = float_value(weights.sparse);
  root["sensitive"] = float_value(weights.sensitive);
  root["model"] = text_value(to_json(weights.model).dump());
  root["provenance"] = text_value(to_json(weights.provenance).dump());
  tree["/layers"];
  std::map<int, std::vector<const QuantisedMatrix*>> layers;
  for (const QuantisedMatrix& matrix : weights.matrices) layers[matrix.layer].push_back(&matrix);
  for (const auto& [layer, matrices] : layers) put_layer(tree, layer, matrices, weights.bits);
  root["content_sha256"] = text_value(content_sha256(tree));
  return tree;
}

}  // namespace

ordered_json to_json(const WeightsProvenance& from) {
  return {{"tool_version", from.tool_version},
          {"text_name", from.text_name},
          {"text_sha256", from.text_sha256},
          {"text_flavour", from.text_flavour},
          {"tokenizer_sha256", from.tokenizer_sha256},
          {"bos", from.bos},
          {"ids_sha256", from.ids_sha256},
          {"samples", from.samples},
          {"seqlen", from.seqlen},
          {"seed", from.seed}};
}

std::string QuantisedWeights::name() const {
  return sparse > 0 ? fmt::format("w{}-s{:.4g}", bits, 100 * sparse) : fmt::format("w{}", bits);
}

const std::vector<WeightsField>& weights_fields() {
  static const std::vector<WeightsField> kFields = {
      {"shape", Element::u32, "matrix,extent", "rows, columns", true},
      {"codes", Element::u32, "word", "packed codes", true},
      {"levels", Element::u16, "row,code", "fp16 bits", true},
      {"error", Element::f64, "matrix,sum", "see below", true},
      {"row_end", Element::u32, "row", "exact weights of the layer", false},
      {"column", Element::u16, "exact", "1", false},
      {"value", Element::f32, "exact", "weight", false},
  };
  return kFields;
}

const std::vector<std::pair<const char*, Element>>& weights_attributes() {
  static const std::vector<std::pair<const char*, Element>> kAttributes = {
      {"format", Element::text}, {"format_version", Element::text}, {"content_sha256", Element::text},
      {"bits", Element::i64},    {"sparse", Element::f64},          {"sensitive", Element::f64},
      {"model", Element::text},  {"provenance", Element::text}};
  return kAttributes;
}

void write_weights(AtomicFile& file, const std::string& path, QuantisedWeights& weights) {
  const Tree tree = tree_of(weights);
  const ParsedWeights parsed = parse_weights(tree);
  if (!parsed.problems.empty()) {
    throw Error(ErrorKind::failed, path, fmt::format("refusing to write: {}", listing(parsed.problems)));
  }
  weights.content_sha256 = parsed.weights.content_sha256;
  file.write(tree_to_hdf5(tree));
  file.commit();
}

QuantisedWeights read_weights(const std::string& path) {
  const MappedFile file(path);
  ParsedWeights parsed = parse_weights(hdf5_to_tree(file.bytes(), path));
  if (!parsed.problems.empty()) {
    throw bad_input(path, listing(parsed.problems), "",
                    parsed.problems.size() > 1 ? "'kvcc validate' lists them all" : "");
  }
  return std::move(parsed.weights);
}

std::vector<std::string> validate_weights(const std::string& path) {
  const MappedFile file(path);
  try {
    return parse_weights(hdf5_to_tree(file.bytes(), path)).problems;
  } catch (const Error& error) {
    return {error.what()};
  }
}

bool is_weights_tree(const Tree& tree) {
  const auto& root = tree.at("/").attributes;
  const auto format = root.find("format");
  return format != root.end() && format->second.bytes == "kvcc-weights";
}

}  // namespace kvcc
