#!/usr/bin/env python3
"""Runs other projects' test suites on the kernel and under the library, and compares them test by test.

    run.py [SUITE...]             each in its short form; without a name: all
      --long                      all of each suite (also: BYPASS_TEST_LONG=1)
      --wirings preload,local     not all of them
      --match REGEX               of a suite's programs or modules only these
      --list                      the suites' names

FOREIGN_CACHE is the folder for what is fetched and built ($XDG_CACHE_HOME/bypass-foreign), with each run's words
in logs/. FOREIGN_SOURCES is the folder with those sources that are not downloaded. See README.md."""
import argparse
import importlib
import os
import re
import signal
import sys
import time

if __name__ == "__main__" and "--long" in sys.argv:
    os.environ["BYPASS_TEST_LONG"] = "1"

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "suites")]

import compare  # noqa: E402
import sources  # noqa: E402
from world import JUDGE, LONG, Failure, Skip, World, guardian, take_library  # noqa: E402

SUITES = sorted(name[:-3] for name in os.listdir(os.path.join(HERE, "suites")) if name.endswith(".py"))
TRIES = 3  # of a difference that is not listed, and of a listed one that is not seen


class Comparison:
    """One suite's results: for each wiring of the kernel's the set of verdicts that each test has had there, for each of
    ours the last verdict that was not the kernel's."""

    def __init__(self, suite, match):
        self.suite, self.match = suite, match
        suite.match = match
        self.entries = compare.read_list(suite.name)
        self.kernels, self.seen, self.ran = {}, {}, {}

    def run(self, wiring, names=None):
        begun = time.monotonic()
        with World(wiring, keeps=[sources.cache()]) as world:
            world.log = sources.log(self.suite.name, wiring, anew=names is None)
            verdicts = self.suite.run(world, names)
            if "cannot be preloaded" in open(world.log, errors="replace").read():
                raise Failure(f"{wiring}: a program did not get the library: {world.log}")
        counts = {word: list(verdicts.values()).count(word) for word in sorted(set(verdicts.values()))}
        print(f"  {wiring}: {', '.join(f'{count} {word}' for word, count in counts.items()) or 'no test'}"
              f" in {time.monotonic() - begun:.0f} s", flush=True)
        return verdicts

    def kernel(self, wiring, names=None):
        known = self.kernels.setdefault(wiring, {})
        got = self.run(wiring, names)
        for test in got.keys() | set(names or ()):
            known.setdefault(test, set()).add(got.get(test, "missing"))
        return known

    def wiring(self, wiring):
        """The complaints about one wiring, after what is doubtful has been run again."""
        judge = JUDGE[wiring]
        expected = self.kernels.get(judge) or self.kernel(judge)
        if sum("ok" in verdicts for verdicts in expected.values()) * 2 < len(expected):
            return [f"{judge}: most of its tests do not pass on the kernel either, and so show nothing"]
        got = self.run(wiring)
        ran = expected.keys() | got.keys()
        seen = compare.differing(expected, got)
        for _ in range(TRIES - 1):
            doubtful = self.doubtful(wiring, seen, ran)
            if not doubtful:
                break
            self.kernel(judge, doubtful)
            again = self.run(wiring, doubtful)
            for test in doubtful:
                verdict = again.get(test, "missing")
                if verdict in expected.get(test, ()):
                    if not self.listed(wiring, test):
                        seen.pop(test, None)
                else:
                    seen[test] = (sorted(expected.get(test, {"missing"})), verdict)
        for test, (kernel, ours) in sorted(seen.items()):
            print(f"    {test}: {'/'.join(kernel)} > {ours}{'' if self.listed(wiring, test) else '  NOT LISTED'}")
        return compare.judge(self.entries, wiring, seen, ran, LONG and not self.match)

    def listed(self, wiring, test):
        return [entry for entry in self.entries if entry.names(wiring, test)]

    def doubtful(self, wiring, seen, ran):
        """Differences that are not listed, and tests whose listed difference was not seen."""
        unlisted = {test for test in seen if not self.listed(wiring, test)}
        unseen = {test for test in ran - seen.keys()
                  for entry in self.listed(wiring, test) if not entry.sometimes and not any(entry.names(wiring, s) for s in seen)}
        return sorted(unlisted | unseen)


WHERE = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
client = socket.create_connection(server.getsockname())
loaded = "libbypass.so" in open("/proc/self/maps").read()
kernels = f":{server.getsockname()[1]:04X} " in open("/proc/net/tcp").read()
sys.exit((loaded, kernels) != (sys.argv[2] == "True", sys.argv[3] == "True"))
"""


def check_wiring(wiring):
    """Whether programs run under the library in it, and whether their connections are the kernel's: what a suite finds
    elsewhere would prove nothing."""
    with World(wiring, keeps=[sources.cache()]) as world:
        words = ["/usr/bin/python3", "-c", WHERE, world.address, world.settings is not None, wiring != "port"]
        if world.run(words, timeout=60) != 0:
            raise Failure(f"{wiring} is not what it says: {open(world.log).read()[-500:]}")


def run_suite(name, wirings, match):
    """The complaints about a suite; raises Skip where it cannot run here."""
    suite = importlib.import_module(name).Suite()
    if not LONG and suite.quick is None:
        raise Skip("it has no short form: --long runs it")
    if LONG:
        sources.install(*suite.packages)
    suite.prepare()
    print(f"{name}:", flush=True)
    comparison, said = Comparison(suite, match), []
    for wiring in suite.wirings:
        if wiring in wirings:
            check_wiring(wiring)
            said += comparison.wiring(wiring)
    if "port" not in suite.wirings:
        print(f"  port: left out: {suite.not_bent}")
    return said


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("suites", nargs="*", metavar="SUITE")
    asked.add_argument("--long", action="store_true")
    asked.add_argument("--list", action="store_true")
    asked.add_argument("--wirings", default=",".join(JUDGE))
    asked.add_argument("--match", type=re.compile)
    asked = asked.parse_args()
    if asked.list:
        return print("\n".join(SUITES))
    wirings = asked.wirings.split(",")
    if unknown := (set(asked.suites) - set(SUITES)) | (set(wirings) - set(JUDGE)):
        sys.exit(f"there is no suite or wiring {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what a run has made goes with it
    guardian.start()
    take_library()
    said, skipped = [], 0
    for name in asked.suites or SUITES:
        try:
            said += [f"{name}: {text}" for text in run_suite(name, wirings, asked.match)]
        except Skip as reason:
            skipped += 1
            print(f"{name}: skipped, {reason}")
        except (Failure, compare.Malformed) as fault:
            said.append(f"{name}: {fault}")
    print("\n".join(said) or "no difference but those listed", flush=True)
    sys.exit(1 if said else 77 if skipped == len(asked.suites or SUITES) else 0)


if __name__ == "__main__":
    main()
