#include "datasets/human_eval.h"

#include <filesystem>
#include <random>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/process.h"

namespace kvcc {
namespace {

namespace fs = std::filesystem;

/// Removed with what is in it.
class Scratch {
 public:
  Scratch() {
    std::random_device random;
    path_ = fs::temp_directory_path() / ("kvcc-humaneval-" + std::to_string(random()) + std::to_string(random()));
    make_folder(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string file(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

}  // namespace

std::string_view function_body(std::string_view completion) {
  size_t end = completion.size();
  for (const char* stop : {"\ndef ", "\nclass ", "\nif ", "\nprint(", "\n#", "\n```", "\nassert ", "\n@"}) {
    if (const size_t at = completion.find(stop); at != std::string_view::npos) end = std::min(end, at);
  }
  return completion.substr(0, end);
}

bool passes(const HumanEvalProblem& problem, std::string_view completion) {
  const Scratch scratch;
  const std::string program = scratch.file("answer.py");
  // The limits are set by the program itself, before what the model wrote runs.
  write_text_file(program,
                  "import os, resource, signal\n"
                  "os.chdir(os.path.dirname(os.path.abspath(__file__)))\n"
                  "resource.setrlimit(resource.RLIMIT_CPU, (10, 10))\n"
                  "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
                  "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
                  "signal.alarm(20)\n" +
                      problem.prompt + std::string(function_body(completion)) + "\n\n" + problem.test + "\ncheck(" +
                      problem.entry_point + ")\n");
  const ProcessResult result =
      run_process({"python3", "-I", program}, {.standard_error = Stream::discard, .own_group = true});
  if (result.missing) throw Error(ErrorKind::failed, "humaneval", "no python3 to run the answers with");
  return result.signal == 0 && result.status == 0;
}

}  // namespace kvcc
