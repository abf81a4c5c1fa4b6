// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <sys/types.h>

namespace mica {

/// What /proc/PID/stat says of a process.
struct ProcessStat {
  std::string program;  ///< at most 15 characters: "mpirun"
  char state = 0;       ///< 'R', 'S', ...; 'Z' and 'X': it has ended
  pid_t parent = 0;
  unsigned long flags = 0;        ///< the kernel's PF_*
  unsigned long start_ticks = 0;  ///< since the machine booted; sysconf(_SC_CLK_TCK) of them are a second
};

/// Nothing: there is no such process, or /proc hides it.
[[nodiscard]] std::optional<ProcessStat> process_stat(pid_t pid);

}  // namespace mica
