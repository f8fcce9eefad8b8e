#include "tests/fuzz/targets.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvcc::fuzz {
namespace {

namespace fs = std::filesystem;
}  // namespace

std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

std::string scratch_folder() {
  struct Folder {
    fs::path path;
    Folder() {
      const fs::path memory = "/dev/shm";
      path = (::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path()) /
             ("kvcc-fuzz-" + std::to_string(::getpid()));
      fs::create_directories(path);
    }
    ~Folder() {
      std::error_code error;
      fs::remove_all(path, error);
    }
  };
  static const Folder folder;
  return folder.path.string();
}

std::string put_file(const std::string& name, std::string_view bytes) {
  const fs::path path = fs::path(scratch_folder()) / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path.string();
}

}  // namespace kvcc::fuzz
