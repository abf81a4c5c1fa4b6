// SPDX-License-Identifier: Apache-2.0
#include "mica/core/process_stat.hpp"

#include <fstream>
#include <sstream>

namespace mica {

std::optional<ProcessStat> process_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_begin = line.find('(');
  const std::size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_begin == std::string::npos || name_end == std::string::npos) return std::nullopt;
  ProcessStat stat{.program = line.substr(name_begin + 1, name_end - name_begin - 1)};
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  fields >> stat.state >> stat.parent;  // fields 3 and 4 of proc(5)
  for (int field = 5; field < 9; ++field) fields >> skipped;
  fields >> stat.flags;  // 9
  for (int field = 10; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;  // 22
  return fields ? std::optional(stat) : std::nullopt;
}

}  // namespace mica
