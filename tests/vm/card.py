"""A guest with one card, and a program of the guest's on it."""
import json
import os
import re
import sys

from machine import GUEST, HERE, Machine, card_words, tap_card
from harness import LONG, Skip, check

REDIS, SLEEPER = 6379, 7
BULK = 100_000_000 if LONG else 5_000_000


def long_form():
    if not LONG:
        raise Skip("only BYPASS_TEST_LONG=1 asks for it")


class Card:
    """A guest with one card, given to a driver."""

    def __init__(self, card, driver="vfio-pci", slot=False):
        """With a slot the card can be pulled out (`pull`)."""
        self.card, self.driver = card, driver
        self.machine = Machine(tap_card(card, slot=slot), iommu=driver == "vfio-pci")

    def __enter__(self):
        self.machine.__enter__()
        self.bind()
        return self

    def __exit__(self, *error):
        self.machine.__exit__(*error)

    def bind(self):
        self.machine.do("huge 100")
        for module in ("vfio-pci", "vfio_iommu_type1") if self.driver == "vfio-pci" else (self.driver,):
            self.machine.do(f"load {module}")
        self.address = self.machine.do("cards").strip()
        self.machine.do(f"bind {self.address} {self.driver}")

    def start(self, name, *command, before=""):
        """A program under libbypass on the card, in the guest's background; `before`: NAME=VALUE words."""
        self.machine.do(f"{before} back {name} on {self.address} {' '.join(command)}")

    def start_redis(self, before=""):
        self.start("redis", "redis-server", f"--bind {GUEST}", "--protected-mode no", "--save ''", before=before)
        self.wait(REDIS, "redis")

    def start_sleeper(self):
        """It has no timers of its own, and serves one connection."""
        self.start("sleeper", "/b/netbench", f"pingpong server {GUEST} {SLEEPER}", "--size 6")
        self.machine.until(lambda: "ready" in self.machine.logged("sleeper"), "netbench is ready", 30)

    def start_confined(self, how, unread=0):
        """A server that confines itself once it listens (peers/confined.c), and lets so many bytes wait at first."""
        self.start("confined", "/b/confined", f"{how} {unread} {GUEST} {SLEEPER}")
        self.await_logged("confined", "ready")

    def end(self, name, signal="TERM"):
        self.machine.run_in(f"end {name} {signal}")

    def wait(self, port, name):
        try:
            self.ask("wait", port, 60)
        except BaseException:
            print(f"--- {name}\n{self.machine.logged(name)}", file=sys.stderr)
            raise

    def ask(self, what, port, *words, timeout=300):
        script = os.path.join(HERE, "peers", "ask.py")
        return json.loads(self.machine.run("outside", "/usr/bin/python3", script, what, GUEST, port, *words, timeout=timeout))

    def start_asking(self, what, port, *words):
        """The same in the background; the answer is the last line of its output."""
        script = os.path.join(HERE, "peers", "ask.py")
        return self.machine.start("outside", "/usr/bin/python3", script, what, GUEST, port, *words)

    def answer(self, child, timeout=300):
        self.machine.until(lambda: child.poll() is not None, "the client's end", timeout)
        check(child.returncode == 0, f"the client: {self.machine.output(child)}")
        return json.loads(self.machine.output(child).splitlines()[-1])

    def carried(self):
        """Bytes that the card's other end has carried, both ways."""
        told = self.machine.run("outside", "/usr/bin/cat", "/proc/thread-self/net/dev").decode()
        words = re.search(r"tap0:(.*)", told).group(1).split()
        return int(words[0]) + int(words[8])

    def await_traffic(self, count):
        begun = self.carried()
        self.machine.until(lambda: self.carried() > begun + count, f"{count} bytes on the wire", 60)

    def await_logged(self, name, word, timeout=30):
        self.machine.until(lambda: word in self.machine.logged(name), f"{name} says: {word}", timeout)

    def why(self):
        return self.machine.do("/b/bypass why")

    def await_why(self, word, timeout=30):
        self.machine.until(lambda: word in self.why(), f"`bypass why` names {word}", timeout)

    def is_there(self):
        return self.machine.run_in(f"[ -e /sys/bus/pci/devices/{self.address} ]")[0] == 0

    def pull(self):
        self.machine.monitor("device_del card0")

    def plug(self):
        self.machine.monitor(f"device_add {','.join(card_words(self.card, slot=True))}")
        self.machine.until(self.is_there, "the card is there again", 30)

    def set_link(self, on):
        self.machine.monitor(f"set_link card0 {'on' if on else 'off'}")

    def wake_ups(self, name, seconds=5):
        """How often a second the library's threads of a program wake by themselves or are woken: a number that does not
        depend on how fast the guest is."""
        count = (f"for t in /proc/$(cat /tmp/{name}.pid)/task/*; do grep -qE '^(bypass|eal)' $t/comm && "
                 "awk '/^voluntary/ {print $2}' $t/status; done | awk '{n += $1} END {print n}'")
        before = int(self.machine.do(count))
        self.machine.do(f"sleep {seconds}")
        return (int(self.machine.do(count)) - before) / seconds

    def idle_cpu(self, name, seconds=2):
        """Of a sleeping program in the guest: percent of a core."""
        used = f"awk '{{print $14 + $15}}' /proc/$(cat /tmp/{name}.pid)/stat"  # of all its threads
        before = int(self.machine.do(used))
        self.machine.do(f"sleep {seconds}")
        return (int(self.machine.do(used)) - before) / seconds  # a tick is 10 ms
