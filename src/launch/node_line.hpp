// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>

#include "mica/core/unique_fd.hpp"

namespace mica::launch {

/// How the first rank of a node tells the others that it ends, before MPI is there: a Unix socket that is in no file system.
/// Ranks with networks of their own (some containers) do not hear it.
class NodeLine {
 public:
  /// Of this Slurm step. Reads the environment.
  NodeLine();

  /// On the node's first rank. Nothing where that is not possible: then nobody hears it.
  void open();
  /// Tells those that listen, or begin to within a second. After open().
  void tell_end() const;

  enum class Heard : std::uint8_t { end, closed, nobody };
  /// On the other ranks: returns when the first rank tells its end, or closes the line (or ends without a word); or when none has opened it
  /// within `patience`, or `stop` is requested: nobody.
  [[nodiscard]] Heard listen(const std::stop_token& stop, std::chrono::milliseconds patience) const;

 private:
  std::string name_;
  UniqueFd socket_;
};

}  // namespace mica::launch
