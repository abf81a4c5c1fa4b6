// SPDX-License-Identifier: Apache-2.0
#include "mica/train/model_source.hpp"

#include "mica/checkpoint/init_from.hpp"
#include "mica/train/resume_rules.hpp"
#include "mica/train/run_folder.hpp"

#include "ini.hpp"

namespace mica::train {
namespace {

/// Without dropout, which belongs to training: the config's value stays.
std::string to_ini(const checkpoint::ModelDescription& model) {
  std::string text = "[model]\n";
  for (const auto& [key, value] : model.keys) {
    if (key != "dropout") text += fmt::format("{} = {}\n", key, quoted(value));
  }
  return text;
}

/// Rank 0 reads the keys and calls `check` with the config that results; then all ranks apply them.
template <class Read, class Check>
void apply_from_first_rank(const HostComm& comm, Config& config, const Read& read, const Check& check) {
  ConfigText text;
  text.text = comm.from_first_rank([&] {
    const checkpoint::ModelDescription model = read();
    text = {model.source, to_ini(model)};
    Config filled = config;
    apply_defaults(filled, text);
    check(model, filled);
    return text.text;
  });
  text.file_name = comm.broadcast_string(text.file_name, 0);
  apply_defaults(config, text);
}

}  // namespace

void read_model_keys(const HostComm& comm, const std::string& folder, Config& config) {
  apply_from_first_rank(
      comm, config, [&] { return checkpoint::read_model_description(folder); }, [](const auto&, const Config&) {});
}

void take_init_keys(const HostComm& comm, Config& config) {
  if (config.model.init_from.empty()) return;
  apply_from_first_rank(
      comm, config, [&] { return checkpoint::read_model_description(config.model.init_from); },
      [](const checkpoint::ModelDescription& model, const Config& filled) {
        checkpoint::check_model_keys(model, model_description(filled));
      });
}

void take_model_keys(const HostComm& comm, Config& config) {
  if (config.model.init_from.empty()) return;
  const StartPoint start = find_start(comm, config);
  if (!start.manifest) return take_init_keys(comm, config);
  // A checkpoint that the run resumes from has its own rules (resume_rules.hpp).
  apply_from_first_rank(
      comm, config,
      [&] {
        return checkpoint::ModelDescription{start.checkpoint, start.manifest->model};
      },
      [](const auto&, const Config&) {});
}

}  // namespace mica::train
