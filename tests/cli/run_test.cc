// bypass run: the environment that a program gets, and how the command ends if there is no program to start. Any shared
// library can take the place of the preloaded one, if it says that it is ours.
#include <dlfcn.h>
#include <elf.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/command.h"

namespace bypass::tool {
namespace {

namespace fs = std::filesystem;

std::string some_library() {
  Dl_info info{};
  EXPECT_NE(dladdr(reinterpret_cast<const void*>(&::getenv), &info), 0);
  for (const char* name : {"libm.so.6", "libc.so.6"})
    if (const fs::path path = fs::path(info.dli_fname).parent_path() / name; fs::exists(path)) return path;
  return "/lib/x86_64-linux-gnu/libm.so.6";
}

class Run : public testing::Test {
 protected:
  Run() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    (void)file("empty.toml", "", 0644);
  }
  ~Run() override { fs::remove_all(folder_); }

  Ran run(std::vector<std::string> arguments, std::vector<std::string> variables = {}) const {
    arguments.insert(arguments.begin(), {"run", "--library", library_});
    variables.insert(variables.end(), {"PATH=/usr/bin:/bin:" + folder_, "BYPASS_CONFIG=" + folder_ + "/empty.toml"});
    return run_command(std::move(arguments), std::move(variables));
  }
  std::string file(const char* name, const std::string& content, mode_t mode = 0755) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::string elf(unsigned char bits) {
    Elf64_Ehdr header{};
    std::copy_n(ELFMAG, SELFMAG, header.e_ident);
    header.e_ident[EI_CLASS] = bits;
    header.e_type = ET_EXEC;
    header.e_phentsize = sizeof(Elf64_Phdr);
    return {reinterpret_cast<const char*>(&header), sizeof header};
  }
  void expect_refused(const std::vector<std::string>& arguments, int code, const std::string& said) const {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, code) << ran.err;
    EXPECT_NE(ran.err.find(said), std::string::npos) << ran.err;
    EXPECT_EQ(ran.out, "");
  }

  std::string folder_ = "/tmp/bypass-run-XXXXXX";
  const std::string library_ = BYPASS_STAND_IN;
};

const std::vector<std::string> kPort = {"--port", "vhost:/tmp/wire", "--addr", "10.9.0.1/24"};

