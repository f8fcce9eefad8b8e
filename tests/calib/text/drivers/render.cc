// Chat templates rendered: a JSON list [[template, variables], …] on stdin; on stdout a list of {"text"} or {"error"}.
#include <iostream>
#include <iterator>

#include "calib/text/jinja/template.h"
#include "formats/core/error.h"

int main() {
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const auto& job : nlohmann::ordered_json::parse(input)) {
    try {
      results.push_back({{"text", kvcc::jinja::Template(job[0].get<std::string>(), "template").render(job[1])}});
    } catch (const kvcc::Error& error) {
      results.push_back({{"error", error.what()}});
    }
  }
  std::cout << results.dump();
}
