// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include <fmt/ranges.h>

#include "mica/checkpoint/folder.hpp"
#include "mica/checkpoint/inspect.hpp"
#include "mica/checkpoint/lineage.hpp"
#include "mica/checkpoint/retention.hpp"
#include "mica/io/atomic_file.hpp"

#include "figures.hpp"

namespace mica::checkpoint {
namespace {

std::string model_text(const Manifest& m) {
  std::string text;
  for (const auto& [name, value] : m.model) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "(not described)" : text;
}

std::string optimizer_text(const Manifest& m) {
  if (m.optimizer.empty()) return "none: parameters only";
  std::vector<std::string> kinds;
  for (const std::string& kind : m.state_kinds) {
    const DType dtype = m.state_dtype(kind);
    kinds.push_back(dtype == DType::f32 ? kind : fmt::format("{} ({})", kind, dtype_name(dtype)));
  }
  return fmt::format("{} after {}{}{}", m.optimizer, count_text(m.optimizer_steps, "step"), kinds.empty() ? "" : ": ",
                     fmt::join(kinds, ", "));
}

std::string parameters_text(const Manifest& m) {
  const auto count = [&](UnitRole role) { return std::ranges::count(m.units, role, &UnitEntry::role); };
  std::string text = fmt::format("{} in {}", grouped(m.num_parameters()), count_text(count(UnitRole::unit), "unit"));
  if (const auto n = count(UnitRole::ignored); n > 0) text += " and " + count_text(n, "ignored parameter");
  if (const auto n = count(UnitRole::buffer); n > 0) text += "; " + count_text(n, "buffer");
  return text;
}

std::string units_text(const Manifest& m) {
  std::size_t width = 9;
  for (const UnitEntry& unit : m.units) {
    for (const auto& p : unit.parameters) width = std::max(width, p.name.size());
  }
  std::string text = fmt::format("\n{:<{}}  {:>14}  {}\n", "unit", width + 2, "elements", "a rank holds, or shape");
  for (const UnitEntry& unit : m.units) {
    std::int64_t numel = 0;
    for (const auto& p : unit.parameters) numel += p.shape.numel();
    if (unit.is_whole()) {
      text += fmt::format("{:<{}}  {:>14}  {} {}, whole ({})\n", unit.name, width + 2, grouped(numel), dtype_name(unit.dtype),
                          unit.parameters[0].shape.to_string(), unit_role_name(unit.role));
      continue;
    }
    text += fmt::format("{:<{}}  {:>14}  {}\n", unit.name, width + 2, grouped(numel),
                        unit.shard_size == 1 ? "all (not sharded)" : grouped(unit.shard_numel));
    for (const auto& p : unit.parameters) {
      text += fmt::format("  {:<{}}  {:>14}  {}\n", p.name, width, grouped(p.shape.numel()), p.shape.to_string());
    }
  }
  return text;
}

std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += "  " + line + "\n";
  return result;
}

/// Row-major flat index -> "[3, 5]".
std::string place_text(std::int64_t flat, const Shape& shape) {
  std::vector<std::int64_t> place(shape.num_dims());
  for (std::size_t d = shape.num_dims(); d-- > 0; flat /= shape[d]) place[d] = flat % shape[d];
  return fmt::format("[{}]", fmt::join(place, ", "));
}

std::string entry_text(const DiffEntry& e) {
  switch (e.result) {
    case DiffEntry::Result::equal:
      return "equal";
    case DiffEntry::Result::only_in_a:
      return "only in A";
    case DiffEntry::Result::only_in_b:
      return "only in B";
    case DiffEntry::Result::other_shape:
      return fmt::format("shape {} in A, {} in B", e.shape_a.to_string(), e.shape_b.to_string());
    case DiffEntry::Result::different:
      break;
  }
  return fmt::format("{} of {} elements differ, max |A-B| = {:.3g} at {}", grouped(e.num_different), grouped(e.shape_a.numel()),
                     e.max_difference, place_text(e.max_at, e.shape_a));
}

/// "... > step 4 (run 1a2b, not here) > step 8 (run 1a2b) > step 12 (run 3c4d)"
std::string line_text(const std::string& folder, const Manifest& m) {
  const Line line = line_of(folder, m);
  std::string text = line.goes_on ? "..." : "";
  for (const LineEntry& entry : line.entries) {
    text +=
        fmt::format("{}step {} (run {}{})", text.empty() ? "" : " > ", entry.id.step, entry.id.run_id, entry.is_there ? "" : ", not here");
  }
  return text;
}

std::string set_aside_text(const std::string& folder) {
  std::string text;
  for (const std::string& aside : list_set_aside(io::parent_directory(folder))) {
    std::vector<std::int64_t> steps;
    for (const CheckpointPath& found : list_checkpoints(aside)) steps.push_back(found.step);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", aside.substr(aside.rfind('/') + 1),
                        steps.empty() ? "metrics only" : fmt::format("step {}", fmt::join(steps, ", ")));
  }
  return text;
}