std::vector<std::string> with_port(std::vector<std::string> more) {
  more.insert(more.begin(), kPort.begin(), kPort.end());
  return more;
}
bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST_F(Run, Options_BecomeTheProgramsEnvironment) {
  const Ran ran = run(with_port({"--gateway=10.9.0.254", "--mac", "02:00:00:00:00:05", "--mtu", "1400", "--profile",
                                 "latency", "--tcp-rto-min-us", "5000", "--set", "tcp.retries2=4", "--set",
                                 "BYPASS_SPIN_US=7", "--strict", "--tso", "off", "--", "env"}),
                      {"BYPASS_MTU=9000", "BYPASS_LOG=info", "OTHER=kept"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  for (const char* line : {"BYPASS_PORT=vhost:/tmp/wire", "BYPASS_ADDR=10.9.0.1/24", "BYPASS_GATEWAY=10.9.0.254",
                           "BYPASS_MAC=02:00:00:00:00:05", "BYPASS_MTU=1400", "BYPASS_PROFILE=latency",
                           "BYPASS_TCP_RTO_MIN_US=5000", "BYPASS_TCP_RETRIES2=4", "BYPASS_SPIN_US=7",
                           "BYPASS_STRICT=on", "BYPASS_TSO=off", "BYPASS_LOG=info", "OTHER=kept"})
    EXPECT_TRUE(has_line(ran.out, line)) << line << "\n" << ran.out;
  EXPECT_TRUE(has_line(ran.out, "LD_PRELOAD=" + library_));
}

TEST_F(Run, OtherPreloadedLibraries_StayBehindOurs) {
  const std::string other = file("other.so", "");
  fs::copy_file(library_, other, fs::copy_options::overwrite_existing);
  for (const char* separator : {":", " "}) {
    // (The command may be a sanitizer's build, whose runtime must be loaded first.)
    const Ran ran = run(with_port({"env"}),
                        {"LD_PRELOAD=" + other + separator + library_, "ASAN_OPTIONS=verify_asan_link_order=0"});
    EXPECT_TRUE(has_line(ran.out, "LD_PRELOAD=" + library_ + ":" + other)) << ran.out;
  }
}

TEST_F(Run, AnotherLibrary_IsRefused) {
  const auto refused = [&](const std::string& library, const std::string& said) {
    const Ran ran = run_command({"run", "--library", library, "echo", "x"}, {"PATH=/usr/bin:/bin"});
    EXPECT_EQ(ran.code, 125);
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(library + ": " + said), std::string::npos) << ran.err;
  };
  refused(some_library(), "is lib");
  refused(BYPASS_COMMAND, "is another library; accepted is libbypass.so");
  Elf64_Ehdr header{};
  std::copy_n(ELFMAG, SELFMAG, header.e_ident);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_type = ET_DYN;
  header.e_phnum = 9;
  refused(file("cut.so", {reinterpret_cast<const char*>(&header), sizeof header}), "is another library");
}

TEST_F(Run, ProgramsOwnOptions_AreItsOwn) {
  EXPECT_EQ(run(with_port({"--", "echo", "--port", "-n", "--", "x"})).out, "--port -n -- x\n");
  EXPECT_EQ(run(with_port({"echo", "--port", "x"})).out, "--port x\n") << "without -- as well";
}

TEST_F(Run, ExitCode_IsThePrograms) {
  EXPECT_EQ(run(with_port({"sh", "-c", "exit 42"})).code, 42);
}

TEST_F(Run, Script_IsRunByItsInterpreter) {
  (void)file("hello", "#!/bin/sh\necho hello $1\n");
  EXPECT_EQ(run(with_port({"hello", "you"})).out, "hello you\n") << "found in PATH";
}

TEST_F(Run, NoSuchProgram_EndsWith127) {
  expect_refused(with_port({""}), 127, "there is no program ''");
  expect_refused(with_port({"no-such-program"}), 127, "there is no program no-such-program in PATH");
  expect_refused(with_port({folder_ + "/nothing"}), 127, "No such file or directory");
}

TEST_F(Run, WordBehindASwitch_IsShownAsItsValue) {
  expect_refused({"--local", "maybe", "--", "true"}, 127,
                 "there is no program maybe in PATH (for a value: --local=maybe)\n");
  expect_refused({"--local=on", "maybe"}, 127, "there is no program maybe in PATH\n");
  expect_refused({"--local", "--", "maybe"}, 127, "there is no program maybe in PATH\n");
  expect_refused({"--local", "--tick-ms", "20", "maybe"}, 127, "there is no program maybe in PATH\n");
}

TEST_F(Run, NotExecutable_EndsWith126) {
  expect_refused(with_port({file("plain", "text", 0644)}), 126, "is not executable");
  expect_refused(with_port({"plain"}), 126, "is not executable");
  expect_refused(with_port({folder_}), 126, "is a folder");
  expect_refused(with_port({file("noise", "\x01\x02")}), 126, "Exec format error");
}

TEST_F(Run, ProgramsThatPreloadNothing_EndWith126) {
  expect_refused(with_port({file("static", elf(ELFCLASS64))}), 126, "is statically linked");
  expect_refused(with_port({file("small", elf(ELFCLASS32))}), 126, "is a 32-bit program");
  expect_refused(with_port({file("script", "#!" + folder_ + "/static -x\n")}), 126, "its interpreter");
}

TEST_F(Run, SetuidProgram_EndsWith126) {
  if (geteuid() != 0) GTEST_SKIP() << "root alone can make one of another user's";
  const std::string path = file("setuid", elf(ELFCLASS64));
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  ASSERT_EQ(chmod(path.c_str(), 04755), 0);
  expect_refused(with_port({path}), 126, "is setuid: it runs as another user");
}

TEST_F(Run, WrongSettings_EndWith125BeforeTheProgramBegins) {
  expect_refused(with_port({"--mtu", "5", "--", "echo", "x"}), 125, "--mtu=5: has '5'");
  expect_refused(with_port({"--set", "tcp.retries2=0", "--", "echo", "x"}), 125, "--set tcp.retries2=0: ");
  expect_refused({"--port", "vhost:/tmp/wire", "--addr", "10.9.0.1", "echo", "x"}, 125,
                 "--addr=10.9.0.1: has '10.9.0.1' without the length of the link's prefix; accepted is ADDRESS/LENGTH");
  expect_refused({"--port", "vhost:/tmp/wire", "echo", "x"}, 125, "--addr: gives no address to the port");
  expect_refused({"--library", "/nonexistent/lib.so", "echo", "x"}, 125, "/nonexistent/lib.so");
  expect_refused({"--library", "/etc/passwd", "echo", "x"}, 125, "/etc/passwd: is no 64-bit shared library");
  expect_refused({"--library", "/tmp/a b.so", "echo", "x"}, 125, "a b.so");
}

TEST_F(Run, WrongSettingOfTheEnvironment_IsNotBlamedOnAnOption) {
  const Ran ran = run(with_port({"echo", "x"}), {"BYPASS_MTU=5"});
  EXPECT_EQ(ran.code, 125);
  EXPECT_NE(ran.err.find("BYPASS_MTU=5 (environment): has '5'"), std::string::npos) << ran.err;
}

TEST_F(Run, WhatThePortNeedsAndIsNotThere_EndsWith125BeforeTheProgramBegins) {
  expect_refused({"--port", "af_packet:nosuch0", "--addr", "10.9.0.1/24", "echo", "x"}, 125,
                 "--port=af_packet:nosuch0: no network interface of that name");
  expect_refused({"--port", "vhost:" + folder_ + "/nosuch/wire", "--addr", "10.9.0.1/24", "echo", "x"}, 125,
                 "--port=vhost:" + folder_ + "/nosuch/wire: the folder " + folder_ + "/nosuch: No such file");
  expect_refused({"--port", "pci:0000:7f:1f.7", "--addr", "10.9.0.1/24", "echo", "x"}, 125,
                 "--port=pci:0000:7f:1f.7: no such device");
  expect_refused(with_port({"--rdma", "nosuch0", "echo", "x"}), 125, "--rdma=nosuch0: no RDMA device of that name");
  expect_refused(with_port({"--rdma", "nosuch0", "echo", "x"}), 125, "accepted is auto, off or the name of an RDMA");
  expect_refused({"--run-dir", "/tmp", "echo", "x"}, 125, "--run-dir=/tmp: run directory /tmp: not used: ");
  expect_refused({"--run-dir", "/nonexistent/x", "echo", "x"}, 125,
                 "--run-dir=/nonexistent/x: cannot be made in the folder /nonexistent: No such file or directory; "
                 "accepted is an absolute path");
  expect_refused({"--run-dir", "relative", "echo", "x"}, 125, "--run-dir=relative: is no absolute path; accepted is ");
  EXPECT_EQ(run({"--run-dir", folder_ + "/new/", "echo", "x"}).out, "x\n") << "the first process makes it";
  expect_refused({"--port", "verbs:softy", "--addr", "10.9.0.1/24", "echo", "x"}, 125,
                 "--port=verbs:softy: no RDMA device of that name");
  const Ran ran = run({"echo", "x"}, {"BYPASS_PORT=af_xdp:nosuch0", "BYPASS_ADDR=10.9.0.1/24"});
  EXPECT_EQ(ran.code, 125);
  EXPECT_NE(ran.err.find("BYPASS_PORT=af_xdp:nosuch0 (environment): no network interface"), std::string::npos);
}

TEST_F(Run, WrongOptions_EndWith2) {
  expect_refused({"--prot", "x", "echo"}, 2, "there is no option --prot (did you mean --port?)");
  expect_refused({"--set", "frotz=1", "echo"}, 2, "there is no setting frotz");
  expect_refused({"--set", "tcp.retris2=1", "echo"}, 2, "there is no setting tcp.retris2 (did you mean tcp.retries2?)");
  expect_refused({"--set", "BYPASS_FOO=1", "echo"}, 2, "there is no setting BYPASS_FOO; `bypass config` lists them\n");
  expect_refused({"--set", "BYPASS_PROT=1", "echo"}, 2, "there is no setting BYPASS_PROT (did you mean BYPASS_PORT?)");
  expect_refused({"--set", "mtu", "echo"}, 2, "NAME=VALUE");
  expect_refused({"--port"}, 2, "--port wants a value");
  expect_refused({}, 2, "which program?");
}

TEST_F(Run, NoPort_IsSaidAndTheProgramRuns) {
  const Ran ran = run({"echo", "x"});
  EXPECT_EQ(ran.out, "x\n");
  EXPECT_NE(ran.err.find("no port is set"), std::string::npos) << ran.err;
}

TEST_F(Run, Help_NamesEverySetting) {
  const Ran ran = run({"--help"});
  EXPECT_EQ(ran.code, 0);
  for (const char* part : {"--port", "--tcp-rto-min-us", "--ip-fragment-memory", "--set NAME=VALUE"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace bypass::tool
