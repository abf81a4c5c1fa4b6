// SPDX-License-Identifier: Apache-2.0
// scripts/cluster itself: nodes are apart, links are as slow as they are told, a crash is silent, and nothing outlives a cluster.

#include "cluster/support/nodes.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "fault/support/training.hpp"
#include "support/temporary_folder.hpp"

namespace mica::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// cluster.sh with OPTIONS -- bash -c SCRIPT; "$c" is cluster.sh there.
std::vector<std::string> with(std::vector<std::string> options, const std::string& script) {
  options.insert(options.begin(), "with");
  options.insert(options.end(), {"--", "bash", "-ec", "c=$MICA_CLUSTER\n" + script});
  return cluster(options);
}

/// Sends `kib` KiB from node0 to node1, which says so, and how long each byte of a ping-pong took.
constexpr const char* kSend = R"(
cat >send.py <<'PY'
import socket, sys, time
if sys.argv[1] == 'receive':
    listener = socket.create_server(('0.0.0.0', 5000))
    open('listens', 'w').close()
    end, _ = listener.accept()
    got = 0
    while data := end.recv(1 << 16):
        got += len(data)
        if got <= 10:
            end.send(data)
    print('received', got)
else:
    end = socket.create_connection(('node1', 5000))
    begin = time.monotonic()
    for _ in range(10):
        end.send(b'x')
        end.recv(1)
    print('round trip us', int((time.monotonic() - begin) * 1e5))
    begin = time.monotonic()
    end.sendall(b'x' * (int(sys.argv[2]) << 10))
    end.shutdown(socket.SHUT_WR)
    end.recv(1)
    print('sent in ms', int((time.monotonic() - begin) * 1e3))
PY
rm -f listens
"$c" on node1 python3 send.py receive &
until [ -e listens ]; do sleep 0.02; done
"$c" on node0 python3 send.py send $kib
wait
"$c" counters
)";

std::int64_t number_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? -1 : std::stoll(text.substr(at + words.size()));
}

class Nodes : public ::testing::Test {
 protected:
  Nodes() { fs::current_path(folder_.path()); }
  TemporaryFolder folder_;
};

