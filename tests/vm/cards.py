"""Network cards as QEMU emulates them, in a guest: redis and a server that only sleeps, under libbypass on the card; their
client is the kernel's TCP outside."""
import json
import os
import sys

from machine import GUEST, HERE, Machine, tap_card
from harness import LONG, Skip, check, run_named

CASES = {}
REDIS, SLEEPER = 6379, 7
BULK = 100_000_000 if LONG else 5_000_000


class Card:
    """A guest with one card, given to a driver."""

    def __init__(self, card, driver="vfio-pci"):
        self.card, self.driver = card, driver
        self.machine = Machine(tap_card(card), iommu=driver == "vfio-pci")

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

    def start(self, name, *command):
        """A program under libbypass on the card, in the guest's background."""
        self.machine.do(f"back {name} on {self.address} {' '.join(command)}")

    def start_redis(self):
        self.start("redis", "redis-server", f"--bind {GUEST}", "--protected-mode no", "--save ''")
        self.wait(REDIS, "redis")

    def start_sleeper(self):
        """It has no timers of its own, and serves one connection."""
        self.start("sleeper", "/b/netbench", f"pingpong server {GUEST} {SLEEPER}", "--size 6")
        self.machine.until(lambda: "ready" in self.machine.logged("sleeper"), "netbench is ready", 30)

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

    def idle_cpu(self, name, seconds=2):
        """Of a sleeping program in the guest: percent of a core."""
        used = f"awk '{{print $14 + $15}}' /proc/$(cat /tmp/{name}.pid)/stat"
        before = int(self.machine.do(used))
        self.machine.do(f"sleep {seconds}")
        return (int(self.machine.do(used)) - before) / seconds  # a tick is 10 ms


def served(card, driver, interrupts):
    """What is asked of each card: redis answers, moves a value both ways, and wakes; a program without timers does so, too."""
    with Card(card, driver) as guest:
        guest.start_redis()
        moved = guest.ask("store", REDIS, BULK)
        woken = guest.ask("trips", REDIS, 21, 0.1)
        idle = guest.idle_cpu("redis")
        why = guest.machine.do("/b/bypass why")
        guest.end("redis")
        guest.start_sleeper()
        slept = guest.ask("trips", SLEEPER, 11, 0.3)
        print(json.dumps({"card": card, "driver": driver, "moved": moved, "redis": woken, "sleeper": slept, "idle": idle}))
        check(moved["same"], "the value came back as another one")
        check(not interrupts or "no_interrupts" not in why, f"interrupts do not come: {why}")


def opened_again():
    """A card whose program ends, is killed and begins again, and one that opens beside a wire: each finds a link."""
    if not LONG:
        raise Skip("only BYPASS_TEST_LONG=1 asks for it")
    with Card("e1000") as guest:
        for signal in ("TERM", "KILL", "TERM", "KILL"):
            guest.start_redis()
            guest.ask("trips", REDIS, 3, 0.1)
            guest.end("redis", signal)
        both = f"'BYPASS_PORT=vhost:/tmp/wire;pci:{guest.address}' 'BYPASS_ADDR=10.68.0.1/24;{GUEST}/24'"
        guest.start("redis", "env", both, "redis-server", f"--bind {GUEST}", "--protected-mode no", "--save ''")
        guest.wait(REDIS, "redis")
        guest.ask("trips", REDIS, 3, 0.1)


def case(card, driver="vfio-pci", interrupts=True, always=False):
    def run():
        if not LONG and not always:
            raise Skip("only BYPASS_TEST_LONG=1 asks for it")
        served(card, driver, interrupts)
    name = f"card_{card}" + ("" if driver == "vfio-pci" else f"_{driver}")
    CASES[name.replace("-", "_")] = run


case("e1000e", always=True)
for each in ("e1000", "vmxnet3", "virtio"):
    case(each)
# Without an IOMMU, as in most clouds. What uio's one interrupt does there differs from card to card.
for each in ("e1000e", "e1000", "vmxnet3", "virtio-legacy"):
    case(each, "uio_pci_generic", interrupts=False)
CASES["card_opened_again"] = opened_again

if __name__ == "__main__":
    run_named(CASES, "served")
