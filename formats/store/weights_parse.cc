#include "formats/store/weights_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/layout/linear.h"
#include "formats/store/model_json.h"
#include "formats/store/problems.h"

namespace kvcc {
namespace {

using nlohmann::ordered_json;

constexpr int kMajor = 1, kErrors = 4, kMostBits = 8;
constexpr uint32_t kMostRows = 1u << 24;
constexpr uint16_t kHalfInfinity = 0x7c00;

class Parser {
 public:
  explicit Parser(const Tree& tree) : tree_(tree) {}

  ParsedWeights parse() {
    if (text("format") != "kvcc-weights") {
      problem("/", fmt::format("format is '{}'", text("format")), "'kvcc-weights'");
    } else if (readable_version()) {
      parse_root();
      parse_layers();
      check_names();
      out_.weights.content_sha256 = content_sha256(tree_);
      if (text("content_sha256") != out_.weights.content_sha256) {
        problem("/", fmt::format("content_sha256 is '{}'", text("content_sha256")),
                fmt::format("{}, of what the file holds", out_.weights.content_sha256));
      }
    }
    return std::move(out_);
  }

 private:
  void problem(const std::string& path, const std::string& found, const std::string& wanted = "") {
    out_.problems.push_back(fmt::format("{}: {}{}{}", path, found, wanted.empty() ? "" : "; wanted ", wanted));
  }

  /// A root attribute that is there with its type; its absence is reported once, by attributes_there().
  const TreeValue* root(const std::string& name, Element type) const {
    const auto& all = tree_.at("/").attributes;
    const auto found = all.find(name);
    const bool good = found != all.end() && found->second.type == type && found->second.shape.empty();
    return good ? &found->second : nullptr;
  }
  std::string text(const std::string& name) const {
    const TreeValue* value = root(name, Element::text);
    return value != nullptr ? value->bytes : "";
  }
  double number(const std::string& name) const {
    const TreeValue* value = root(name, Element::f64);
    return value != nullptr ? array_of<double>(*value).front() : NAN;
  }

  bool readable_version() {
    for (const auto& [name, type] : weights_attributes()) {
      if (root(name, type) == nullptr) {
        problem("/", fmt::format("attribute {} is missing or no {}", name, element_name(type)));
      }
    }
    if (!out_.problems.empty()) return false;
    const std::string version = out_.weights.format_version = text("format_version");
    const auto wrong = version_problem(version, kMajor);
    if (wrong) problem("/", wrong->found, wrong->wanted);
    return !wrong;
  }

  void parse_root() {
    QuantisedWeights& w = out_.weights;
    const int64_t bits = array_of<int64_t>(*root("bits", Element::i64)).front();
    if (bits < 1 || bits > kMostBits) problem("/", fmt::format("bits is {}", bits), "1 to 8");
    w.bits = static_cast<int>(std::clamp<int64_t>(bits, 1, kMostBits));
    w.sparse = number("sparse");
    w.sensitive = number("sensitive");
    if (!(0 <= w.sensitive && w.sensitive <= w.sparse && w.sparse < 1)) {
      problem("/", fmt::format("sparse is {}, sensitive {}", w.sparse, w.sensitive), "0 <= sensitive <= sparse < 1");
    }
    try {
      w.model = model_from_json(parse_json<ordered_json>(text("model"), "/ attribute model"), "/ attribute model");
      const std::string place = "/ attribute provenance";
      const auto from = parse_json<ordered_json>(text("provenance"), place);
      WeightsProvenance& p = w.provenance;
      for (const auto& [name, to] : {std::pair{"tool_version", &p.tool_version},
                                     {"text_name", &p.text_name},
                                     {"text_sha256", &p.text_sha256},
                                     {"text_flavour", &p.text_flavour},
                                     {"tokenizer_sha256", &p.tokenizer_sha256},
                                     {"bos", &p.bos},
                                     {"ids_sha256", &p.ids_sha256}}) {
        *to = json_member<std::string>(from, name, place);
      }
      p.samples = json_member<int64_t>(from, "samples", place);
      p.seqlen = json_member<int64_t>(from, "seqlen", place);
      p.seed = json_member<int64_t>(from, "seed", place);
    } catch (const Error& error) {
      problem(error.place(), error.found(), error.wanted());
    }
  }

  /// The dataset when it is there with the right type, axes, unit and number of axes.
  const TreeValue* dataset(const std::string& group, const WeightsField& field, size_t axes) {
    const std::string path = group + "/" + field.path;
    const auto object = tree_.find(path);
    if (object == tree_.end()) return nullptr;
    const TreeObject& found = object->second;
    for (const auto& [name, wanted] : {std::pair{"axes", field.axes}, {"unit", field.unit}}) {
      const auto label = found.attributes.find(name);
      if (label != found.attributes.end() && label->second.bytes == wanted) continue;
      problem(path, fmt::format("attribute {} is {}", name, label == found.attributes.end() ? "missing" : "another"),
              fmt::format("'{}'", wanted));
    }
    if (found.dataset && found.value.type == field.type && found.value.shape.size() == axes) return &found.value;
    problem(
        path,
        fmt::format("{} {}", found.dataset ? element_name(found.value.type) : "group", shape_text(found.value.shape)),
        fmt::format("{} of {} axes", element_name(field.type), axes));
    return nullptr;
  }

