"""gVisor's tests of Linux's socket calls, from a folder that the caller names. Its BUILD files say which sources belong to a
program; they are Python as far as that goes. No Bazel: ninja, g++ and Debian's abseil and gmock build them."""
import os
import subprocess

import sources
from unit import Programs
from world import Failure

HERE = "test/syscalls/linux"
PROGRAMS = """tcp_socket_test udp_socket_test epoll_test poll_test select_test socket_ip_tcp_loopback_test
    socket_ip_tcp_generic_loopback_test socket_ip_tcp_loopback_non_blocking_test socket_stream_blocking_tcp_test
    socket_ip_udp_loopback_test socket_inet_loopback_test accept_bind_stream_test sendfile_socket_test readv_socket_test
    udp_bind_test""".split()
NOT_BUILT = {"test/util/test_util_runfiles.cc"}  # Bazel's way to find files; the function it has is ours instead
ALL = "-*PortReuseMultiThread*"  # thousands of connections for each case
RUNFILES = """#include <string>
namespace gvisor { namespace testing { std::string RunfilePath(std::string path) { return path; } } }
"""
LIBRARIES = """absl_strings absl_str_format absl_synchronization absl_time absl_status absl_statusor absl_flags absl_flags_parse
    absl_hash absl_raw_hash_set absl_flat_hash_map absl_any_invocable gtest gmock""".split()


class Suite(Programs):
    name = "gvisor"
    packages = ("g++", "ninja-build", "pkg-config", "libabsl-dev", "libgmock-dev", "libgtest-dev", "libbenchmark-dev")
    wirings = ("preload", "local")
    not_bent = "its addresses are the loopback's by name: INADDR_LOOPBACK, in6addr_loopback and what an interface lo has"
    timeout = 900

    def prepare(self):
        def build(folder):
            sources.copy_given("gvisor", "google/gvisor's work tree or Git directory", folder, HERE, "test/util")
            with open(f"{folder}/runfiles.cc", "w") as file:
                file.write(RUNFILES)
            # abseil's newer locks take references, Debian's pointers.
            sources.run("sed", "-i", "-E", r"s/(MutexLock \w+)\((\w+)\);/\1(\&\2);/", f"{folder}/{HERE}/epoll.cc")
            write_ninja(folder)
            sources.run("cc", "-O1", "-shared", "-fPIC", "-o", f"{folder}/moved_at_once.so", f"{self.here}/peers/moved_at_once.c")
            sources.run("nice", "ninja", "-j2", "-C", folder, timeout=20000)
        self.built = sources.made("gvisor", build)
        self.in_front = f"{self.built}/moved_at_once.so"
        self.tests = PROGRAMS

    def environment(self, world):
        return {"TEST_TMPDIR": "/tmp"}

    def command(self, world, test):
        chosen = [name.partition(":")[2] for name in self.names or () if self.unit_of(name) == test]
        return [f"{self.built}/{test}", "--gtest_color=no", f"--gtest_filter={':'.join(chosen) or ALL}"]

    def unit_of(self, name):
        return name.partition(":")[0]

    def verdicts(self, test, status, said):
        return gtest(test, status, said)


def gtest(test, status, said):
    """A verdict for each case that began; one without an end has crashed, or hangs."""
    found, begun = {}, None
    words = {"[       OK ]": "ok", "[  FAILED  ]": "failed", "[  SKIPPED ]": "skipped"}
    for line in said.split("\n"):
        if line.startswith("[ RUN      ] "):
            begun = line[13:].strip()
            found[f"{test}:{begun}"] = "hung" if status is None else "crashed"
        elif begun and (word := next((verdict for mark, verdict in words.items() if mark in line), None)) and begun in line:
            found[f"{test}:{begun}"], begun = word, None
    return found or {f"{test}:end": "crashed"}


def read_build(folder, part, rules):
    """The rules of a BUILD file: {label: (sources, labels it depends on)}."""
    def rule(name=None, srcs=(), deps=(), **_):
        rules[f"//{part}:{name}"] = ([f"{part}/{file}" for file in srcs if file.endswith(".cc")],
                                     [f"//{part}{label}" if label.startswith(":") else label for label in deps if isinstance(label, str)])

    class Anything(dict):
        def __missing__(self, word):
            return __builtins__[word] if word in __builtins__ else lambda *_, **__: []
    names = Anything(cc_binary=rule, cc_library=rule, cc_test=rule, coreutil=lambda: [], gbenchmark=["benchmark"])
    exec(compile(open(f"{folder}/{part}/BUILD").read(), part, "exec"), names)


def sources_of(rules, label, seen):
    """Of a label and of all that it depends on."""
    if label in seen or label not in rules:
        return
    seen.add(label)
    files, labels = rules[label]
    yield from files
    for one in labels:
        yield from sources_of(rules, one, seen)


def write_ninja(folder):
    rules = {}
    for part in (HERE, "test/util"):
        read_build(folder, part, rules)
    told = subprocess.run(["pkg-config", "--libs", *LIBRARIES], capture_output=True, text=True, check=True).stdout.strip()
    lines = ["rule cc", "  command = g++ -std=c++17 -O0 -w -pthread -I. -MD -MF $out.d -c $in -o $out", "  depfile = $out.d",
             "rule link", f"  command = g++ -pthread $in -o $out {told} -lbenchmark"]
    compiled = set()
    for program in PROGRAMS:
        if f"//{HERE}:{program}" not in rules:
            raise Failure(f"gVisor has no {program} any more")
        files = sorted(set(sources_of(rules, f"//{HERE}:{program}", set())) - NOT_BUILT) + ["runfiles.cc"]
        for file in files:
            if file not in compiled:
                compiled.add(file)
                lines.append(f"build objects/{file}.o: cc {file}")
        lines.append(f"build {program}: link " + " ".join(f"objects/{file}.o" for file in files))
    with open(f"{folder}/build.ninja", "w") as out:
        out.write("\n".join(lines) + "\n")
