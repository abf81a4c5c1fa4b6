// SPDX-License-Identifier: Apache-2.0
// A user's main that fails in the way that its argument names.
#include "mica/comm/run_app.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>

namespace {

/// A user's own kind of error, with an exit status of its own.
class OutOfDigits final : public mica::ConfigError {
 public:
  using ConfigError::ConfigError;
  [[nodiscard]] mica::ExitCode exit_code() const noexcept override { return static_cast<mica::ExitCode>(42); }
};

mica::ExitCode fail(mica::App& app) {
  const std::string& way = app.arguments.at(0);
  const int rank = app.world.rank();
  std::this_thread::sleep_for(std::chrono::milliseconds(rank * 50));
  if (way == "alike") throw mica::ConfigError("digits.txt: cannot be read");
  if (way == "each") throw mica::ConfigError("a mistake of rank " + std::to_string(rank));
  if (way == "own") throw OutOfDigits("no digits are left");
  if (way == "foreign") throw std::runtime_error("two\nlines");
  if (way == "one") {
    if (rank == 1) throw mica::IoError("disk full");
    app.world.barrier();
  }
  if (way == "agreed") {
    app.comm.agree([&] {
      if (rank == 2) throw mica::ConfigError("a file of rank 2 alone");
    });
  }
  return way == "requeue" ? mica::ExitCode::requeue : mica::ExitCode::done;
}

}  // namespace

int main(int argc, char** argv) { return mica::run_app(argc, argv, fail); }
