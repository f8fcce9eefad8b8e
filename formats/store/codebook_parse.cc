#include "formats/store/codebook_parse.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "formats/core/error.h"
#include "formats/core/text.h"
#include "formats/store/codebook_fields.h"
#include "formats/store/problems.h"

namespace kvcc {
namespace {

constexpr int kMajor = 1;

class Parser {
 public:
  explicit Parser(const Tree& tree) : tree_(tree) {}

  ParsedCodebook parse() {
    const std::string format = text("/", "format");
    stated_sha256_ = attribute("/", "content_sha256");
    if (format != "kvcc-codebook") {
      problem("/", fmt::format("format is '{}'", format), "'kvcc-codebook'");
      return stop();
    }
    if (!parse_version()) return stop();
    parse_scheme_attributes();
    parse_model();
    parse_provenance();
    parse_layer_index();
    const CacheShape& shape = out_.codebook.model.shape;
    parse_tensor("/key", out_.codebook.scheme.key, shape.head_dim, out_.codebook.key);
    parse_tensor("/value", out_.codebook.scheme.value, shape.value_head_dim, out_.codebook.value);
    collect_extras();
    const bool right_structure = out_.problems.empty();
    check_checksum();
    if (right_structure) check_codebook_values(out_.codebook, out_.problems);
    return std::move(out_);
  }

 private:
  ParsedCodebook stop() {
    out_.stop = true;
    return std::move(out_);
  }

  void problem(const std::string& path, const std::string& found, const std::string& wanted = "") {
    out_.problems.push_back(fmt::format("{}: {}{}{}", path, found, wanted.empty() ? "" : "; wanted ", wanted));
  }

  const TreeValue* attribute(const std::string& path, const std::string& name, bool required = true) {
    known_attributes_.insert({path, name});
    const auto object = tree_.find(path);
    if (object != tree_.end()) {
      const auto value = object->second.attributes.find(name);
      if (value != object->second.attributes.end()) return &value->second;
    }
    if (required) problem(path, fmt::format("attribute {} is missing", name));
    return nullptr;
  }

  std::string text(const std::string& path, const std::string& name, bool required = true) {
    const TreeValue* value = attribute(path, name, required);
    if (value == nullptr) return "";
    if (value->type != Element::text) {
      problem(path, fmt::format("attribute {} is {}", name, element_name(value->type)), "text");
      return "";
    }
    return value->bytes;
  }

  int64_t integer(const std::string& path, const std::string& name, int64_t least, int64_t most) {
    const TreeValue* value = attribute(path, name);
    if (value == nullptr) return least;
    int64_t number = 0;
    const bool whole = value->type <= Element::i64 && value->shape.empty();
    if (whole) {
      // Little-endian: the value's bytes are the low ones, the rest repeats the sign.
      const bool negative = value->type >= Element::i8 && (value->bytes.back() & 0x80) != 0;
      if (negative) number = -1;
      value->bytes.copy(reinterpret_cast<char*>(&number), sizeof number);
    }
    if (!whole || number < least || number > most) {
      problem(path, fmt::format("attribute {} is {}", name, whole ? std::to_string(number) : "no whole number"),
              fmt::format("a whole number from {} to {}", least, most));
      return least;
    }
    return number;
  }

  bool parse_version() {
    const std::string version = text("/", "format_version");
    out_.codebook.format_version = version;
    const auto wrong = version_problem(version, kMajor);
    if (wrong) problem("/", wrong->found, wrong->wanted);
    return !wrong;
  }

  void parse_scheme_attributes() {
    const std::string scheme = text("/", "scheme");
    const std::string json = text("/", "scheme_json");
    try {
      out_.codebook.scheme = parse_scheme(scheme);
    } catch (const Error& error) {
      problem("/", fmt::format("attribute scheme: {}", error.what()));
      return;
    }
    const Scheme& parsed = out_.codebook.scheme;
    if (parsed.is_full()) problem("/", "scheme is fp", "a scheme with codebooks");
    if (!parsed.is_vector() && (!parsed.key.is_plain() || !parsed.value.is_plain())) {
      problem("/", "scheme is " + short_name(parsed), "scales per channel or token, without groups, rotation or norm");
    }
    if (json != scheme_json(out_.codebook.scheme)) {
      problem("/", fmt::format("scheme_json is {}", json), scheme_json(out_.codebook.scheme) + " as the scheme says");
    }
  }

