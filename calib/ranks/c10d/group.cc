// The only file that knows c10d. A library of its own (libkvcc_ranks.so), loaded when there are several ranks.
#include "calib/ranks/c10d/group.h"

// The wheel has c10d's headers; the Gloo ones that this needs are Debian's, and only declare what c10d keeps behind
// pointers.
#define USE_C10D_GLOO 1
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "calib/ranks/c10d/address.h"

namespace kvcc {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;
using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{20}, kBeat{1000};
constexpr std::chrono::seconds kGrace{20};  ///< until a process that does not ask check() is ended
constexpr size_t kPiece = size_t{4} << 20;  ///< a TCPStore takes values of up to 8 MiB
constexpr int64_t kWaiting = 8;             ///< pieces of a rank that wait at most

Bytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
Bytes json_bytes(const Json& json) { return to_bytes(json.dump(-1, ' ', false, Json::error_handler_t::replace)); }
std::string to_text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

/// The first line of a libtorch error, without its back trace.
std::string reason(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "unknown host";
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class C10dRanks : public Ranks {
 public:
  C10dRanks(const Launch& launch, const RankSettings& settings)
      : launch_(launch), settings_(settings), silent_(static_cast<size_t>(launch.size)) {
    FLAGS_caffe2_log_level = 3;  // what it warns of is said here, once and in words
    meet();
    watch_ = std::thread([this] { watch(); });
    guard_ = std::thread([this] { guard(); });
    try {
      make_group();
    } catch (const std::exception& error) {
      stop_watching();
      throw Error(ErrorKind::failed, me(), "no connection to the other ranks: " + reason(error), "",
                  "GLOO_SOCKET_IFNAME names the network interface to use");
    }
  }

  ~C10dRanks() override {
    stop_watching();
    // With an operation under way its destructor waits for ranks that may be gone.
    if (!left_) (void)group_.release();
  }

  int rank() const override { return launch_.rank; }
  int size() const override { return launch_.size; }

  void check() override {
    if (settings_.check_interrupt) settings_.check_interrupt();
    const std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
  }

  std::vector<std::string> gather(const std::string& mine) override {
    std::vector<at::Tensor> in{at::empty({1}, at::kLong)};
    in[0].mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(mine.size());
    const std::vector<at::Tensor> sizes = all_gather(in);
    int64_t most = 0;
    for (const at::Tensor& n : sizes) most = std::max(most, *n.const_data_ptr<int64_t>());
    std::vector<std::string> out(sizes.size());
    if (most == 0) return out;
    in[0] = at::zeros({most}, at::kByte);
    if (!mine.empty()) std::memcpy(in[0].mutable_data_ptr<uint8_t>(), mine.data(), mine.size());
    const std::vector<at::Tensor> bytes = all_gather(in);
    for (size_t r = 0; r < out.size(); ++r) {
      out[r].assign(reinterpret_cast<const char*>(bytes[r].const_data_ptr<uint8_t>()),
                    static_cast<size_t>(*sizes[r].const_data_ptr<int64_t>()));
    }
    return out;
  }

  int64_t next(const std::string& counter) override {
    check();
    return guarded([&] { return store_->add("counter/" + counter, 1) - 1; });
  }

  void post(const std::string& message) override {
    const uint64_t size = message.size();
    std::string head(reinterpret_cast<const char*>(&size), sizeof size);
    const std::string inbox = "inbox/" + std::to_string(rank());
    for (size_t at = 0; at < message.size() || at == 0; at += kPiece) {
      while (guarded([&] { return store_->queueLen(inbox); }) >= kWaiting) pause();
      const std::string piece = std::exchange(head, "") + message.substr(at, kPiece);
      guarded([&] { store_->queuePush(inbox, to_bytes(piece)); });
    }
  }

  bool take(int from, std::string& message) override {
    const std::string inbox = "inbox/" + std::to_string(from);
    std::string& got = taken_[from];
    while (guarded([&] { return store_->queueLen(inbox); }) > 0) {
      got += to_text(guarded([&] { return store_->queuePop(inbox, false); }));
      uint64_t size = 0;
      std::memcpy(&size, got.data(), sizeof size);
      if (got.size() < sizeof size + size) continue;
      message = got.substr(sizeof size);
      got.clear();
      return true;
    }
    return false;
  }

  void fail(const std::string& why) noexcept override {
    try {
      announce(*store_, rank(), name(rank()) + ": " + why);
      stop_watching();
      // Who serves the store stays until the others know; one of them may be dead.
      const Clock::time_point start = Clock::now();
      const int64_t others = size() - 1;
      while (serves() && seconds_since(start) < 5) {
        const int64_t heard = store_->add("heard", 0);
        if (heard >= others || (heard >= others - 1 && seconds_since(start) > 2.5)) break;
        std::this_thread::sleep_for(kPoll);
      }
    } catch (const std::exception&) {  // the others hear nothing from us, and say so
    }
  }

  void leave() override {
    guarded([&] { store_->set("left/" + std::to_string(rank()), to_bytes("1")); });
    wait_for("left/");
    stop_watching();
    left_ = true;
    group_.reset();
    try {
      store_->set("gone/" + std::to_string(rank()), to_bytes("1"));
      const Clock::time_point start = Clock::now();
      while (serves() && seconds_since(start) < 10 && !store_->check(keys("gone/"))) std::this_thread::sleep_for(kPoll);
    } catch (const std::exception&) {  // rank 0 has ended: nothing is left to agree on
    }
  }

 private:
  bool serves() const { return first() && !launch_.served; }
  std::string me() const { return "rank " + std::to_string(rank()) + " of " + std::to_string(size()); }
  std::string place() const { return launch_.address + ":" + std::to_string(launch_.port); }

  std::string name(int r) const {
    const std::string number = "rank " + std::to_string(r);
    if (r >= static_cast<int>(hello_.size()) || hello_[r].is_null()) return number;
    return number + " (" + hello_[r].value("host", "") + ", process " + std::to_string(hello_[r].value("process", 0)) +
           ")";
  }

  std::vector<std::string> keys(const std::string& prefix) const {
    std::vector<std::string> all;
    for (int r = 0; r < size(); ++r) all.push_back(prefix + std::to_string(r));
    return all;
  }

  /// A thread of its own waits for the answer: what listens there without giving one is waited for without end, and
  /// without hearing an interrupt.
  c10::intrusive_ptr<c10d::Store> connect(bool serve, double seconds, Clock::time_point start) const {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(launch_.port);
    options.isServer = serve;
    options.waitWorkers = false;
    options.timeout = milliseconds(static_cast<int64_t>(seconds * 1000));
    std::promise<c10::intrusive_ptr<c10d::Store>> promise;
    std::future<c10::intrusive_ptr<c10d::Store>> store = promise.get_future();
    std::thread([promise = std::move(promise), address = launch_.address, options]() mutable {
      try {
        promise.set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
      } catch (const std::exception&) {
        promise.set_exception(std::current_exception());
      }
    }).detach();
    while (store.wait_for(kPoll) != std::future_status::ready) {
      if (settings_.check_interrupt) settings_.check_interrupt();
      if (seconds_since(start) > settings_.join_seconds + 2 * seconds) {
        throw Error(ErrorKind::failed, me(), "what listens at " + place() + " does not answer", "rank 0's store",
                    "do MASTER_ADDR and MASTER_PORT name rank 0's?");
      }
    }
    return store.get();
  }

  /// Until all ranks are at one store. What is there may be the one of a run that is about to end (kvcc calibrate runs
  /// one verb after another): then it goes away, and another comes. One at which rank 0 has said that it is of this run
  /// is waited for no longer.
  void meet() {
    const Clock::time_point start = Clock::now();
    std::string last;
    while (true) {
      if (settings_.check_interrupt) settings_.check_interrupt();
      try {
        if (meet_once(start)) return;
      } catch (const c10::Error& error) {
        last = reason(error);
        if (!hello_.empty() && !hello_[0].is_null()) {  // it was of this run: no other will come
          throw Error(
              ErrorKind::failed, me(),
              (launch_.served ? "the launcher's store" : name(0)) + " has ended while the ranks were meeting: " + last,
              "", "see what its process says");
        }
        if (serves()) {
          throw Error(ErrorKind::failed, me(),
                      "can't serve the ranks' meeting place at port " + std::to_string(launch_.port) + ": " + last, "",
                      "MASTER_PORT names another port");
        }
      }
      if (seconds_since(start) > settings_.join_seconds) {
        throw Error(ErrorKind::failed, me(), "rank 0 can't be reached at " + place() + ": " + last, "",
                    "is rank 0 running, and does MASTER_ADDR name its machine?");
      }
      std::this_thread::sleep_for(milliseconds(200));
    }
  }

  bool meet_once(Clock::time_point start) {
    const c10::intrusive_ptr<c10d::Store> raw = connect(serves(), 3, start);
    const std::string run = "kvcc/" + launch_.attempt + "/" + settings_.run + "/";
    // The launcher's store may outlive several runs of the same name: each rank's n-th belongs to the others' n-th.
    const int64_t count = raw->add(run + "arrived/" + std::to_string(rank()), 1);
    if (count > 1 && !launch_.served) {
      throw Error(ErrorKind::usage, me(), "another process has this rank already", "each rank once");
    }
    prefix_ = run + std::to_string(count) + "/";
    store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, raw);
    const std::string own = address_towards(launch_.address, launch_.port);
    store_->add("beat/" + std::to_string(rank()), 0);
    store_->set("here/" + std::to_string(rank()), json_bytes(Json{{"host", host_name()},
                                                                  {"process", ::getpid()},
                                                                  {"address", own},
                                                                  {"version", KVCC_VERSION},
                                                                  {"size", size()}}));
    hello_.assign(static_cast<size_t>(size()), Json());
    std::optional<Clock::time_point> looked;
    while (!store_->check(keys("here/"))) {
      if (settings_.check_interrupt) settings_.check_interrupt();
      // Those of a run of another size may never be all there; and whether rank 0 was tells what its end means.
      if (!looked || seconds_since(*looked) > 0.5) {
        looked = Clock::now();
        for (int r = 0; r < (first() ? size() : 1); ++r) greet(r);
        if (store_->check({"refused"})) refuse(Error(ErrorKind::failed, to_text(store_->get("refused")), ""));
      }
      if (seconds_since(start) > settings_.join_seconds) {
        std::string missing;
        for (int r = 0; r < size(); ++r) {
          if (!store_->check({"here/" + std::to_string(r)}))
            missing += (missing.empty() ? "" : ", ") + std::to_string(r);
        }
        throw Error(
            ErrorKind::failed, me(),
            "still not there after " + std::to_string(static_cast<int>(settings_.join_seconds)) + " s: rank " + missing,
            std::to_string(size()) + " ranks", "see what their processes say; KVCC_RANKS_JOIN gives them more seconds");
      }
      std::this_thread::sleep_for(kPoll);
    }
    for (int r = 0; r < size(); ++r) greet(r);
    watch_store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, connect(false, 3, start));
    return true;
  }

