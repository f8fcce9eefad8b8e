// The tables of a page of formats/spec, for tests that compare them with the code.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace kvcc {

using Rows = std::vector<std::vector<std::string>>;

/// Rows of every table of formats/spec/NAME, by its header line: all of the header's cells, or the first `cells`, with
/// `separator` between them.
inline std::map<std::string, Rows> spec_tables(const std::string& name, size_t cells, const std::string& separator) {
  std::ifstream page(std::string(KVCC_SOURCE_DIR) + "/formats/spec/" + name);
  std::map<std::string, Rows> tables;
  std::string line, header;
  while (std::getline(page, line)) {
    if (line.empty() || line[0] != '|') {
      header.clear();
      continue;
    }
    std::vector<std::string> row;
    std::stringstream stream(line.substr(1));
    for (std::string cell; std::getline(stream, cell, '|');) {
      const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
      if (begin != std::string::npos) row.push_back(cell.substr(begin, end - begin + 1));
    }
    if (header.empty()) {
      for (size_t i = 0; i < row.size() && i < cells; ++i) header += (i == 0 ? "" : separator) + row[i];
    } else if (row.at(0).find_first_not_of("-") != std::string::npos) {
      tables[header].push_back(row);
    }
  }
  return tables;
}

}  // namespace kvcc