  void parse_model() {
    constexpr const char* kModel = "/model";
    constexpr int kMost = 1 << 20;
    ModelInfo& model = out_.codebook.model;
    model.name = text(kModel, "name");
    model.architecture = text(kModel, "architecture");
    model.weights_sha256 = text(kModel, "weights_sha256");
    model.shape.layers = static_cast<int>(integer(kModel, "layers", 1, 65535));
    model.shape.query_heads = static_cast<int>(integer(kModel, "query_heads", 1, kMost));
    model.shape.kv_heads = static_cast<int>(integer(kModel, "kv_heads", 1, kMost));
    model.shape.head_dim = static_cast<int>(integer(kModel, "head_dim", 1, kMost));
    model.shape.value_head_dim = static_cast<int>(integer(kModel, "value_head_dim", 1, kMost));
    if (model.shape.query_heads % model.shape.kv_heads != 0) {
      problem(kModel, fmt::format("{} query heads for {} kv heads", model.shape.query_heads, model.shape.kv_heads),
              "a multiple");
    }
    if (const TreeValue* theta = attribute(kModel, "rope_theta")) {
      if (theta->type == Element::f64 && theta->shape.empty()) {
        model.rope.theta = array_of<double>(*theta).front();
      } else {
        problem(kModel, "attribute rope_theta is no float", "an f64");
      }
      if (!std::isfinite(model.rope.theta) || model.rope.theta <= 0) {
        problem(kModel, fmt::format("attribute rope_theta is {}", model.rope.theta), "a finite number above 0");
      }
    }
    model.rope.kind = text(kModel, "rope_kind");
    if (model.rope.kind != "half-split" && model.rope.kind != "interleaved") {
      problem(kModel, fmt::format("rope_kind is '{}'", model.rope.kind), "half-split or interleaved");
    }
    model.rope.scaling = text(kModel, "rope_scaling");
    model.rope.scaling_json = text(kModel, "rope_scaling_json");
    model.rope.rotary_dim = static_cast<int>(integer(kModel, "rope_rotary_dim", 0, kMost));
    model.qk_norm = integer(kModel, "qk_norm", 0, 1) == 1;
    if (attribute(kModel, "attention_bias", false) != nullptr) {
      model.attention_bias = integer(kModel, "attention_bias", 0, 1) == 1;
    }
    if (const TreeValue* layers = attribute(kModel, "sliding_window_layers")) {
      if (layers->type == Element::i32 && layers->shape.size() == 1) {
        model.sliding_window_layers = array_of<int>(*layers);
      } else {
        problem(kModel, "attribute sliding_window_layers is no list of i32", "numbers of layers");
      }
    }
    model.dtype = text(kModel, "dtype");
  }

  void parse_provenance() {
    constexpr const char* kFrom = "/provenance";
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    Provenance& provenance = out_.codebook.provenance;
    provenance.tool_version = text(kFrom, "tool_version");
    provenance.dataset_name = text(kFrom, "dataset_name");
    provenance.dataset_sha256 = text(kFrom, "dataset_sha256");
    provenance.dataset_flavour = text(kFrom, "dataset_flavour");
    provenance.tokenizer_sha256 = text(kFrom, "tokenizer_sha256");
    provenance.bos = text(kFrom, "bos");
    provenance.samples = integer(kFrom, "samples", 0, kMost);
    provenance.seqlen = integer(kFrom, "seqlen", 0, kMost);
    provenance.seed = integer(kFrom, "seed", std::numeric_limits<int64_t>::min(), kMost);
    provenance.tokens = integer(kFrom, "tokens", 0, kMost);
    if (attribute(kFrom, "samples_asked", false) != nullptr) {
      provenance.samples_asked = integer(kFrom, "samples_asked", 1, kMost);
    }
    provenance.quantised_weights = text(kFrom, "quantised_weights", false);
    if (attribute(kFrom, "held_out", false) != nullptr) {
      provenance.held_out = integer(kFrom, "held_out", 1, kMost);
    }
    provenance.activations_sha256 = text(kFrom, "activations_sha256");
    provenance.date = text(kFrom, "date", false);
    provenance.parent_sha256 = text(kFrom, "parent_sha256", false);
    provenance.shard = text(kFrom, "shard", false);
    provenance.sources_json = text(kFrom, "sources", false);
  }

  /// The dataset when it is there with the right type, shape, axes and unit. Extent -1 is not checked.
  const TreeValue* dataset(const std::string& path, Element type, const std::vector<int64_t>& shape,
                           const std::string& axes, const std::string& unit, bool required) {
    known_datasets_.insert(path);
    const auto object = tree_.find(path);
    if (object == tree_.end()) {
      if (required) problem(path, "missing");
      return nullptr;
    }
    if (!object->second.dataset) {
      problem(path, "is a group", "a dataset");
      return nullptr;
    }
    const TreeValue& value = object->second.value;
    bool good = value.type == type && value.shape.size() == shape.size();
    for (size_t i = 0; good && i < shape.size(); ++i) good = shape[i] < 0 || shape[i] == value.shape[i];
    if (!good) {
      problem(
          path, fmt::format("{} {}", element_name(value.type), shape_text(value.shape)),
          fmt::format("{} {}, as the model's attributes say (axes {})", element_name(type), shape_text(shape), axes));
    }
    check_label(path, object->second, "axes", axes);
    check_label(path, object->second, "unit", unit);
    return good ? &value : nullptr;
  }

