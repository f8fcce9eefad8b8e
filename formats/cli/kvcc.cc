// kvcc: execs one small program per verb, as git does, so that only the programs that run a model load libtorch.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "codegen/build/nvcc.h"
#include "formats/cli/program.h"
#include "formats/cli/verbs.h"
#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/text.h"
#include "formats/store/kernels_manifest.h"
#include "formats/store/versions.h"

namespace {

namespace fs = std::filesystem;
using kvcc::cli::Verb;

constexpr const char* kCompletionHelp =
    "Prints a script that completes verbs and options in a shell\n\n"
    "Usage: kvcc completion bash|zsh\n\n"
    "  bash: kvcc completion bash >> ~/.bash_completion\n"
    "  zsh:  kvcc completion zsh > a folder of $fpath/_kvcc\n";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The tree that this program is the bin folder of.
fs::path prefix() { return fs::path(kvcc::program_folder()).parent_path(); }

std::string usage() {
  std::string text =
      "kvcc: codebooks and kernels for the key/value cache of language models\n\n"
      "Usage: kvcc VERB [OPTIONS]      kvcc help VERB      kvcc --version\n\n";
  for (const Verb& verb : kvcc::cli::verbs()) text += fmt::format("  {:<10} {}\n", verb.name, verb.meaning);
  text += fmt::format("  {:<10} {}\n", "completion", "script for bash or zsh");
  text += "\nStart with: kvcc calibrate MODEL, where MODEL is a Hugging Face directory or a .gguf file.\n";
  return text;
}

/// Version of the libtorch that collect and eval would load, "" when it can't be told.
std::string torch_version() {
  std::vector<fs::path> folders;
  if (const std::string set = environment("KVCC_TORCH_LIB"); !set.empty()) folders.emplace_back(set);
  folders.push_back(prefix() / "lib" / "kvcc");
  for (const fs::path& folder : folders) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (error) continue;
    for (const fs::path& file : {real / "version.py", real.parent_path() / "version.py"}) {
      if (!fs::is_regular_file(file, error)) continue;
      const std::string text = kvcc::read_text_file(file.string());
      const size_t start = text.find("__version__ = '");
      if (start == std::string::npos) continue;
      const size_t begin = start + std::strlen("__version__ = '");
      return text.substr(begin, text.find('\'', begin) - begin);
    }
    for (const fs::path& file : {real / "build-version", real.parent_path() / "build-version"}) {
      if (!fs::is_regular_file(file, error)) continue;
      const std::string text = kvcc::read_text_file(file.string());
      return text.substr(0, text.find('\n'));
    }
  }
  return "";
}

/// Version and place of the nvcc that `kvcc compile` would use, or why there is none.
struct NvccFound {
  std::string version, path, problem;
};

NvccFound find_nvcc() {
  try {
    const kvcc::codegen::Nvcc nvcc = kvcc::codegen::find_nvcc();
    return {nvcc.version, nvcc.path, ""};
  } catch (const kvcc::Error& error) {
    return {"", "", error.found()};
  }
}

int print_version(bool json) {
  const std::string torch = torch_version();
  const NvccFound nvcc = find_nvcc();
  const std::string kernels = fmt::format("{}.{}", kvcc::kKernelsSchema, kvcc::kKernelsSchemaMinor);
  if (json) {
    nlohmann::ordered_json document;
    document["version"] = KVCC_VERSION;
    document["formats"] = {{"codebook", kvcc::kCodebookVersion},
                           {"activations", kvcc::kActivationsVersion},
                           {"kernels", kernels},
                           {"weights", kvcc::kWeightsVersion},
                           {"json", 1}};
    document["libtorch"] = torch;
    document["nvcc"] = nvcc.version;
    document["nvcc_path"] = nvcc.path;
    kvcc::cli::print_json(document);
    return 0;
  }
  fmt::print(
      "kvcc {}\nformats: codebook {} (reads 1.x), activations {}, weights {}, kernels {}\nlibtorch: {}\nnvcc: {}\n",
      KVCC_VERSION, kvcc::kCodebookVersion, kvcc::kActivationsVersion, kvcc::kWeightsVersion, kernels,
      torch.empty() ? "not found" : torch,
      nvcc.path.empty() ? nvcc.problem : fmt::format("{} ({})", nvcc.version, nvcc.path));
  return 0;
}