  /// Reads who a rank is, once it is there. Throws Error when it can't be of this run.
  void greet(int r) {
    const std::string key = "here/" + std::to_string(r);
    if (!hello_[r].is_null() || !store_->check({key})) return;
    hello_[r] = Json::parse(to_text(store_->get(key)));
    const std::string mine = " as rank " + std::to_string(rank()) + " has", version = hello_[r].value("version", "");
    if (version != KVCC_VERSION) {
      refuse(Error(ErrorKind::failed, name(r), "kvcc " + version, std::string("kvcc ") + KVCC_VERSION + mine));
    }
    const int all = hello_[r].value("size", 0);
    if (all == size()) return;
    refuse(Error(ErrorKind::usage, name(r), "a WORLD_SIZE of " + std::to_string(all), std::to_string(size()) + mine,
                 "the same on all ranks"));
  }

  /// Throws it. Who serves the store stays until the others know too: else they would wait for it to come back.
  [[noreturn]] void refuse(const Error& error) {
    try {
      store_->compareSet("refused", {}, to_bytes(error.what()));
      const Clock::time_point start = Clock::now();
      int64_t told = store_->add("told", 1);
      while (serves() && told < size() && seconds_since(start) < 5) {
        std::this_thread::sleep_for(kPoll);
        told = store_->add("told", 0);
      }
    } catch (const std::exception&) {  // it has ended
    }
    throw error;
  }

