#include "calib/cli/eval_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"

namespace kvcc::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kKind = "kvcc eval journal";
constexpr int kVersion = 1;

/// f32 as eight hexadecimal digits each: exact, and a third of what decimals take.
std::string to_hex(const std::vector<float>& x) {
  std::string text;
  text.reserve(8 * x.size());
  for (const float v : x) {
    const auto bits = std::bit_cast<uint32_t>(v);
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[bits >> shift & 15];
  }
  return text;
}

std::vector<float> from_hex(const std::string& text) {
  std::vector<float> x;
  for (size_t i = 0; i + 8 <= text.size(); i += 8) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(text.substr(i, 8), nullptr, 16))));
  }
  return x;
}

Json to_json(const WindowRecord& r) {
  std::string agreed;
  for (const uint8_t a : r.predictions.agreed) agreed += a != 0 ? '1' : '0';
  Json json{{"nll", to_hex(r.predictions.nll)},
            {"kl", to_hex(r.predictions.kl)},
            {"agreed", agreed},
            {"magnitude", r.key_errors.magnitude},
            {"total", r.key_errors.total},
            {"outliers", r.key_outliers},
            {"elements", r.key_elements},
            {"kept", r.kept},
            {"seconds", r.seconds}};
  for (const RepairedKl& repair : r.repairs) {
    json["repairs"].push_back({repair.percent, repair.worst_exact, repair.rest_exact});
  }
  const AttentionErrors& a = r.attention;
  if (a.windows > 0) {
    json["attention"] = {a.still_kl,    a.still_error,    a.grown_error,   a.output_power,
                         a.still_power, a.still_by_query, a.grown_by_query};
  }
  return json;
}

WindowRecord from_json(const Json& json) {
  WindowRecord r;
  r.predictions.nll = from_hex(json.at("nll"));
  r.predictions.kl = from_hex(json.at("kl"));
  for (const char a : json.at("agreed").get<std::string>()) r.predictions.agreed.push_back(a == '1');
  r.key_errors.magnitude = json.at("magnitude").get<std::vector<double>>();
  r.key_errors.total = json.at("total").get<std::vector<double>>();
  r.key_outliers = json.at("outliers");
  r.key_elements = json.at("elements");
  r.kept = json.at("kept");
  r.seconds = json.at("seconds");
  if (json.contains("repairs")) {
    for (const Json& repair : json["repairs"]) r.repairs.push_back({repair.at(0), repair.at(1), repair.at(2)});
  }
  if (json.contains("attention")) {
    AttentionErrors& a = r.attention;
    a.windows = 1;
    size_t i = 0;
    for (std::vector<double>* part : {&a.still_kl, &a.still_error, &a.grown_error, &a.output_power, &a.still_power,
                                      &a.still_by_query, &a.grown_by_query}) {
      *part = json["attention"].at(i++).get<std::vector<double>>();
    }
  }
  return r;
}

}  // namespace

JournalFile::JournalFile(std::string path, const std::string& identity,
                         const std::vector<std::vector<int32_t>>& windows, bool resume)
    : path_(std::move(path)) {
  for (const auto& ids : windows) {
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    window_keys_.push_back(sha256_hex(bytes));
  }
  const Json header{{"kind", kKind}, {"version", kVersion}, {"identity", identity}};
  take();
  uintmax_t whole = 0;  // bytes of whole lines
  if (resume) {
    const std::string text = read_text_file(path_);
    size_t number = 0;
    for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string line = text.substr(begin, end - begin);
      whole = end + 1;
      const std::string place = path_ + " line " + std::to_string(++number);
      const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object()) throw bad_input(place, "not a JSON object", "a journal of kvcc eval");
      if (number == 1) {
        if (json.value("kind", "") != kKind) throw bad_input(path_, "no journal of kvcc eval");
        if (json != header) {
          throw bad_input(path_, "made for another model or by another kvcc", "one of this model",
                          "another --journal, or no --resume to start it anew");
        }
        continue;
      }
      if (!json.contains("run") || !json.contains("window") || !json.contains("record")) {
        throw bad_input(place, "no record", "a run, a window and a record");
      }
      lines_[{json["run"], json["window"]}] = line;
    }
    fs::resize_file(path_, whole);
  }
  errno = 0;
  if (whole == 0) std::ofstream(path_, std::ios::trunc);
  out_.open(path_, std::ios::app);
  if (whole == 0) out_ << header.dump() << '\n' << std::flush;
  if (!out_) throw write_error(path_, errno);
}

JournalFile::~JournalFile() {
  if (lock_ >= 0) ::close(lock_);
}

/// Opens the file, which is made when it isn't there, and locks it.
void JournalFile::take() {
  const fs::path folder = fs::path(path_).parent_path();
  for (int attempt = 0;; ++attempt) {
    if (!folder.empty()) make_folder(folder);
    if (fs::is_directory(path_)) throw bad_input(path_, "is a folder", "the name of a file to write");
    lock_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0 && errno == ENOENT && attempt < 10) continue;  // another evaluation removed the empty folder
    if (lock_ < 0) throw write_error(path_, errno);
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return;  // a file system without locks
      ::close(std::exchange(lock_, -1));
      throw bad_input(path_, "another evaluation is writing it", "one writer at a time",
                      "wait for it to end, or give another --journal");
    }
    struct stat locked = {}, there = {};
    if (::fstat(lock_, &locked) == 0 && ::stat(path_.c_str(), &there) == 0 && locked.st_ino == there.st_ino) return;
    ::close(std::exchange(lock_, -1));  // its last writer has removed it since it was opened
  }
}

std::optional<WindowRecord> JournalFile::find(const std::string& run, size_t window) {
  const auto line = lines_.find({run, window_keys_.at(window)});
  if (line == lines_.end()) return std::nullopt;
  try {
    return from_json(Json::parse(line->second).at("record"));
  } catch (const std::exception& error) {  // nlohmann's, or stoul's
    throw bad_input(path_, "a damaged record of " + run + ": " + error.what(), "",
                    "without --resume it is started anew");
  }
}

void JournalFile::add(const std::string& run, size_t window, const WindowRecord& record) {
  const Json json{{"run", run}, {"window", window_keys_.at(window)}, {"record", to_json(record)}};
  errno = 0;
  out_ << json.dump() << '\n' << std::flush;
  if (!out_) throw write_error(path_, errno);
}

}  // namespace kvcc::cli
