"""The runner itself: what it calls a difference, and that nothing of a run stays, also when it is killed."""
import os
import signal
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import compare  # noqa: E402
import unit  # noqa: E402
from run import SUITES  # noqa: E402

RUNNING = """
import sys
sys.path.insert(0, sys.argv[1])
import world
world.guardian.start()
with world.World("kernel") as side:
    print(side.dir, flush=True)
    side.run(["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
"""


def judged(entry, wiring, kernel, ours, complete=True):
    entries = [compare.parse("list:1", entry)] if entry else []
    return compare.judge(entries, wiring, compare.differing(kernel, ours), kernel.keys() | ours.keys(), complete)


class Judgement(unittest.TestCase):
    def test_the_same_verdicts_are_no_difference(self):
        self.assertEqual(judged(None, "local", {"a": {"ok"}, "b": {"failed"}}, {"a": "ok", "b": "failed"}), [])

    def test_a_verdict_that_the_kernel_gave_once_is_the_kernels(self):
        self.assertEqual(judged(None, "local", {"a": {"ok", "hung"}}, {"a": "hung"}), [])

    def test_a_difference_that_is_not_listed_fails(self):
        self.assertEqual(len(judged(None, "local", {"a": {"ok"}}, {"a": "failed"})), 1)

    def test_a_test_that_did_not_run_is_a_difference(self):
        self.assertEqual(len(judged(None, "local", {"a": {"ok"}}, {})), 1)

    def test_a_listed_difference_passes_in_its_wiring_only(self):
        for wiring, complaints in (("local", 0), ("port", 1)):
            self.assertEqual(len(judged("preload,local a | why", wiring, {"a": {"ok"}}, {"a": "failed"})), complaints)

    def test_a_listed_difference_that_is_gone_fails(self):
        self.assertEqual(len(judged("local a | why", "local", {"a": {"ok"}}, {"a": "ok"})), 1)

    def test_one_that_depends_on_a_race_may_be_gone(self):
        self.assertEqual(judged("local a sometimes | why", "local", {"a": {"ok"}}, {"a": "ok"}), [])

    def test_a_listed_test_that_there_is_not_fails_where_all_ran(self):
        for complete in (True, False):
            self.assertEqual(len(judged("local b | why", "local", {"a": {"ok"}}, {"a": "ok"}, complete)), complete)

    def test_a_line_without_an_argument_is_refused(self):
        for line in ("local a", "local a |", "local a b | why", "nowhere a | why"):
            with self.assertRaises(compare.Malformed):
                compare.parse("list:1", line)

    def test_each_list_can_be_read_and_belongs_to_a_suite(self):
        for name in os.listdir(os.path.join(HERE, "differences")):
            self.assertIn(name.removesuffix(".txt"), SUITES)
            compare.read_list(name.removesuffix(".txt"))


class Results(unittest.TestCase):
    def test_a_number_of_tap_is_a_test(self):
        said = "ok 1 - a\nnot ok 2 - b\nok 3 # skip c\nnot ok 4 # TODO d\n"
        self.assertEqual(unit.tap("t", 1, said), {"t:end": "failed", "t:1": "ok", "t:2": "failed", "t:3": "skipped", "t:4": "ok"})


class Traces(unittest.TestCase):
    @unittest.skipIf(os.geteuid() != 0, "only root makes network namespaces")
    def test_nothing_stays_of_a_run_that_was_killed(self):
        run = subprocess.Popen([sys.executable, "-c", RUNNING, HERE], stdout=subprocess.PIPE, text=True)
        folder = run.stdout.readline().strip()
        self.until(lambda: self.sleepers(folder) == 2)
        run.send_signal(signal.SIGKILL)
        run.wait()
        run.stdout.close()
        self.until(lambda: self.sleepers(folder) == 0 and not os.path.exists(folder))

    def until(self, condition, timeout=30):
        end = time.monotonic() + timeout
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    @staticmethod
    def sleepers(folder):
        count = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                count += os.readlink(f"/proc/{pid}/cwd").startswith(folder) and open(f"/proc/{pid}/comm").read() == "sleep\n"
            except OSError:
                pass  # it has ended
        return count


if __name__ == "__main__":
    unittest.main()