  void make_group() {
    std::vector<std::string> addresses;
    for (const Json& hello : hello_) addresses.push_back(hello.value("address", ""));
    const auto options = c10d::ProcessGroupGloo::Options::create();
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    options->devices.push_back(interface != nullptr && *interface != '\0'
                                   ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                   : c10d::ProcessGroupGloo::createDeviceForHostname(
                                         reachable_address(addresses, static_cast<size_t>(rank()), launch_.port)));
    options->timeout = milliseconds(static_cast<int64_t>(settings_.join_seconds * 1000));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store_), rank(),
                                                         size(), options);
    group_->setTimeout(
        std::chrono::hours(24 * 20));  // a rank may wait for the others' samples; the watch tells of dead ones
  }

  std::vector<at::Tensor> all_gather(std::vector<at::Tensor>& in) {
    check();
    std::vector<std::vector<at::Tensor>> out(1);
    for (int r = 0; r < size(); ++r) out[0].push_back(at::empty_like(in[0]));
    guarded([&] {
      const auto work = group_->allgather(out, in);
      while (!work->isCompleted()) pause();
      work->wait();
    });
    return std::move(out[0]);
  }

  void pause() {
    check();
    std::this_thread::sleep_for(kPoll);
  }

  void wait_for(const std::string& prefix) {
    while (!guarded([&] { return store_->check(keys(prefix)); })) pause();
  }

  /// A connection that broke tells less than the watch, which soon names the rank.
  template <typename F>
  auto guarded(const F& f) -> decltype(f()) {
    try {
      return f();
    } catch (const Error&) {
      throw;
    } catch (const Interrupted&) {
      throw;
    } catch (const std::exception& error) {
      const Clock::time_point start = Clock::now();
      while (seconds_since(start) < settings_.silence_seconds + 5) pause();
      throw Error(ErrorKind::failed, me(), "lost the other ranks: " + reason(error), "", kHint);
    }
  }

  static constexpr const char* kHint = "started again with --resume, the ranks go on with what is done";

  /// The first failure stands.
  static void announce(c10d::Store& store, int rank, const std::string& text) {
    store.compareSet("failed", {}, json_bytes(Json{{"rank", rank}, {"text", text}}));
  }

  void set_failure(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_.emplace(ErrorKind::failed, text, "", "", kHint);
  }

  bool has_failure() {
    const std::lock_guard lock(mutex_);
    return failure_.has_value();
  }

  int most_silent_rounds() const {
    return static_cast<int>(settings_.silence_seconds * 1000 / static_cast<double>(kBeat.count())) + 1;
  }

  /// The watch's thread: beats, and listens to the others' beats. It counts its own rounds, not seconds, so that a
  /// process that was stopped for a while does not take the others for dead.
  void watch() {
    std::vector<std::string> last(static_cast<size_t>(size()));
    while (!has_failure() && !wait_to_stop(kBeat)) {
      try {
        watch_round(last);
      } catch (const std::exception& error) {
        set_failure(keeper() + ": the connection is lost (" + reason(error) +
                    "): it has ended, or the network is gone");
      }
      ++rounds_;
    }
  }

  /// A thread that touches no network, as a lost machine leaves those that do without an answer: then there is nothing
  /// to throw from, and the process is ended; so is one that has not ended by itself after a failure.
  void guard() {
    uint64_t last = 0;
    int silent = 0;
    while (!has_failure()) {
      if (wait_to_stop(kBeat)) return;
      const uint64_t rounds = rounds_;
      silent = rounds == last ? silent + 1 : 0;
      last = rounds;
      if (silent < most_silent_rounds() || !settings_.give_up) continue;
      settings_.give_up(
          Error(ErrorKind::failed,
                keeper() + ": no answer for " + seconds_text() + ": it has ended, or its machine or network is gone",
                "", "", kHint));
    }
    if (wait_to_stop(kGrace) || !settings_.give_up) return;
    std::unique_lock lock(mutex_);
    const Error failure = *failure_;
    lock.unlock();
    settings_.give_up(failure);
  }

  std::string seconds_text() const { return std::to_string(static_cast<int>(settings_.silence_seconds)) + " s"; }
  /// Of the store.
  std::string keeper() const { return (launch_.served ? "the launcher" : name(0)) + " at " + place(); }

  void watch_round(std::vector<std::string>& last) {
    watch_store_->add("beat/" + std::to_string(rank()), 1);
    if (watch_store_->check({"failed"})) {
      const Json failed = Json::parse(to_text(watch_store_->get("failed")));
      if (failed.value("rank", -1) != rank()) {
        set_failure(failed.value("text", "a rank has failed"));
        watch_store_->add("heard", 1);
      }
      return;
    }
    const std::vector<Bytes> beats = watch_store_->multiGet(keys("beat/"));
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const std::string beat = to_text(beats[r]);
      silent_[r] = beat == last[r] ? silent_[r] + 1 : 0;
      last[r] = beat;
      if (silent_[r] < most_silent_rounds() || watch_store_->check({"gone/" + std::to_string(r)})) continue;
      const std::string text =
          name(r) + ": no sign of life for " + seconds_text() + ": it was killed, or its machine or network is gone";
      set_failure(text);
      announce(*watch_store_, r, text);
      watch_store_->add("heard", 1);
      return;
    }
  }

  /// Whether it was asked to stop meanwhile.
  bool wait_to_stop(milliseconds most) {
    std::unique_lock lock(mutex_);
    return stop_changed_.wait_for(lock, most, [this] { return stopping_; });
  }

  void stop_watching() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_changed_.notify_all();
    if (watch_.joinable()) watch_.join();
    if (guard_.joinable()) guard_.join();
  }

  Launch launch_;
  RankSettings settings_;
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_, watch_store_;  ///< the second is the watch's own connection
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<Json> hello_;  ///< [size] host, process, address, version
  std::map<int, std::string> taken_;
  bool left_ = false;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable stop_changed_;
  std::optional<Error> failure_;
  bool stopping_ = false;
  std::vector<int> silent_;          ///< [size] rounds without a beat; the watch's thread alone
  std::atomic<uint64_t> rounds_{0};  ///< of the watch
  std::thread watch_, guard_;
};

}  // namespace
}  // namespace kvcc

extern "C" kvcc::Ranks* kvcc_join_c10d_1(const kvcc::Launch& launch, const kvcc::RankSettings& settings) {
  return new kvcc::C10dRanks(launch, settings);
}
