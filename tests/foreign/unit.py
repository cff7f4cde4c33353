"""What suites have in common: what each is asked for, and two ways to run one."""
import os
import re
import time

from world import HERE, LONG


class Base:
    """`name`; `packages` that it needs in the long form and in the short one; `wirings`; `not_bent`: why it has none over a
    port, if so. `run(world, names)` returns {test: verdict}, of the tests in `names` only, if it is not None."""
    here = HERE
    packages = ()
    wirings = ("preload", "local", "port")
    not_bent = None
    quick = None  # what of it belongs to the short form; nothing
    match = None  # of its programs or modules only those that this expression finds

    def matched(self, units):
        return [unit for unit in units if self.match is None or self.match.search(unit)]

    def prepare(self):
        """Fetches and builds what is not there yet."""


class Crashable(Base):
    """Modules of many tests in one process, which writes each one's verdict to a file as it comes. Where the process ends
    in the middle, or says nothing for `patience` seconds, the test it was in has crashed or hangs, and a process anew does
    the rest. What such a process said is in the world's log."""
    patience = 90
    left_out = ()
    restarts = 12

    def environment(self, world):
        return {}

    def of_module(self, module, name):
        return name.startswith(f"test.{module}.")

    def run(self, world, names=None):
        verdicts = {}
        for module in self.matched(self.modules if LONG else self.quick):
            chosen = None if names is None else [name for name in names if self.of_module(module, name)]
            if chosen is None or chosen:
                verdicts.update(self.run_module(world, module, chosen))
        return verdicts

    def run_module(self, world, module, chosen):
        done, results = {}, world.path("results")
        for _ in range(self.restarts):
            if os.path.exists(results):
                os.unlink(results)
            open(results, "w").close()
            world.note(f"== {module}")
            os.chmod(results, 0o666)
            lists = [self.write(world, "done", [*done, *self.left_out])] + ([self.write(world, "chosen", chosen)] if chosen is not None else [])
            status = world.run(self.command(world, results, module, *lists), env=self.environment(world).items(),
                               timeout=1800, quiet=self.patience, grows=results)
            begun = self.read(results, done)
            if begun is not None:
                done[begun] = "hung" if status is None else "crashed"
            elif status is not None:
                break
            else:
                done[f"test.{module}.end"] = "hung"  # all tests have ended, the process has not
                break
        return done

    @staticmethod
    def write(world, name, tests):
        with open(world.path(name), "w") as file:
            file.write("\n".join(tests))
        return world.path(name)

    @staticmethod
    def read(results, done):
        """Adds the verdicts to `done`; a test may have several, of which the worst counts. Returns the one without."""
        begun = None
        for line in open(results, errors="replace"):
            word, _, test = line.rstrip("\n").partition(" ")
            if word == "begins":
                begun = test
                continue
            if test == begun:
                begun = None
            if done.get(test) != "failed":
                done[test] = word
        return begun


class Programs(Base):
    """A process for each test, or for each file of tests. `tests`, set by prepare(): their names; the derived class says how
    one is run, `command`, and what it said of which tests, `verdicts`."""
    timeout = 120
    library = True
    in_front = None
    names = None  # while some are run again: which

    def environment(self, world):
        return {}

    def folder(self, world):
        """Where a test is run; nothing: the world's /tmp."""

    def unit_of(self, name):
        """The test that `command` is given for the sake of a name that `verdicts` returned."""
        return name

    def verdicts(self, test, status, said):
        return {test: by_status(status)}

    def run(self, world, names=None):
        self.names = names
        found, chosen = {}, None if names is None else {self.unit_of(name) for name in names}
        for test in self.matched(self.tests):
            if chosen is None or test in chosen:
                found.update(self.run_one(world, test))
        return found if names is None else {name: found[name] for name in names if name in found}

    def run_one(self, world, test):
        at, begun = world.note(f"== {test}"), time.monotonic()
        status = world.run(self.command(world, test), cwd=self.folder(world), timeout=self.timeout,
                           env=self.environment(world).items(), library=self.library or not world.bent, in_front=self.in_front)
        with open(world.log, errors="replace") as log:
            log.seek(at)
            said = log.read()
        world.note(f"-- status {status} after {time.monotonic() - begun:.1f} s")
        return self.verdicts(test, status, said)


def by_status(status):
    return {None: "hung", 0: "ok"}.get(status, "failed")


def tap(test, status, said):
    """A verdict for each line of the Test Anything Protocol, named by its number, and one for the whole."""
    found = {f"{test}:end": by_status(status)}
    for failed, number, rest in re.findall(r"^(not )?ok (\d+)\b(.*)", said, re.M):
        found[f"{test}:{number}"] = "skipped" if re.search(r"# *skip", rest, re.I) else "failed" if failed and "# TODO" not in rest else "ok"
    return found
