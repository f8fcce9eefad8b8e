// Which of a kernel's compiled forms a device runs.
#include <algorithm>
#include <charconv>
#include <set>

#include "formats/core/error.h"
#include "kernels/host/launcher.h"

namespace kvcc::host {
namespace {

/// "sm_90a": a cubin of 9.0, exactly.
struct Arch {
  bool ptx = false;
  int major = 0, minor = 0;
  char suffix = 0;  ///< 'a', 'f' or none
};

Arch parse(const std::string& kernel, const std::string& text) {
  Arch arch;
  std::string_view rest = text;
  arch.ptx = rest.starts_with("compute_");
  if (arch.ptx || rest.starts_with("sm_")) rest.remove_prefix(arch.ptx ? 8 : 3);
  int number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  const std::string_view suffix(end, static_cast<size_t>(rest.data() + rest.size() - end));
  if (rest.size() == text.size() || error != std::errc() || number < 10 || number > 9999 ||
      !(suffix.empty() || suffix == "a" || suffix == "f")) {
    throw Error(ErrorKind::usage, kernel + ", architecture", "\"" + text + "\"", "sm_90, compute_90 or the like");
  }
  arch.major = number / 10;
  arch.minor = number % 10;
  arch.suffix = suffix.empty() ? char{0} : suffix[0];
  return arch;
}

/// Preference among images that the device runs, greater is better; -1: it does not run this one.
int fit(const Arch& arch, const DeviceFacts& device) {
  const int have = device.major * 10 + device.minor, of = arch.major * 10 + arch.minor;
  if (arch.suffix == 'a' && of != have) return -1;
  if ((arch.suffix == 'f' || !arch.ptx) && arch.major != device.major) return -1;
  if (of > have) return -1;
  // Cubins of desktop parts do not run on Jetson's and the other way round: only their own number fits them.
  const auto jetson = [](int number) { return number == 72 || number == 87; };
  if (!arch.ptx && of != have && (jetson(have) || jetson(of))) return -1;
  return (arch.ptx ? 0 : 20000) + of * 2 + (arch.suffix != 0);
}

}  // namespace

const KernelImage& pick_image(const std::string& kernel, std::span<const KernelImage> images,
                              const DeviceFacts& device) {
  const KernelImage* best = nullptr;
  int best_fit = -1;
  std::set<std::string> archs;
  for (const KernelImage& image : images) {
    const int f = fit(parse(kernel, image.arch), device);
    if (f > best_fit) {
      best = &image;
      best_fit = f;
    }
    archs.insert(image.arch);
  }
  if (best != nullptr) return *best;
  std::string there;
  for (const std::string& arch : archs) there += (there.empty() ? "" : ", ") + arch;
  const std::string number = std::to_string(device.major) + std::to_string(device.minor);
  throw Error(ErrorKind::failed, kernel, there.empty() ? "no compiled image" : "compiled for " + there,
              "an image for " + device.name + " (compute capability " + std::to_string(device.major) + "." +
                  std::to_string(device.minor) + ")",
              "kvcc compile with --arch sm_" + number);
}

}  // namespace kvcc::host
