#include "calib/cli/eval_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "formats/core/error.h"
#include "formats/core/file.h"
#include "formats/core/hash.h"
#include "formats/core/json.h"

namespace kvcc::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kKind = "kvcc eval journal";
constexpr const char* kStart = R"({"kind":"kvcc eval journal",)";
constexpr int kVersion = 2;  ///< 1 had no checksums

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

std::vector<float> from_hex(const std::string& text, const std::string& place) {
  std::vector<float> x;
  x.reserve(text.size() / 8);
  for (size_t i = 0; i < text.size(); i += 8) {
    uint32_t bits = 0;
    const char* const end = text.data() + std::min(i + 8, text.size());
    const auto [stop, error] = std::from_chars(text.data() + i, end, bits, 16);
    if (error != std::errc() || stop != text.data() + i + 8) {
      throw bad_input(place, "'" + text.substr(i, 8) + "'", "eight hexadecimal digits a number");
    }
    x.push_back(std::bit_cast<float>(bits));
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

/// Numbers of the right types; whether they fit the evaluation is asked where they are used.
WindowRecord from_json(const Json& json, const std::string& place) {
  using Numbers = std::vector<double>;
  WindowRecord r;
  r.predictions.nll = from_hex(json_member<std::string>(json, "nll", place), place);
  r.predictions.kl = from_hex(json_member<std::string>(json, "kl", place), place);
  for (const char a : json_member<std::string>(json, "agreed", place)) r.predictions.agreed.push_back(a == '1');
  r.key_errors.magnitude = json_member<Numbers>(json, "magnitude", place);
  r.key_errors.total = json_member<Numbers>(json, "total", place);
  r.key_outliers = json_member<int64_t>(json, "outliers", place);
  r.key_elements = json_member<int64_t>(json, "elements", place);
  r.kept = json_member<double>(json, "kept", place);
  r.seconds = json_member<double>(json, "seconds", place);
  if (json.contains("repairs")) {
    for (const auto& [percent, worst, rest] : json_member<std::vector<std::array<double, 3>>>(json, "repairs", place)) {
      r.repairs.push_back({percent, worst, rest});
    }
  }
  if (json.contains("attention")) {
    AttentionErrors& a = r.attention;
    a.windows = 1;
    auto parts = json_member<std::array<Numbers, 7>>(json, "attention", place);
    size_t i = 0;
    for (std::vector<double>* part : {&a.still_kl, &a.still_error, &a.grown_error, &a.output_power, &a.still_power,
                                      &a.still_by_query, &a.grown_by_query}) {
      *part = std::move(parts[i++]);
    }
  }
  return r;
}

std::string checksum(const std::string& run, const std::string& window, const Json& record) {
  return sha256_hex(run + "\n" + window + "\n" + record.dump());
}

}  // namespace

JournalFile::JournalFile(std::string path, const std::string& identity,
                         const std::vector<std::vector<int32_t>>& windows, bool resume)
    : path_(std::move(path)) {
  for (const auto& ids : windows) {
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    window_keys_.push_back(sha256_hex(bytes));
  }
  const std::string header = Json{{"kind", kKind}, {"version", kVersion}, {"identity", identity}}.dump() + "\n";
  if (const fs::path folder = fs::path(path_).parent_path(); !folder.empty()) make_folder(folder);
  open();
  const std::string text = read_text_file(path_);
  const bool begun = text.size() < header.size() && header.starts_with(text);  // killed in its first line, or empty
  if (!begun && !text.starts_with(kStart)) {
    throw bad_input(path_, "is there and no journal of kvcc eval", "a journal, or a name that is free",
                    "another --journal");
  }
  const size_t whole = resume && !begun ? read(text, header) : 0;
  if (::ftruncate(file_, static_cast<off_t>(whole)) != 0) throw write_error(path_, errno);
  if (whole == 0) append(header);
}

JournalFile::~JournalFile() {
  if (file_ >= 0) ::close(file_);
}

void JournalFile::open() {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
  struct stat info = {};
  if (file_ < 0 || ::fstat(file_, &info) != 0) throw write_error(path_, errno);
  if (!S_ISREG(info.st_mode)) throw bad_input(path_, "is not a regular file", "a journal, or a name that is free");
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw bad_input(path_, "another process is writing it", "one writer at a time",
                    "wait for it to end, or give another --journal");
  }
}

/// Takes the lines of an earlier run; returns how many bytes the whole ones have.
size_t JournalFile::read(const std::string& text, const std::string& header) {
  size_t number = 0, begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin), place = path_ + " line " + std::to_string(++number);
    if (number > 1) {
      const auto json = parse_json<Json>(line, place);
      lines_[{json_member<std::string>(json, "run", place), json_member<std::string>(json, "window", place)}] = {line,
                                                                                                                 place};
    } else if (line + "\n" != header) {
      throw bad_input(path_, "made for another model or by another kvcc", "one of this model",
                      "another --journal, or no --resume to start it anew");
    }
  }
  return begin;
}

std::optional<WindowRecord> JournalFile::find(const std::string& run, size_t window) {
  const std::string& key = window_keys_.at(window);
  const auto found = lines_.find({run, key});
  if (found == lines_.end()) return std::nullopt;
  const auto& [line, place] = found->second;
  const auto json = parse_json<Json>(line, place);
  const auto record = json_member<Json>(json, "record", place);
  if (json_member<std::string>(json, "sha256", place) != checksum(run, key, record)) {
    throw bad_input(place, "the record is damaged: its checksum is another", "",
                    "without --resume the journal is started anew");
  }
  return from_json(record, place);
}

void JournalFile::add(const std::string& run, size_t window, const WindowRecord& record) {
  const std::string& key = window_keys_.at(window);
  const Json json = to_json(record);
  append(Json{{"run", run}, {"window", key}, {"record", json}, {"sha256", checksum(run, key, json)}}.dump() + "\n");
}

void JournalFile::append(std::string_view line) {
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = ::write(file_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw write_error(path_, errno, line.size() - done);
    done += static_cast<size_t>(n);
  }
}

}  // namespace kvcc::cli