std::string why_kept_text(const Kept& kept) {
  return fmt::format("step {}: {}", kept.step,
                     kept.reasons.empty() ? "no rule; the next save deletes it" : fmt::format("{}", fmt::join(kept.reasons, "; ")));
}

}  // namespace

std::string summary_text(const std::string& folder, const Manifest& m) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) { text += fmt::format("{:<12}{}\n", name, value); };
  line("checkpoint", folder);
  line("step", fmt::format("{} ({} seen, seed {})", m.step, count_text(m.tokens, "token"), m.seed));
  if (m.val_loss) {
    line("evaluated", fmt::format("validation loss {:.4f}{}{}", *m.val_loss, m.val_data.empty() ? "" : " of ", m.val_data));
  }
  if (m.diverged) line("diverged", "a parameter, or the loss or gradient norm of this step or the next one, was NaN or infinite");
  if (m.global_batch > 0) {
    line("data", fmt::format("{} a step, {} seen; {}", count_text(m.global_batch, "sequence"), grouped(m.sequences),
                             m.data.empty() ? "not identified" : m.data));
  }
  line("line", line_text(folder, m));
  std::string_view name = "kept";
  for (const Kept& kept : kept_checkpoints(io::parent_directory(folder))) line(std::exchange(name, ""), why_kept_text(kept));
  if (const std::string aside = set_aside_text(folder); !aside.empty()) line("set aside", aside);
  line("model", model_text(m));
  line("parameters", parameters_text(m));
  if (!m.tokenizer.source.empty()) {
    line("tokenizer", fmt::format("{} of {}", count_text(std::ssize(m.tokenizer.files), "file"), m.tokenizer.source));
  }
  line("optimizer", optimizer_text(m));
  line("mesh", fmt::format("{}, {}: shard_size {} x {}", count_text(m.world_size, "rank"), m.strategy, m.shard_size,
                           count_text(m.replicas, "replica")));
  line("written by",
       fmt::format("mica {}, run {}, on {} with {}", m.mica_version, m.run_id, m.kernels, count_text(m.omp_threads, "OpenMP thread")));
  line("bytes", fmt::format("{} ({} bytes) in {}", bytes_text(m.total_bytes()), grouped(m.total_bytes()),
                            count_text(std::ssize(m.all_files()), "file")));
  for (const FileEntry* file : m.all_files()) line("", fmt::format("{}  {}", file->name, bytes_text(file->bytes)));
  return text + units_text(m) + "\nconfig\n" + indented(m.config);
}

std::string diff_text(const DiffReport& report) {
  std::size_t name_width = 0;
  std::size_t kind_width = 0;
  for (const DiffEntry& e : report.entries) {
    name_width = std::max(name_width, e.parameter.size());
    kind_width = std::max(kind_width, e.kind.size());
  }
  std::string text;
  for (const DiffEntry& e : report.entries) {
    if (e.result == DiffEntry::Result::equal) continue;
    text += fmt::format("{:<{}}  {:<{}}  {}\n", e.parameter, name_width, e.kind, kind_width, entry_text(e));
  }
  if (!report.optimizer_difference.empty()) text += fmt::format("optimizer: {}\n", report.optimizer_difference);
  for (const std::string& each : report.scalar_differences) text += each + "\n";
  const auto num_entries = static_cast<std::int64_t>(report.entries.size());
  return text + fmt::format("{} of {} arrays (parameters and optimizer state) are equal in every bit{}\n", grouped(report.num_equal()),
                            grouped(num_entries), report.is_equal() ? "" : ": DIFFERENT");
}

std::string verify_text(const std::string& folder, const VerifyReport& report) {
  std::string text;
  for (const std::string& each : report.damage) text += each + "\n";
  const double seconds = report.ms / 1000;
  return text + fmt::format("{}: {}; {} checked in {:.2f} s ({:.2f} GB/s)\n", folder,
                            report.damage.empty() ? "every byte is as it was written"
                                                  : "DAMAGED in " + count_text(std::ssize(report.damage), "place"),
                            bytes_text(report.bytes), seconds, seconds > 0 ? static_cast<double>(report.bytes) / seconds / 1e9 : 0.0);
}

}  // namespace mica::checkpoint