TEST_F(Nodes, EachIsAMachineOfItsOwn) {
  const Finished seen = run(with({"--nodes=3"}, R"(
hostname
for node in node0 node1 node2; do "$c" on $node bash -c 'hostname; : >/dev/shm/of-$HOSTNAME; ls /dev/shm; set -- /proc/[0-9]*; echo $#'; done)"));
  EXPECT_EQ(seen.status, 0) << seen.output;
  // Its init, that one's sleep, and the shell.
  EXPECT_EQ(seen.output, "head\nnode0\nof-node0\n3\nnode1\nof-node1\n3\nnode2\nof-node2\n3\n");
}

TEST_F(Nodes, TheInterfacesCountWhatIsSent) {
  const Finished seen = run(with({}, std::string("kib=4096\n") + kSend));
  EXPECT_EQ(seen.status, 0) << seen.output;
  const std::int64_t bytes = number_after(seen.output, "received ");
  EXPECT_EQ(bytes, (4096 << 10) + 10);
  EXPECT_GE(number_after(seen.output, "node0 sent "), bytes);
  EXPECT_LE(number_after(seen.output, "node0 sent "), bytes + bytes / 16);
  EXPECT_LE(number_after(seen.output, "node1 sent "), bytes / 16);
}

// Only the least that it takes is sure on a loaded machine.
TEST_F(Nodes, ALinkIsNoFasterThanItsRateAndDelay) {
  const Finished slow = run(with({"--rate=80mbit"}, std::string("kib=4096\n") + kSend));
  EXPECT_EQ(slow.status, 0) << slow.output;
  EXPECT_GE(number_after(slow.output, "sent in ms "), 400) << "4 MiB at 10 MB/s\n" << slow.output;
  const Finished changed = run(with({"--rate=1mbit"}, "\"$c\" rate off\nkib=1024\n" + std::string(kSend)));
  EXPECT_LT(number_after(changed.output, "sent in ms "), 8000) << "1 MiB at 1 Mbit/s takes 8.4 s\n" << changed.output;
  const Finished delayed = run(with({"--delay-us=5000"}, std::string("kib=4096\n") + kSend));
  EXPECT_EQ(delayed.status, 0) << delayed.output;
  EXPECT_EQ(number_after(delayed.output, "received "), (4096 << 10) + 10);
  EXPECT_GE(number_after(delayed.output, "round trip us "), 20000) << "four cables' ways\n" << delayed.output;
}

TEST_F(Nodes, ACutLinkCarriesNothingAndACrashedNodeIsGone) {
  const Finished seen = run(with({}, R"(
"$c" on node1 python3 -m http.server 8000 >/dev/null 2>&1 &
answers() { "$c" on node0 timeout "$1" bash -c 'until exec 3<>/dev/tcp/node1/8000; do sleep 0.05; done' 2>/dev/null; }
answers 30 && echo answers
"$c" cut node1
answers 1 || echo cut
"$c" mend node1
answers 30 && echo mended
"$c" crash node1
wait
answers 1 || echo gone
"$c" on node1 true || echo "status $?"
"$c" boot node1
"$c" on node1 hostname
"$c" on node1 python3 -m http.server 8000 >/dev/null 2>&1 &
answers 30 && echo back)"));
  EXPECT_EQ(seen.status, 0) << seen.output;
  EXPECT_THAT(seen.output, HasSubstr("answers\ncut\nmended\n"));
  EXPECT_THAT(seen.output, HasSubstr("gone\nmica: error: cluster: node1 is down: cluster.sh boot node1\nstatus 2\nnode1\nback\n"));
}

/// All processes that it has started, in all of its namespaces.
std::vector<pid_t> processes_below(pid_t ancestor) {
  std::vector<pid_t> found{ancestor};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string pid = std::to_string(found[i]);
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

TEST_F(Nodes, NothingOutlivesIt) {
  for (const int signal : {SIGKILL, SIGTERM, SIGHUP}) {
    Child child(with({}, "\"$c\" on node1 sleep 1000 &\necho runs; sleep 1000"));
    ASSERT_TRUE(child.wait_for("runs")) << child.wait(1).output;
    const std::vector<pid_t> all = processes_below(child.pid());
    EXPECT_GE(all.size(), 8u) << "unshare, the head, and the same and a sleep for each node";
    ASSERT_EQ(::kill(child.pid(), signal), 0);
    EXPECT_TRUE(have_ended(all, 20)) << signal;
    EXPECT_EQ(child.wait(20).status, signal == SIGKILL ? 128 + SIGKILL : 143);
  }
}

TEST_F(Nodes, TheCommandsStatusIsItsOwn) { EXPECT_EQ(run(with({}, "exit 75")).status, 75); }

TEST_F(Nodes, ThoseThatAreUpHaveNames) {
  const std::map<std::string, std::string> here{{"TMPDIR", folder_.path()}};
  const auto call = [&](const std::vector<std::string>& words) { return Child(cluster(words), here).wait(); };
  const auto expect_refused = [&](const std::vector<std::string>& words, const std::string& says) {
    const Finished seen = call(words);
    EXPECT_EQ(seen.status, 2) << seen.output;
    EXPECT_THAT(seen.error_lines(), ElementsAre(HasSubstr(says))) << seen.output;
  };
  expect_refused({"run", "true"}, "no cluster 'default' is up: cluster.sh up starts one");
  EXPECT_EQ(call({"up"}).status, 0);
  expect_refused({"up"}, "a cluster 'default' is up already");
  EXPECT_EQ(call({"up", "--name=other", "--nodes=1"}).status, 0);
  EXPECT_EQ(call({"on", "node1", "hostname"}).output, "node1\n");
  EXPECT_EQ(call({"--name=other", "on", "node0", "hostname"}).output, "node0\n");
  expect_refused({"--name=other", "on", "node1", "hostname"}, "no node 'node1': there are node0");
  EXPECT_EQ(call({"down", "--name=other"}).status, 0);
  EXPECT_EQ(call({"run", "hostname"}).output, "head\n");
  // Killed, it is not in the way of the next.
  std::istringstream words(read_text(folder_ / ("mica-cluster-" + std::to_string(::getuid()) + "/default/head")));
  pid_t head = 0;
  words >> head;
  ASSERT_GT(head, 1);
  ASSERT_EQ(::kill(head, SIGKILL), 0);
  ASSERT_TRUE(have_ended({head}, 20));
  EXPECT_EQ(call({"up"}).status, 0);
  EXPECT_EQ(call({"down"}).status, 0);
  expect_refused({"down"}, "no cluster 'default' is up");
}

TEST_F(Nodes, WhatIsMissingIsNamed) {
  const auto expect_refused = [&](const Finished& seen, const std::string& says) {
    EXPECT_EQ(seen.status, 2) << seen.output;
    EXPECT_THAT(seen.error_lines(), ElementsAre(HasSubstr(says))) << seen.output;
  };
  // A PATH without tc, another without slurmd.
  for (const std::string missing : {"tc", "slurmd"}) {
    const std::string path = folder_ / ("without-" + missing);
    fs::create_directory(path);
    for (const char* folder : {"/bin", "/usr/bin", "/sbin", "/usr/sbin"}) {
      for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (name != missing && !fs::is_symlink(fs::symlink_status(path + "/" + name))) fs::create_symlink(entry.path(), path + "/" + name);
      }
    }
    expect_refused(Child(cluster({"with", "--slurm", "--", "true"}), {{"PATH", path}}).wait(),
                   missing + " is missing: scripts/install-packages.sh --cluster installs it");
  }
  // Root without its powers, as in most containers.
  std::vector<std::string> powerless{"setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-sys_admin,-net_admin"};
  for (const std::string& word : cluster({"with", "--", "true"})) powerless.push_back(word);
  if (::geteuid() == 0) expect_refused(run(powerless), "no namespaces with a network bridge can be made here");
  expect_refused(run(cluster({"with", "--nodes=0", "--", "true"})), "--nodes=0: expected 1 to 99");
  expect_refused(run(cluster({"with", "--node=2", "--", "true"})), "unknown option '--node=2'");
  expect_refused(run(cluster({"with", "--rate=fast", "--", "true"})), "tc takes no rate 'fast'");
  expect_refused(run(cluster({"with"})), "no command");
}

}  // namespace
}  // namespace mica::test
