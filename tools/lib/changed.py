"""Which tests a change can reach (tools/test --changed): changed.py BUILD REV prints their numbers, with commas between them, as
ctest -I takes them.

A test of a program that was built is reached through the build's graph: what the program is linked from, and what each
object includes. A test that runs whole programs is reached through a table of areas. What is in no area, as a script of
tools/ or a file of CMake, reaches every test."""
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Paths of changes, and the tests of whole programs that they reach. The first match counts.
AREAS = [
    (r"^docs/|\.md$|^LICENSE", r"^(readme|lint_)"),
    (r"^tools/(bench|demo)|^tests/fuzz/", r"^lint_"),
    (r"^config/|^tools/bypass/", r"^(command|readme|family_|behaviour_)"),
    (r"^src/observe/", r"^(command|behaviour_|local_|steering_|veth_|family_)"),
    (r"^src/backends/dpdk/", r"_vhost|_virtio|^behaviour_|^family_|^trust_|^command|^endings_over|^vm_"),
    (r"^src/backends/packet/", r"_veth|^veth_|^steering_|^verbs_|_verbs$"),
    (r"^src/verbs_trace/", r"^verbs_trace"),
    (r"^src/(backends/verbs|softverbs)/", r"^verbs_|^rdma_cm_|^requests_|^steering_|_verbs|_rc|^rc_|^endings_over"),
    (r"^src/fastpath/shm/", r"^local_|_local|_shm|^shm_|^endings_|^preload_|^trust_"),
    (r"^src/fastpath/", r"_rc|^rc_|_shm|^shm_|^endings_|^local_|_local"),
    (r"^src/(os|config|stack|socket|preload|runtime|backends)/", r"."),
    (r"^tests/foreign/", r"^foreign_"),
    (r"^tests/preload/", r"^preload_"),
    (r"^tests/vm/|^tools/vm", r"^vm_"),
    (r"^tests/system/(harness|agents|sides|transfers)\.py", r"."),
    (r"^tests/system/", None),  # a scenario's file reaches its own tests
    (r"^tests/", r"^$"),
]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def changed_files(revision):
    """Against `revision`: committed, not committed, and new."""
    names = run("git", "-C", ROOT, "diff", "--name-only", revision, "--").splitlines()
    return set(names + run("git", "-C", ROOT, "ls-files", "--others", "--exclude-standard").splitlines())


def changed_objects(build, files):
    """The objects that one of `files` is compiled into."""
    objects, wanted = {os.path.join(ROOT, name) for name in files}, set()
    current = None
    for line in run("ninja", "-C", build, "-t", "deps").splitlines():
        if not line.startswith(" "):
            current = line.split(":")[0]
        elif os.path.normpath(os.path.join(build, line.strip())) in objects:
            wanted.add(current)
    return wanted


def built_by(build, command, known):
    """The files that the programs and libraries of a test's command are made from."""
    made = set()
    for word in command:
        target = os.path.relpath(word, build) if os.path.isabs(word) else None
        if target is None or target.startswith("..") or not os.path.exists(word):
            continue
        if target not in known:
            asked = subprocess.run(["ninja", "-C", build, "-t", "inputs", target], capture_output=True, text=True, check=False)
            known[target] = set(asked.stdout.split())
        made |= known[target]
    return made


def reached_by_area(name, command, files):
    scripts = {os.path.relpath(word, ROOT) for word in command if word.startswith(ROOT) and word.endswith(".py")}
    if scripts & files:
        return True
    for file in files:
        area = next((tests for paths, tests in AREAS if re.search(paths, file)), ".")
        if area is not None and re.search(area, name):
            return True
    return False


def main():
    build, revision = os.path.abspath(sys.argv[1]), sys.argv[2]
    files = changed_files(revision)
    objects, known = changed_objects(build, files), {}
    tests = json.loads(run("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]
    reached = []
    for number, test in enumerate(tests, 1):
        command = test.get("command", [])
        is_unit = any("--gtest_filter" in word for word in command)
        made = built_by(build, command, known)
        if made & objects or (not is_unit and reached_by_area(test["name"], command, files)):
            reached.append(str(number))
    print(",".join(reached))


main()