  void parse_layers() {
    constexpr std::string_view kAbove = "/layers/";
    std::string last;
    for (const auto& [path, object] : tree_) {
      if (path == "/" || path == "/layers") continue;
      const std::string group = path.substr(0, path.find('/', std::min(kAbove.size(), path.size())));
      int layer = -1;
      const char *begin = group.data() + std::min(kAbove.size(), group.size()), *end = group.data() + group.size();
      const auto number = std::from_chars(begin, end, layer);
      const bool good = path.starts_with(kAbove) && number.ec == std::errc() && number.ptr == end && layer >= 0 &&
                        group == fmt::format("/layers/{:04}", layer);
      if (!good) {
        check_unknown(path, object);
      } else if (path == group) {
        parse_layer(group, layer);
      } else if (!is_field(path.substr(group.size() + 1))) {
        check_unknown(path, object);
      }
    }
    // Groups are in the order of their names, which five digits put before four.
    std::stable_sort(out_.weights.matrices.begin(), out_.weights.matrices.end(),
                     [](const QuantisedMatrix& a, const QuantisedMatrix& b) { return a.layer < b.layer; });
    if (out_.weights.matrices.empty() && out_.problems.empty()) problem("/layers", "no matrices");
  }

  static bool is_field(const std::string& name) {
    const auto& fields = weights_fields();
    return std::any_of(fields.begin(), fields.end(), [&](const WeightsField& f) { return name == f.path; });
  }

  /// Later minor versions may add what this build does not know, but for what is marked as required.
  void check_unknown(const std::string& path, const TreeObject& object) {
    const auto required = object.attributes.find("required");
    if (required == object.attributes.end()) return;
    if (required->second.bytes.find_first_not_of('\0') == std::string::npos) return;
    problem(path, "required, and unknown to this build", "a newer kvcc");
  }

  void parse_layer(const std::string& group, int layer) {
    const size_t before = out_.problems.size();
    const auto& attributes = tree_.at(group).attributes;
    const auto listed = attributes.find("matrices");
    if (listed == attributes.end() || listed->second.type != Element::text) {
      return problem(group, "attribute matrices is missing", "names, one a line");
    }
    std::vector<std::string> names;
    for (size_t at = 0; at <= listed->second.bytes.size();) {
      const size_t end = std::min(listed->second.bytes.find('\n', at), listed->second.bytes.size());
      names.push_back(listed->second.bytes.substr(at, end - at));
      at = end + 1;
    }
    const std::vector<WeightsField>& fields = weights_fields();
    constexpr size_t kAxes[] = {2, 1, 2, 2, 1, 1, 1};
    const TreeValue* found[std::size(kAxes)];
    for (size_t i = 0; i < std::size(kAxes); ++i) {
      found[i] = dataset(group, fields[i], kAxes[i]);
      if (found[i] == nullptr && fields[i].required && !tree_.contains(group + "/" + fields[i].path)) {
        problem(group + "/" + fields[i].path, "missing");
      }
    }
    const size_t exact = (found[4] != nullptr) + (found[5] != nullptr) + (found[6] != nullptr);
    if (exact != 0 && exact != 3) problem(group, "some of row_end, column, value", "all of them or none");
    if (out_.problems.size() == before) cut(group, layer, names, found);
  }

