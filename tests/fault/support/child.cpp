// SPDX-License-Identifier: Apache-2.0
#include "fault/support/child.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/paths.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void pause_a_little() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

/// Children and grandchildren of a process (mpirun's ranks; MPICH has a proxy in between).
std::vector<pid_t> descendants(pid_t ancestor) {
  std::map<pid_t, pid_t> parents;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string text;
    std::getline(stat, text);
    const std::size_t after_name = text.rfind(')');
    if (after_name == std::string::npos) continue;
    std::istringstream fields(text.substr(after_name + 1));
    char state = 0;
    pid_t parent = 0;
    if (fields >> state >> parent) parents[static_cast<pid_t>(std::stol(name))] = parent;
  }
  std::vector<pid_t> found;
  for (const auto& [pid, parent] : parents) {
    pid_t above = parent;
    for (int depth = 0; depth < 6 && above > 1; ++depth) {
      if (above == ancestor) {
        found.push_back(pid);
        break;
      }
      const auto next = parents.find(above);
      above = next == parents.end() ? 0 : next->second;
    }
  }
  return found;
}

/// What stands in the way of an end, for texts: each process's threads, in which state, and in which call of the kernel.
std::string what_runs(pid_t ancestor) {
  std::vector<pid_t> pids = descendants(ancestor);
  pids.push_back(ancestor);
  std::string text;
  for (const pid_t pid : pids) {
    std::error_code ignored;
    for (const fs::directory_entry& thread : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
      std::string status, call;
      std::getline(std::ifstream(thread.path() / "stat"), status);
      std::getline(std::ifstream(thread.path() / "syscall"), call);
      text += "still there: " + status.substr(0, status.rfind(')') + 3) + "; system call " + call.substr(0, call.find(' ')) + "\n";
    }
  }
  return text;
}

/// The rank that a launcher gave a process; -1 for none.
int rank_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    for (const std::string name : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="}) {
      if (entry.starts_with(name)) return std::stoi(entry.substr(name.size()));
    }
  }
  return -1;
}

}  // namespace

std::vector<std::string> Finished::error_lines() const {
  std::vector<std::string> found;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("mica: error:")) found.push_back(line);
  }
  return found;
}

Child::Child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment) {
  std::vector<std::string> words{"/bin/bash", "-c", ". '" + test::source_folder() + "/scripts/environment.sh'; exec \"$@\"", "bash"};
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    for (const int ignored : {SIGINT, SIGHUP}) ::signal(ignored, SIG_DFL);  // by a shell's background jobs, and by nohup
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
    for (const char* library : {"OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"})
      ::setenv(library, launcher_files_.path().c_str(), 0);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  read_fd_ = ends[0];
  reader_ = std::thread([this] {
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(read_fd_, buffer, sizeof buffer)) > 0;) {
      const std::scoped_lock lock(mutex_);
      output_.append(buffer, static_cast<std::size_t>(n));
    }
  });
}

Child::~Child() {
  if (!reap(WNOHANG)) {
    kill_all();
    (void)reap(0);
  }
  if (reader_.joinable()) reader_.join();
  ::close(read_fd_);
}

std::vector<pid_t> Child::ranks(int num_ranks) const {
  const auto begin = Clock::now();
  while (seconds_since(begin) < 20) {
    std::map<int, pid_t> found;
    for (const pid_t pid : descendants(pid_)) {
      if (const int rank = rank_of(pid); rank >= 0) found[rank] = pid;
    }
    if (static_cast<int>(found.size()) == num_ranks) {
      std::vector<pid_t> pids;
      for (const auto& [rank, pid] : found) pids.push_back(pid);
      return pids;
    }
    pause_a_little();
  }
  return {};
}

bool Child::is_running() { return !reap(WNOHANG); }

bool Child::wait_for(const std::string& text, double limit_s) {
  const auto begin = Clock::now();
  while (true) {
    const bool runs = is_running();
    if (output_so_far().find(text) != std::string::npos) return true;
    if (!runs || seconds_since(begin) > limit_s) return false;
    pause_a_little();
  }
}

Finished Child::wait(double limit_s) {
  const auto begin = Clock::now();
  while (!reap(WNOHANG)) {
    if (seconds_since(begin) > limit_s) {
      finished_.is_timed_out = true;
      const std::string running = what_runs(pid_);
      kill_all();
      (void)reap(0);
      if (reader_.joinable()) reader_.join();
      output_ += running;
      break;
    }
    pause_a_little();
  }
  if (reader_.joinable()) reader_.join();
  finished_.output = output_;
  return finished_;
}

bool Child::reap(int options) {
  if (is_reaped_) return true;
  int raw = 0;
  if (::waitpid(pid_, &raw, options) != pid_) return false;
  is_reaped_ = true;
  finished_.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
  finished_.seconds = seconds_since(start_);
  return true;
}

std::string Child::output_so_far() {
  const std::scoped_lock lock(mutex_);
  return output_;
}

void Child::kill_all() {
  for (const pid_t pid : descendants(pid_)) ::kill(pid, SIGKILL);
  ::kill(pid_, SIGKILL);
}

bool have_ended(const std::vector<pid_t>& pids, double limit_s) {
  const auto runs = [](pid_t pid) {
    std::string text;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
    const std::size_t after_name = text.rfind(')');
    return after_name != std::string::npos && text[after_name + 2] != 'Z';
  };
  const auto begin = Clock::now();
  while (std::ranges::any_of(pids, runs)) {
    if (seconds_since(begin) > limit_s) return false;
    pause_a_little();
  }
  return true;
}

std::vector<std::string> operator+(std::vector<std::string> command, const std::vector<std::string>& arguments) {
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::vector<std::string> under_mpirun(int num_ranks, const std::vector<std::string>& command) {
  return std::vector<std::string>{"mpirun", "-np", std::to_string(num_ranks)} + command;
}

Finished run(const std::vector<std::string>& command, double limit_s) { return Child(command).wait(limit_s); }

std::vector<std::string> in_mount_namespace(const std::string& script, const std::vector<std::string>& command) {
  std::vector<std::string> words{"unshare", ::geteuid() == 0 ? "-m" : "-Urm", "/bin/sh", "-c", script, "sh"};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace mica::test
