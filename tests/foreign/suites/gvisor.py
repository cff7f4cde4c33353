"""gVisor's tests of Linux's socket calls, from a folder that the caller names. Its BUILD files say which sources belong to a
program; they are Python as far as that goes. No Bazel: ninja, g++ and Debian's abseil and gmock build them."""
import os
import re
import subprocess

import sources
from unit import Programs, by_status
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
        done = [name.partition(":")[2] for name in self.done if self.unit_of(name) == test]
        with open(world.path("flags"), "w") as flags:  # longer than an argument may be
            flags.write(f"--gtest_filter={':'.join(chosen) or ':'.join([ALL, *done])}\n")
        return [f"{self.built}/{test}", "--gtest_color=no", f"--gtest_flagfile={world.path('flags')}"]

    def unit_of(self, name):
        return name.partition(":")[0]

    def run(self, world, names=None):
        """A program that ends in the middle of a case is started again without what it has done."""
        self.done = set()
        found = super().run(world, names)
        while cut := {self.unit_of(name) for name in found if found[name] in ("crashed", "hung") and name not in self.done}:
            self.done.update(found)
            rest = [name for name in names if name not in found] if names else None
            for test in sorted(cut):
                if rest is None or any(self.unit_of(name) == test for name in rest):
                    self.names = rest
                    found.update(self.run_one(world, test))
        return found

    def verdicts(self, test, status, said):
        return gtest(test, status, said)


WORDS = {"OK": "ok", "FAILED": "failed", "SKIPPED": "skipped"}


def gtest(test, status, said):
    """A verdict for each case that began; one without an end has crashed, or hangs."""
    ended = {name: WORDS[word] for word, name in re.findall(r"\[ +(OK|FAILED|SKIPPED) +\] ([\w/.]+).*\(\d+ ms\)", said)}
    begun = re.findall(r"\[ RUN +\] ([\w/.]+)", said)
    found = {f"{test}:{name}": ended.get(name, "hung" if status is None else "crashed") for name in begun}
    return found or {f"{test}:end": by_status(status)}


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