bool finds_libtorch() {
  std::vector<std::string> folders = {(prefix() / "lib" / "kvcc").string(), environment("KVCC_TORCH_LIB")};
  std::error_code error;
  for (const std::string& folder : folders) {
    if (!folder.empty() && fs::exists(fs::path(folder) / "libtorch_cpu.so", error)) return true;
  }
  // Elsewhere on the loader's path: asking it is slow, and only done when the places above have nothing.
  void* library = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) ::dlclose(library);
  return library != nullptr;
}

int exec_verb(const Verb& verb, const std::vector<std::string>& arguments) {
  const fs::path program = prefix() / "libexec" / "kvcc" / (std::string("kvcc-") + verb.name);
  std::error_code error;
  if (!fs::exists(program, error)) {
    throw kvcc::Error(kvcc::ErrorKind::failed, fmt::format("kvcc {}", verb.name),
                      fmt::format("{} is not installed", program.string()), "",
                      verb.torch ? "this kvcc was built without libtorch; build it with -DKVCC_TORCH=ON" : "");
  }
  if (const std::string torch = environment("KVCC_TORCH_LIB"); !torch.empty()) {
    const std::string old = environment("LD_LIBRARY_PATH");
    ::setenv("LD_LIBRARY_PATH", (torch + (old.empty() ? "" : ":" + old)).c_str(), 1);
  }
  if (verb.torch && !finds_libtorch()) {
    throw kvcc::Error(kvcc::ErrorKind::failed, fmt::format("kvcc {}", verb.name),
                      fmt::format("libtorch is not in {}", (prefix() / "lib" / "kvcc").string()), "",
                      "set KVCC_TORCH_LIB to the folder of libtorch_cpu.so");
  }
  // Read by libgomp as it is loaded. Threads that spin while they wait double or treble the time on a machine that has
  // other work; sleeping ones cost nothing measurable at the size of these operations. The user's own setting stays.
  ::setenv("OMP_WAIT_POLICY", "passive", 0);
  const std::string path = program.string();
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  throw kvcc::Error(kvcc::ErrorKind::failed, path, std::strerror(errno));
}

const Verb& find_verb(const std::string& name) {
  const auto all = kvcc::cli::verbs();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Verb& verb) { return name == verb.name; });
  if (found != all.end()) return *found;
  std::vector<std::string> names = kvcc::cli::verb_names();
  names.insert(names.end(), {"help", "completion"});
  const std::string near = kvcc::nearest(name, names);
  throw kvcc::Error(kvcc::ErrorKind::usage, "kvcc", fmt::format("unknown verb '{}'", name), "",
                    near.empty() ? "'kvcc help' lists the verbs" : fmt::format("did you mean '{}'?", near));
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    fmt::print(stderr, "{}", usage());
    return static_cast<int>(kvcc::ErrorKind::usage);
  }
  const std::string& first = words[0];
  if (first == "--version" || first == "version") {
    return print_version(std::find(words.begin(), words.end(), "--json") != words.end());
  }
  if (first == "help" || first == "--help" || first == "-h") {
    if (words.size() > 1 && first == "help" && words[1] == "completion") {
      fmt::print("{}", kCompletionHelp);
      return 0;
    }
    if (words.size() > 1 && first == "help" && words[1] != "help") return exec_verb(find_verb(words[1]), {"--help"});
    fmt::print("{}", usage());
    return 0;
  }
  if (first == "completion") {
    if (words.size() > 1 && (words[1] == "--help" || words[1] == "-h")) {
      fmt::print("{}", kCompletionHelp);
      return 0;
    }
    fmt::print("{}", kvcc::cli::completion_script(words.size() > 1 ? words[1] : ""));
    return 0;
  }
  return exec_verb(find_verb(first), {words.begin() + 1, words.end()});
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  try {
    const int code = dispatch(words);
    return std::fflush(stdout) == 0 ? code : 1;
  } catch (const kvcc::Error& error) {
    fmt::print(stderr, "kvcc: error: {}\n", error.what());
    if (std::find(words.begin(), words.end(), "--json") != words.end()) {
      nlohmann::ordered_json document;
      const std::string message = error.place() + (error.found().empty() ? "" : ": " + error.found());
      document["error"] = {{"code", error.exit_code()}, {"message", message}, {"hint", error.hint()}};
      kvcc::cli::print_json(document);
    }
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "kvcc: error: {}\n", error.what());
    return 1;
  }
}