  void check_label(const std::string& path, const TreeObject& object, const std::string& name,
                   const std::string& wanted) {
    const auto found = object.attributes.find(name);
    if (found == object.attributes.end()) {
      problem(path, fmt::format("attribute {} is missing", name), fmt::format("'{}'", wanted));
    } else if (found->second.bytes != wanted) {
      problem(path, fmt::format("attribute {} is '{}'", name, found->second.bytes), fmt::format("'{}'", wanted));
    }
  }

  void parse_layer_index() {
    const int64_t layers = out_.codebook.model.shape.layers;
    if (const TreeValue* value = dataset("/layer_index", Element::u16, {layers}, "layer", "1", true)) {
      out_.codebook.layer_index = array_of<uint16_t>(*value);
    }
  }

  void parse_tensor(const std::string& path, const TensorScheme& scheme, int dim, TensorCodebooks& tensor) {
    const CacheShape& shape = out_.codebook.model.shape;
    const bool vector = scheme.grid == Grid::vector;
    if (vector) {
      tensor.units = scheme.rotation == Rotation::fklt_layer ? 1 : shape.kv_heads;
      tensor.coordinates = shape.kv_heads / tensor.units * dim;
    }
    const bool offline = scheme.axis == Axis::channel;
    for (const CodebookField& field : tensor_fields()) {
      const std::string axes = field.axes;
      const std::vector<int64_t> expected = field_extents(field, shape, tensor, dim);
      const bool required = field.need == Need::always || (field.need == Need::channel && offline) ||
                            (field.need == Need::outliers && offline && out_.codebook.scheme.sparse > 0) ||
                            (field.need == Need::qnorm && out_.codebook.scheme.qnorm) ||
                            (field.need == Need::levels && !vector) || (field.need == Need::vector && vector) ||
                            (field.need == Need::order && vector && scheme.rotation == Rotation::none) ||
                            (field.need == Need::predicted && scheme.predicted);
      const std::string where = field_path(field, path);
      if (!required && field.need != Need::optional && tree_.contains(where)) {
        problem(where, "present though the scheme has no use for it");
      }
      const TreeValue* value = dataset(where, field.type, expected, axes, field.unit, required);
      if (value == nullptr) continue;
      if (field.floats == &TensorCodebooks::codebook)
        tensor.codes = static_cast<int>(std::min<int64_t>(value->shape.back(), 1 << 16));
      if (field.floats != nullptr) tensor.*field.floats = array_of<float>(*value);
      if (field.bytes != nullptr) tensor.*field.bytes = array_of<uint8_t>(*value);
      if (field.words != nullptr) tensor.*field.words = array_of<uint16_t>(*value);
      if (field.stat_floats != nullptr) tensor.stats.*field.stat_floats = array_of<float>(*value);
      if (field.stat_words != nullptr) tensor.stats.*field.stat_words = array_of<uint32_t>(*value);
    }
  }

  /// What this build does not know: refused when marked as required, kept otherwise.
  void collect_extras() {
    for (const auto& [path, object] : tree_) {
      if (object.dataset && known_datasets_.contains(path)) {
        keep_attributes(path, object, {"axes", "unit"});
        continue;
      }
      if (object.dataset) {
        const auto required = object.attributes.find("required");
        if (required != object.attributes.end() &&
            required->second.bytes.find_first_not_of('\0') != std::string::npos) {
          problem(path, "required, and unknown to this build", "a newer kvcc");
        }
        out_.codebook.extras[path] = object;
        continue;
      }
      keep_attributes(path, object, {});
    }
  }

  void keep_attributes(const std::string& path, const TreeObject& object, const std::set<std::string>& but) {
    for (const auto& [name, value] : object.attributes) {
      if (but.contains(name) || known_attributes_.contains({path, name})) continue;
      TreeObject& extra = out_.codebook.extras[path];
      extra.dataset = object.dataset;
      extra.attributes[name] = value;
    }
  }

  void check_checksum() {
    const std::string actual = content_sha256(tree_);
    out_.codebook.content_sha256 = actual;
    if (stated_sha256_ == nullptr) return;  // reported as missing
    const bool text = stated_sha256_->type == Element::text;
    if (!text || stated_sha256_->bytes != actual) {
      problem("/", fmt::format("content_sha256 is {}", text ? "'" + stated_sha256_->bytes + "'" : "no text"),
              fmt::format("{}, of what the file holds", actual));
    }
  }

  const Tree& tree_;
  ParsedCodebook out_;
  const TreeValue* stated_sha256_ = nullptr;
  std::set<std::string> known_datasets_;
  std::set<std::pair<std::string, std::string>> known_attributes_;
};

}  // namespace

ParsedCodebook parse_codebook(const Tree& tree) { return Parser(tree).parse(); }

}  // namespace kvcc
