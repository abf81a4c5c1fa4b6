// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

// Processes in surroundings of their own: networks, and systems that start no more threads.
namespace mica::test {

/// A cable with nobody at its other end: what is sent to 10.9.8.0/24 is lost, as by a firewall between two hosts.
inline const std::string kSilentNetwork =
    "ip link add mica0 type veth peer name nobody && ip addr add 10.9.8.1/24 dev mica0 && ip link set mica0 up && ip link set nobody up";

/// Runs `commands` and then `body` in a network and a mount namespace of its own, as root or in a user namespace. Failures of the body
/// fail the test.
inline void in_own_network(const std::string& commands, const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    if (::unshare(CLONE_NEWNET | CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0) ::_exit(99);
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(99);
    if (std::system(commands.c_str()) != 0) ::_exit(98);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_NE(WEXITSTATUS(status), 99) << "no network namespace is possible";
  ASSERT_NE(WEXITSTATUS(status), 98) << commands;
  EXPECT_EQ(status, 0);
}

/// From now on this process can start no thread, as at a limit (ulimit -u): their stacks would be larger than any memory.
inline void forbid_threads() {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, std::size_t{1} << 48), 0);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
}

}  // namespace mica::test
