"""What may differ from the kernel's run, and the judgement of a suite's results against it."""
import os

from world import HERE, JUDGE


class Listed:
    """A line of differences/SUITE.txt:   WIRING[,WIRING] TEST [sometimes] | ARGUMENT
    `sometimes`: the difference depends on a race; the argument says on whose side. TEST may end in *: each test beginning so
    may differ, and one at least must."""

    def __init__(self, line, wirings, test, sometimes, argument):
        self.line, self.wirings, self.test, self.sometimes, self.argument = line, wirings, test, sometimes, argument

    def names(self, wiring, test):
        same = test.startswith(self.test[:-1]) if self.test.endswith("*") else test == self.test
        return wiring in self.wirings and same


class Malformed(Exception):
    pass


def read_list(suite, folder=os.path.join(HERE, "differences")):
    path = os.path.join(folder, f"{suite}.txt")
    if not os.path.exists(path):
        return []
    return [entry for number, line in enumerate(open(path), 1) if (entry := parse(f"{path}:{number}", line.strip()))]


def parse(where, line):
    if not line or line.startswith("#"):
        return None
    left, bar, argument = line.partition("|")
    words = left.split()
    if not bar or not argument.strip() or len(words) not in (2, 3) or words[2:] not in ([], ["sometimes"]):
        raise Malformed(f"{where}: is not 'WIRING[,WIRING] TEST [sometimes] | ARGUMENT': {line}")
    wirings = words[0].split(",")
    if unknown := set(wirings) - set(JUDGE):
        raise Malformed(f"{where}: no such wiring: {', '.join(unknown)}")
    return Listed(line, wirings, words[1], len(words) == 3, argument.strip())


def differing(expected, got):
    """{test: (the kernel's verdicts, ours)}; a verdict that the kernel has given once is the kernel's. `expected` has a set
    of verdicts for each test. Where the kernel skips or fails, whatever we do proves nothing worse unless it passes
    elsewhere: it still counts, for a pass that the kernel has not is a difference in behaviour, too."""
    return {test: (sorted(expected.get(test, {"missing"})), got.get(test, "missing"))
            for test in expected.keys() | got.keys() if got.get(test, "missing") not in expected.get(test, {"missing"})}


def judge(entries, wiring, seen, run_tests, complete):
    """`seen`: what differed, by test. Returns complaints: differences that are not listed, and listed ones that are not
    seen, of the tests that ran; with `complete`, where all of the suite ran, also those that name no test at all."""
    said = []
    for test, (kernel, ours) in sorted(seen.items()):
        if not any(entry.names(wiring, test) for entry in entries):
            said.append(f"{wiring} {test}: the kernel's is {'/'.join(kernel)}, ours {ours}")
    for entry in entries:
        if wiring not in entry.wirings:
            continue
        ran = [test for test in run_tests if entry.names(wiring, test)]
        if not ran and complete:
            said.append(f"{wiring} {entry.test}: is listed, and there is no such test")
        elif ran and not entry.sometimes and not any(entry.names(wiring, test) for test in seen):
            said.append(f"{wiring} {entry.test}: is listed as a difference, and does not differ: take it off the list")
    return said
