#include "calib/cli/ablate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calib/report/codebook_diff.h"
#include "formats/cli/program.h"

namespace kvcc::cli {
namespace {

using Json = nlohmann::ordered_json;

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

/// Of the heads' distances; heads that can't be compared are left out.
Json summary(const CodebookDifference& difference, const char* kind) {
  std::vector<double> distances;
  for (const HeadDifference& head : difference.heads) {
    if (std::string(head.kind) == kind && std::isfinite(head.distance)) distances.push_back(head.distance);
  }
  if (distances.empty()) return nullptr;
  std::sort(distances.begin(), distances.end());
  double squares = 0;
  for (const double d : distances) squares += d * d;
  const auto at = [&](double p) {
    return distances[static_cast<size_t>(p * static_cast<double>(distances.size() - 1))];
  };
  return {{"rms", number(std::sqrt(squares / static_cast<double>(distances.size())))},
          {"median", at(0.5)},
          {"p90", at(0.9)},
          {"most", distances.back()},
          {"heads", distances.size()}};
}

Json distance(const Codebook& a, const Codebook& b) {
  const CodebookDifference difference = diff_codebooks(a, b);
  return {{"key", summary(difference, "key")}, {"value", summary(difference, "value")}};
}

std::vector<std::string> axes_of(const AblatePlan& plan, size_t point) {
  std::vector<std::string> axes;
  const auto add = [&](const char* name, const std::vector<size_t>& points) {
    if (std::find(points.begin(), points.end(), point) != points.end()) axes.emplace_back(name);
  };
  add("samples", plan.by_samples);
  add("seqlen", plan.by_seqlen);
  add("domain", plan.by_domain);
  add("seed", plan.by_seed);
  return axes;
}

/// The rows of an artifact in every evaluation.
Json results_of(const Ablation& ablation, const std::string& artifact) {
  Json results = Json::array();
  for (const Json& evaluation : ablation.evaluations) {
    for (const Json& row : evaluation.at("results")) {
      if (row.value("codebook", "") != artifact) continue;
      Json result{{"dataset", evaluation.at("dataset").at("name")}};
      for (const char* key : {"nll", "perplexity", "dnll", "dnll_se", "kl", "kl_se", "top1_agreement"}) {
        result[key] = row.at(key);
      }
      results.push_back(std::move(result));
    }
  }
  return results;
}

Json point_json(const Ablation& ablation, size_t point, size_t scheme) {
  const AblatePoint& at = ablation.plan.points[point];
  const Codebook& book = ablation.books[point][scheme];
  return {{"scheme", ablation.schemes[scheme]},
          {"axes", axes_of(ablation.plan, point)},
          {"samples", book.provenance.samples},
          {"seqlen", at.seqlen},
          {"dataset", book.provenance.dataset_name},
          {"dataset_sha256", book.provenance.dataset_sha256},
          {"seed", at.seed},
          {"tokens", book.provenance.tokens},
          {"codebook", ablation.artifacts[point][scheme]},
          {"content_sha256", book.content_sha256},
          {"distance", distance(book, ablation.books[0][scheme])},
          {"results", results_of(ablation, ablation.artifacts[point][scheme])}};
}

std::string text(const Json& value, int digits) {
  return value.is_number() ? fmt::format("{:.{}f}", value.get<double>(), digits) : std::string("-");
}

std::string with_error(const Json& row, const std::string& name, int digits) {
  const std::string value = text(row.at(name), digits);
  return row.at(name + "_se").is_number() ? value + " ±" + text(row.at(name + "_se"), digits) : value;
}

std::string rms(const Json& distance, const char* kind) {
  return distance.at(kind).is_object() ? text(distance.at(kind).at("rms"), 3) : "-";
}

bool has_axis(const Json& point, const std::string& axis) {
  return std::find(point.at("axes").begin(), point.at("axes").end(), axis) != point.at("axes").end();
}

/// Scheme by scheme; numbers ascending.
std::vector<Json> points_of(const Json& document, const std::string& axis, const std::string& member) {
  std::vector<Json> points;
  for (const Json& point : document.at("points")) {
    if (has_axis(point, axis)) points.push_back(point);
  }
  const Json& schemes = document.at("schemes");
  const auto place = [&](const Json& point) {
    return std::find(schemes.begin(), schemes.end(), point.at("scheme")) - schemes.begin();
  };
  std::stable_sort(points.begin(), points.end(), [&](const Json& a, const Json& b) {
    if (place(a) != place(b)) return place(a) < place(b);
    return axis != "seed" && a.at(member).is_number() && a.at(member) < b.at(member);
  });
  return points;
}

/// Distances are to the base, whose own row says 0.
std::string axis_table(const Json& document, const std::string& axis, const std::string& column,
                       const std::string& member) {
  std::vector<std::vector<std::string>> rows{{"scheme", column, "tokens"}};
  for (const Json& evaluation : document.at("evaluations")) {
    const std::string name =
        document.at("evaluations").size() > 1 ? " " + evaluation.at("dataset").get<std::string>() : "";
    rows[0].push_back("perplexity" + name);
    rows[0].push_back("KL" + name);
  }
  rows[0].insert(rows[0].end(), {"key distance", "value distance"});
  for (const Json& point : points_of(document, axis, member)) {
    const Json& value = point.at(member);
    std::vector<std::string> row{point.at("scheme"), value.is_string() ? value.get<std::string>() : value.dump(),
                                 point.at("tokens").dump()};
    for (const Json& result : point.at("results")) {
      row.push_back(text(result.at("perplexity"), 4));
      row.push_back(with_error(result, "kl", 5));
    }
    row.push_back(rms(point.at("distance"), "key"));
    row.push_back(rms(point.at("distance"), "value"));
    rows.push_back(std::move(row));
  }
  return table(rows);
}

}  // namespace

Json ablation_json(const Ablation& ablation) {
  const AblatePoint& base = ablation.plan.base;
  Json document{{"model", ablation.options.model}, {"schemes", ablation.schemes}};
  document["base"] = {{"samples", ablation.books[0][0].provenance.samples},
                      {"seqlen", base.seqlen},
                      {"dataset", ablation.books[0][0].provenance.dataset_name},
                      {"seed", base.seed}};
  document["evaluations"] = Json::array();
  for (const Json& evaluation : ablation.evaluations) {
    const Json& full = evaluation.at("results").at(0);
    document["evaluations"].push_back({{"dataset", evaluation.at("dataset").at("name")},
                                       {"sha256", evaluation.at("dataset").at("sha256")},
                                       {"windows", evaluation.at("windows")},
                                       {"seqlen", evaluation.at("seqlen")},
                                       {"nll", full.at("nll")},
                                       {"perplexity", full.at("perplexity")}});
  }
  document["points"] = Json::array();
  for (size_t scheme = 0; scheme < ablation.schemes.size(); ++scheme) {
    for (size_t point = 0; point < ablation.plan.points.size(); ++point) {
      document["points"].push_back(point_json(ablation, point, scheme));
    }
  }
  document["seeds"] = Json::array();
  for (size_t scheme = 0; scheme < ablation.schemes.size(); ++scheme) {
    const std::vector<size_t>& points = ablation.plan.by_seed;
    for (size_t i = 0; i < points.size(); ++i) {
      for (size_t j = i + 1; j < points.size(); ++j) {
        Json pair{{"scheme", ablation.schemes[scheme]},
                  {"a", ablation.plan.points[points[i]].seed},
                  {"b", ablation.plan.points[points[j]].seed}};
        pair.update(distance(ablation.books[points[i]][scheme], ablation.books[points[j]][scheme]));
        document["seeds"].push_back(std::move(pair));
      }
    }
  }
  return document;
}

std::string ablation_tables(const Json& document) {
  std::string out;
  for (const Json& evaluation : document.at("evaluations")) {
    out += fmt::format("{}: {} windows of {} tokens, full precision {}\n", evaluation.at("dataset").get<std::string>(),
                       evaluation.at("windows").dump(), evaluation.at("seqlen").dump(),
                       text(evaluation.at("perplexity"), 4));
  }
  const Json& base = document.at("base");
  out += fmt::format("base: {} samples of {} tokens of {}, seed {}\n", base.at("samples").dump(),
                     base.at("seqlen").dump(), base.at("dataset").get<std::string>(), base.at("seed").dump());
  out += "\nnumber of samples\n" + axis_table(document, "samples", "samples", "samples");
  out += "\nlength of samples\n" + axis_table(document, "seqlen", "seqlen", "seqlen");
  out += "\ncalibration text\n" + axis_table(document, "domain", "dataset", "dataset");
  out += "\nseed\n" + axis_table(document, "seed", "seed", "seed");
  if (document.at("seeds").empty()) return out;
  std::vector<std::vector<std::string>> rows{
      {"scheme", "seeds", "key rms", "median", "90 %", "value rms", "median", "90 %"}};
  for (const Json& pair : document.at("seeds")) {
    std::vector<std::string> row{pair.at("scheme"), pair.at("a").dump() + ", " + pair.at("b").dump()};
    for (const char* kind : {"key", "value"}) {
      for (const char* figure : {"rms", "median", "p90"}) {
        row.push_back(pair.at(kind).is_object() ? text(pair.at(kind).at(figure), 3) : "-");
      }
    }
    rows.push_back(std::move(row));
  }
  return out + "\ndistance between fits of two seeds, in units of the error of quantising\n" + table(rows);
}

}  // namespace kvcc::cli
