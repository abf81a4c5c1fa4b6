// SPDX-License-Identifier: Apache-2.0
#include "cluster/support/slurm_training.hpp"

#include <regex>

#include "cluster/support/nodes.hpp"
#include "fault/support/training.hpp"
#include "support/paths.hpp"

namespace mica::test {

SlurmTraining::SlurmTraining() {
  write_tokens(folder_ / "tokens.bin", 20000);
  write_text(folder_ / "run.cfg",
             "[model]\ntype = mlp\nlayers = 2\nwidth = 16\nvocab_size = 16\n[data]\ntrain = " + (folder_ / "tokens.bin") +
                 "\n[optim]\nschedule = constant\n[train]\nmicro_batch = 2\nseq_len = 16\nsteps = 1000000\n");
}

std::vector<std::string> SlurmTraining::command(const std::vector<std::string>& options, const std::vector<std::string>& flags) const {
  std::vector<std::string> words{"--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--output=" + output_file()};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {test::source_folder() + "/scripts/launch/slurm-cpu.sbatch", folder_ / "run.cfg", "--run.dir=" + run_folder()});
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

std::map<std::string, std::string> SlurmTraining::environment() { return {{"MICA_BIN", test::program_folder()}}; }

std::int64_t SlurmTraining::last_step() const {
  const std::vector<StepLine> lines = step_lines(run_folder());
  return lines.empty() ? 0 : lines.back().step;
}

bool SlurmTraining::reaches(std::int64_t step, double limit_s) const {
  return eventually(limit_s, [&] { return last_step() >= step; });
}

std::vector<std::int64_t> SlurmTraining::resumed_after() const {
  static const std::regex kResume("resume .*: step ([0-9]+) of [0-9]+ is done");
  const std::string text = read_text(run_folder() + "/log.txt");
  std::vector<std::int64_t> found;
  for (std::sregex_iterator it(text.begin(), text.end(), kResume), end; it != end; ++it) found.push_back(std::stoll((*it)[1]));
  return found;
}

int SlurmTraining::num_launches() const {
  const std::string text = read_text(output_file());
  int num = 0;
  for (std::size_t at = text.find("mica-train 0."); at != std::string::npos; at = text.find("mica-train 0.", at + 1)) ++num;
  return num;
}

}  // namespace mica::test
