// Plugins are found, checked and copied. The message says fully what is wrong with one.
#include "runtime/ports/plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/crash/crash_report.h"
#include "runtime/ports/plugin_path.h"

namespace bypass::runtime {
namespace {

const std::string kGood = BYPASS_GOOD_PLUGIN;
const std::string kNone = BYPASS_NONE_PLUGIN;

std::string asked(Backend& backend) {
  std::string text;
  backend.check({}, text);
  return text;
}

TEST(Plugin, Opens_AndItsCodeCountsAsTheLibrarys) {
  std::string problem;
  const Host host;
  Backend* const backend = open_plugin_file(kGood, host, problem);
  ASSERT_NE(backend, nullptr) << problem;
  EXPECT_TRUE(crash::covers(*reinterpret_cast<void**>(*reinterpret_cast<void***>(backend)))) << "its first method";
}

TEST(Plugin, Copies_HaveStaticDataOfTheirOwn) {
  std::string problem;
  const Host host;
  Backend* const first = open_plugin_file(kGood, host, problem);
  ASSERT_NE(first, nullptr) << problem;
  const std::string before = asked(*first);
  Backend* const copy = open_plugin_file_copy(kGood, host, problem);
  Backend* const another = open_plugin_file_copy(kGood, host, problem);
  ASSERT_NE(copy, nullptr) << problem;
  ASSERT_NE(another, nullptr) << problem;
  EXPECT_EQ(asked(*first), before);
  EXPECT_EQ(asked(*copy), "1");
  EXPECT_EQ(asked(*another), "1");
}

// As another library of the process does, which counts its copies separately.
TEST(Plugin, Copy_TakesNoNameThatTheLinkerKnows) {
  const int fd = open(kNone.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<void*> known;
  std::string folder = "/proc/" + std::to_string(getpid()) + "/fd/";
  for (int i = 0; i < 64; i++, folder += "./")
    known.push_back(dlopen((folder + std::to_string(fd)).c_str(), RTLD_NOW | RTLD_LOCAL));
  close(fd);  // the copy gets this number
  std::string problem;
  const Host host;
  Backend* const copy = open_plugin_file_copy(kGood, host, problem);
  EXPECT_NE(copy, nullptr) << problem;
  for (void* each : known) {
    ASSERT_NE(each, nullptr);
    dlclose(each);
  }
}

TEST(Plugin, OtherBuild_IsRefused) {
  std::string problem;
  Host host;
  host.abi = kBackendAbi + 1;
  EXPECT_EQ(open_plugin_file(kGood, host, problem), nullptr);
  EXPECT_NE(problem.find("another build"), std::string::npos) << problem;
}

TEST(Plugin, NoPlugin_IsRefused) {
  std::string problem;
  EXPECT_EQ(open_plugin_file(kNone, {}, problem), nullptr);
  EXPECT_NE(problem.find("exports no bypass_backend"), std::string::npos) << problem;
}

TEST(Plugin, MissingPlugin_SaysWhereItWasLookedFor) {
  std::string problem;
  EXPECT_FALSE(plugin_present("frotz", problem));
  EXPECT_EQ(problem.substr(0, 66),
            "the plugin libbypass-frotz.so is not installed: looked for in " + plugin_folders()[0].substr(0, 4))
      << problem;
  EXPECT_EQ(open_plugin("frotz", {}, problem), nullptr);
}

// A library in /tmp loads no plugins from /. A library in /opt/x/lib loads none from /opt/x.
TEST(Plugin, FoldersAreTheLibrarysAndTheInstallPrefixs) {
  const std::string own = file_of_address(reinterpret_cast<const void*>(&plugin_folders));
  const std::string beside = own.substr(0, own.rfind('/'));
  ASSERT_TRUE(beside.ends_with("/bin")) << "a program of the build: its plugins are one folder above";
  const std::vector<std::string> folders = plugin_folders();
  ASSERT_EQ(folders.size(), 4U);
  EXPECT_EQ(folders[0], beside);
  EXPECT_EQ(folders[1], beside + "/bypass");
  EXPECT_EQ(folders[2], beside.substr(0, beside.rfind('/')));
}

TEST(Plugin, FileOfAnotherUser_IsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make one";
  char folder[] = "/tmp/bypass-plugin-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/libbypass-dpdk.so";
  ASSERT_EQ(close(creat(path.c_str(), 0644)), 0);
  EXPECT_EQ(plugin_problem(path), "");
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_EQ(plugin_problem(path), "everybody may write it");
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_EQ(plugin_problem(path), "it belongs to the user 12345");
  unlink(path.c_str());
  rmdir(folder);
}

TEST(Plugin, OwnFolder_IsAbsolute) {
  EXPECT_EQ(file_of_address(reinterpret_cast<const void*>(&asked)).front(), '/');
  EXPECT_EQ(file_of_address(nullptr), "");
}

TEST(Plugin, CopyBeyondTheFileSizeLimit_IsAProblemAndNoSignal) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string problem;
    _exit(open_plugin_file_copy(kGood, {}, problem) == nullptr && problem.find("File too large") != std::string::npos
              ? 0
              : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Plugin, TomlReader_IsOpenedOnDemand) {
  ConfigFile file;
  file.path = "x.toml";
  toml_reader()("spin_us = 5\n", file);
  ASSERT_EQ(file.entries.size(), 1U) << (file.problems.empty() ? "" : file.problems[0].text);
  EXPECT_EQ(file.entries[0].key, "spin_us");
}

}  // namespace
}  // namespace bypass::runtime
