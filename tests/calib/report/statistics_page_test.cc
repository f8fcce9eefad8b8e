// formats/spec/statistics.md against what inspect prints: every column, every member and every warning is there, and
// nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "calib/report/codebook_report.h"
#include "tests/formats/store/made.h"
#include "tests/spec_tables.h"

namespace kvcc {
namespace {

using ::testing::UnorderedElementsAreArray;

std::string bare(std::string cell) {
  std::erase(cell, '`');
  return cell;
}

/// Rows of the n-th table with the header "name | unit | stored | meaning": heads, lists, layers, channels, artifact.
std::vector<Rows> tables() {
  std::ifstream page(std::string(KVCC_SOURCE_DIR) + "/formats/spec/statistics.md");
  std::vector<Rows> all;
  std::string line;
  bool inside = false;
  while (std::getline(page, line)) {
    if (line.starts_with("| name | unit |")) {
      all.emplace_back();
      inside = true;
    } else if (!line.starts_with("|")) {
      inside = false;
    } else if (inside && !line.starts_with("|---")) {
      std::vector<std::string> row;
      std::stringstream stream(line.substr(1));
      for (std::string cell; std::getline(stream, cell, '|');) {
        const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
        row.push_back(begin == std::string::npos ? "" : bare(cell.substr(begin, end - begin + 1)));
      }
      all.back().push_back(std::move(row));
    }
  }
  return all;
}

std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.push_back(row.at(0));
  return names;
}

std::vector<std::string> members(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

ReportData full_report() {
  Codebook codebook = made::codebook();
  ActivationRanges ranges;
  ranges.layer_index.assign(codebook.layer_index.begin(), codebook.layer_index.end());
  ranges.heads = 2;
  ranges.dim = 8;
  ranges.value_dim = 6;
  for (auto* v : {&ranges.key_min, &ranges.key_max, &ranges.rotated_min, &ranges.rotated_max})
    *v = made::ramp(48, 0, 1);
  for (auto* v : {&ranges.value_min, &ranges.value_max}) *v = made::ramp(36, 0, 1);
  codebook.key.stats.drift[0] = 2;
  return report_data(codebook, &ranges, "x");
}

TEST(StatisticsPage, HasEveryColumnWithItsUnit) {
  const std::vector<Rows> all = tables();
  ASSERT_EQ(all.size(), 5u);
  std::vector<std::pair<std::string, std::string>> page, code;
  for (const auto& row : all[0]) page.emplace_back(row.at(0), row.at(1));
  for (const HeadColumn& column : head_columns()) code.emplace_back(column.name, column.unit);
  // Names and flags have no unit on the page.
  for (auto& [name, unit] : code) {
    if (name == "kind" || name == "flags") {
      for (auto& [page_name, page_unit] : page) {
        if (page_name == name) unit = page_unit;
      }
    }
  }
  EXPECT_EQ(page, code);
  page.clear();
  code.clear();
  for (const auto& row : all[3]) page.emplace_back(row.at(0), row.at(1));
  for (const ChannelColumn& column : channel_columns()) code.emplace_back(column.name, column.unit);
  EXPECT_EQ(page, code);
  for (const Rows& rows : all) {
    for (const auto& row : rows) EXPECT_TRUE(row.size() == 4 && (!row[3].empty() || !row[2].empty())) << row.at(0);
  }
}

TEST(StatisticsPage, HasEveryMemberOfTheDocument) {
  const std::vector<Rows> all = tables();
  ASSERT_EQ(all.size(), 5u);
  const ReportData data = full_report();
  const nlohmann::ordered_json document = codebook_json(data, data.heads);
  EXPECT_THAT(members(document), UnorderedElementsAreArray(names_of(all[4])));
  const auto& layer = document["layers"][0];
  EXPECT_THAT(members(layer), UnorderedElementsAreArray({"layer", "summary", "key", "value"}));
  std::vector<std::string> summary = members(layer["summary"]["key"]);
  summary.emplace_back("flagged_heads");
  EXPECT_THAT(summary, UnorderedElementsAreArray(names_of(all[2])));
  std::vector<std::string> wanted = names_of(all[0]);
  std::erase(wanted, "layer");  // of the layer, and of the list that the head is in
  std::erase(wanted, "kind");
  for (const std::string& name : names_of(all[1])) wanted.push_back(name);
  EXPECT_THAT(members(layer["key"][0]), UnorderedElementsAreArray(wanted));
  EXPECT_THAT(members(layer["key"][0]["channels"]), UnorderedElementsAreArray(names_of(all[3])));
  std::string provenance;
  for (const auto& row : all[4]) provenance += row.at(0) == "provenance" ? row.at(3) : "";
  for (const std::string& name : members(document["provenance"])) {
    EXPECT_NE(provenance.find(name), std::string::npos) << name;
  }
}

TEST(StatisticsPage, HasEveryWarning) {
  const auto tables = spec_tables("statistics.md", 3, ",");
  const auto found = tables.find("name,raised when,what it means");
  ASSERT_NE(found, tables.end());
  std::vector<std::string> page;
  for (const auto& row : found->second) page.push_back(bare(row.at(0)));
  EXPECT_THAT(page, ::testing::ElementsAreArray(warning_names().begin(), warning_names().end()));
}

TEST(StatisticsPage, HasEveryStatisticOfTheArtifact) {
  std::ifstream file(std::string(KVCC_SOURCE_DIR) + "/formats/spec/statistics.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const Rows rows = spec_tables("codebook.md", 1, "").at("path");
  for (const auto& row : rows) {
    const size_t at = row.at(0).find("stats/");
    if (at == std::string::npos) continue;
    EXPECT_NE(page.find(bare(row.at(0).substr(at))), std::string::npos) << row.at(0);
  }
}

}  // namespace
}  // namespace kvcc
