"""Runs a module's unittest cases and writes each one's verdict to a file as it comes, so that a crash or a hang names its
test.   unittests.py RESULTS MODULE [SKIPPED_FILE|- [ONLY_FILE]]"""
import os
import sys
import unittest

results, module = sys.argv[1:3]
left_out = set(open(sys.argv[3]).read().split("\n")) if len(sys.argv) > 3 and sys.argv[3] != "-" else set()
only = set(open(sys.argv[4]).read().split("\n")) if len(sys.argv) > 4 else None
out = os.open(results, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
pid = os.getpid()


def note(word, test):
    if os.getpid() == pid:  # a test's forked child may come here, too
        os.write(out, f"{word} {test.id()}\n".encode())


class Notes(unittest.TextTestResult):
    def startTest(self, test):
        super().startTest(test)
        note("begins", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        note("ok", test)

    def addFailure(self, test, problem):
        super().addFailure(test, problem)
        note("failed", test)

    def addError(self, test, problem):
        super().addError(test, problem)
        note("failed", test)

    def addSubTest(self, test, part, problem):
        super().addSubTest(test, part, problem)
        if problem is not None:
            note("failed", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        note("skipped", test)

    def addExpectedFailure(self, test, problem):
        super().addExpectedFailure(test, problem)
        note("ok", test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        note("failed", test)


def wanted(suite):
    """The suite without what is left out; its nesting stays, as fixtures of classes and modules hang on it."""
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(wanted(test))
        elif test.id() not in left_out and (only is None or test.id() in only):
            kept.addTest(test)
    return kept


from test import support  # noqa: E402
from test.support.os_helper import temp_cwd  # noqa: E402

support.use_resources = ["network", "subprocess"]
sys.argv = sys.argv[:1]
with temp_cwd():
    try:
        cases = unittest.defaultTestLoader.loadTestsFromName(module)
    except unittest.SkipTest as reason:
        sys.exit(f"{module}: {reason}")
    unittest.TextTestRunner(resultclass=Notes, verbosity=2).run(wanted(cases))