  /// The layer's arrays as matrices, after a look at every extent.
  void cut(const std::string& group, int layer, const std::vector<std::string>& names, const TreeValue* const* found) {
    const int bits = out_.weights.bits;
    const auto count = static_cast<int64_t>(names.size());
    const auto shape = array_of<uint32_t>(*found[0]), codes = array_of<uint32_t>(*found[1]);
    const auto levels = array_of<uint16_t>(*found[2]);
    const auto errors = array_of<double>(*found[3]);
    const bool sparse = found[4] != nullptr;
    const auto ends = sparse ? array_of<uint32_t>(*found[4]) : std::vector<uint32_t>{};
    const auto columns = sparse ? array_of<uint16_t>(*found[5]) : std::vector<uint16_t>{};
    const auto values = sparse ? array_of<float>(*found[6]) : std::vector<float>{};
    if (found[0]->shape != std::vector<int64_t>{count, 2} || found[3]->shape != std::vector<int64_t>{count, kErrors}) {
      return problem(group,
                     fmt::format("shape is {}, error {}", shape_text(found[0]->shape), shape_text(found[3]->shape)),
                     fmt::format("[{}, 2] and [{}, {}], as matrices names them", count, count, kErrors));
    }
    uint64_t rows = 0, words = 0;
    for (int64_t m = 0; m < count; ++m) {
      const uint32_t r = shape[2 * m], c = shape[2 * m + 1];
      if (r < 1 || r > kMostRows || c < 1 || c > kMostWeightColumns) {
        return problem(group + "/shape", fmt::format("[{}, {}] of {}", r, c, names[m]),
                       fmt::format("1 to {} rows and 1 to {} columns", kMostRows, kMostWeightColumns));
      }
      rows += r;
      words += uint64_t{r} * linear::row_words(c, static_cast<uint32_t>(bits));
    }
    const int64_t level_count = int64_t{1} << bits;
    const bool fits = codes.size() == words &&
                      found[2]->shape == std::vector<int64_t>{static_cast<int64_t>(rows), level_count} &&
                      (!sparse || (ends.size() == rows && columns.size() == values.size()));
    if (!fits) {
      return problem(group,
                     fmt::format("codes {}, levels {}, row_end {}, column {}, value {}", codes.size(),
                                 shape_text(found[2]->shape), ends.size(), columns.size(), values.size()),
                     fmt::format("codes {}, levels [{}, {}], row_end {} and as many columns as values, as shape says",
                                 words, rows, level_count, sparse ? rows : 0));
    }
    if (sparse && !check_exact(group, ends, columns, values, shape)) return;
    size_t row = 0, word = 0, entry = 0;
    for (int64_t m = 0; m < count; ++m) {
      QuantisedMatrix matrix;
      matrix.name = names[m];
      matrix.layer = layer;
      matrix.rows = shape[2 * m];
      matrix.columns = shape[2 * m + 1];
      const size_t r = shape[2 * m], w = r * linear::row_words(shape[2 * m + 1], static_cast<uint32_t>(bits));
      matrix.codes.assign(codes.begin() + word, codes.begin() + word + w);
      matrix.levels.assign(levels.begin() + row * level_count, levels.begin() + (row + r) * level_count);
      if (sparse && ends[row + r - 1] > entry) {
        const size_t end = ends[row + r - 1];
        for (size_t i = row; i < row + r; ++i) matrix.row_ends.push_back(ends[i] - static_cast<uint32_t>(entry));
        matrix.exact_columns.assign(columns.begin() + entry, columns.begin() + end);
        matrix.exact_values.assign(values.begin() + entry, values.begin() + end);
        entry = end;
      }
      matrix.fisher_mass = errors[kErrors * m];
      matrix.fisher_error = errors[kErrors * m + 1];
      matrix.squared_error = errors[kErrors * m + 2];
      matrix.squared_weight = errors[kErrors * m + 3];
      check_values(group, matrix);
      row += r;
      word += w;
      out_.weights.matrices.push_back(std::move(matrix));
    }
  }

  /// Ends that do not decrease and end where the values do; columns inside their matrix, ascending in a row.
  bool check_exact(const std::string& group, const std::vector<uint32_t>& ends, const std::vector<uint16_t>& columns,
                   const std::vector<float>& values, const std::vector<uint32_t>& shape) {
    size_t row = 0, begin = 0;
    for (size_t m = 0; m < shape.size() / 2; ++m) {
      for (size_t last = row + shape[2 * m]; row < last; ++row) {
        const size_t end = ends[row];
        const bool inside = begin <= end && end <= values.size();
        if (!inside || (row + 1 == ends.size() && end != values.size())) {
          problem(group + "/row_end", fmt::format("{} at row {}", end, row),
                  fmt::format("{} to {}, the last one the number of exact weights", begin, values.size()));
          return false;
        }
        for (size_t i = begin; i < end; ++i) {
          if (columns[i] < shape[2 * m + 1] && (i == begin || columns[i] > columns[i - 1])) continue;
          problem(group + "/column", fmt::format("{} at {}", columns[i], i),
                  fmt::format("ascending columns of the row, below {}", shape[2 * m + 1]));
          return false;
        }
        begin = end;
      }
    }
    const auto bad = std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad != values.end()) problem(group + "/value", fmt::format("{} at {}", *bad, bad - values.begin()), "finite");
    return true;
  }

  void check_values(const std::string& group, const QuantisedMatrix& m) {
    const size_t each = size_t{1} << out_.weights.bits;
    for (size_t i = 0; i < m.levels.size(); ++i) {
      const float level = half_to_float(m.levels[i]);
      const bool finite = (m.levels[i] & kHalfInfinity) != kHalfInfinity;
      if (finite && (i % each == 0 || level >= half_to_float(m.levels[i - 1]))) continue;
      problem(group + "/levels", fmt::format("{} of {} row {} code {}", level, m.name, i / each, i % each),
              "finite levels that do not decrease");
      break;
    }
    for (const double v : {m.fisher_mass, m.fisher_error, m.squared_error, m.squared_weight}) {
      if (std::isfinite(v) && v >= 0) continue;
      problem(group + "/error", fmt::format("{} of {}", v, m.name), "finite sums of squares");
      break;
    }
  }

  void check_names() {
    std::set<std::string> seen;
    for (const QuantisedMatrix& m : out_.weights.matrices) {
      if (m.name.empty() || !seen.insert(m.name).second) {
        problem("/layers", fmt::format("a matrix named '{}'{}", m.name, m.name.empty() ? "" : " twice"),
                "different names");
      }
    }
  }

  const Tree& tree_;
  ParsedWeights out_;
};

}  // namespace

ParsedWeights parse_weights(const Tree& tree) { return Parser(tree).parse(); }

}  // namespace kvcc
