// What the checks of both layouts share: one refusal a wrong argument.
#pragma once

#include <cstdint>
#include <string>

#include "formats/core/error.h"

namespace kvcc::host {

class Checker {
 public:
  explicit Checker(const std::string& kernel) : kernel_(kernel) {}

  void want(bool good, const std::string& argument, std::string found, std::string wanted) const {
    if (!good) throw Error(ErrorKind::failed, kernel_ + ", " + argument, std::move(found), std::move(wanted));
  }
  void present(const void* pointer, const std::string& argument, uintptr_t alignment = 1) const {
    want(pointer != nullptr, argument, "null", "a device address");
    want(reinterpret_cast<uintptr_t>(pointer) % alignment == 0, argument, "not aligned",
         std::to_string(alignment) + "-byte alignment");
  }
  void absent(const void* pointer, const std::string& argument, const char* why) const {
    want(pointer == nullptr, argument, "an address", std::string("null: ") + why);
  }
  void at_least(int64_t value, int64_t least, const std::string& argument) const {
    want(value >= least, argument, std::to_string(value), "at least " + std::to_string(least));
  }
  void at_most(int64_t value, int64_t most, const std::string& argument) const {
    want(value <= most, argument, std::to_string(value), "at most " + std::to_string(most));
  }
  void equal(int64_t value, int64_t wanted, const std::string& argument) const {
    want(value == wanted, argument, std::to_string(value), std::to_string(wanted));
  }
  void multiple(int64_t value, int64_t of, const std::string& argument) const {
    want(value % of == 0, argument, std::to_string(value), "a multiple of " + std::to_string(of));
  }

 private:
  const std::string& kernel_;
};

}  // namespace kvcc::host
