"""Network cards as QEMU emulates them, in a guest: redis and a server that only sleeps, under libbypass on the card; their
client is the kernel's TCP outside."""
import json

from card import BULK, REDIS, SLEEPER, Card, long_form
from machine import GUEST
from harness import check, run_named

CASES = {}


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
    long_form()
    with Card("e1000") as guest:
        for signal in ("TERM", "KILL", "TERM", "KILL"):
            guest.start_redis()
            guest.ask("trips", REDIS, 3, 0.1)
            guest.end("redis", signal)
        both = f"'BYPASS_PORT=vhost:/tmp/wire;pci:{guest.address}' 'BYPASS_ADDR=10.68.0.1/24;{GUEST}/24'"
        guest.start("redis", "env", both, "redis-server", f"--bind {GUEST}", "--protected-mode no", "--save ''")
        guest.wait(REDIS, "redis")
        guest.ask("trips", REDIS, 3, 0.1)


# Wake-ups a second of the library's threads, with an interrupt that comes (docs/card.md).
ASLEEP, BESIDE_TIMERS = 40, 80


def idle(card, driver="vfio-pci"):
    """What an idle program costs beyond itself: a server that sleeps on a connection, and redis with its ten timers a second.
    The counts fall to this within seconds after the last frame."""
    long_form()
    with Card(card, driver) as guest:
        guest.start_sleeper()
        begun = guest.carried()
        asking = guest.start_asking("trips", SLEEPER, 1, 30)
        guest.machine.until(lambda: guest.carried() > begun, "the connection", 30)
        seen = []
        guest.machine.until(lambda: seen.append(guest.wake_ups("sleeper")) or seen[-1] <= ASLEEP, f"{ASLEEP} wake-ups a second", 50)
        guest.answer(asking)
        guest.start_redis()
        guest.ask("trips", REDIS, 11, 0.1)
        beside = []
        guest.machine.until(lambda: beside.append(guest.wake_ups("redis")) or beside[-1] <= BESIDE_TIMERS,
                            f"{BESIDE_TIMERS} wake-ups a second", 50)
        print(json.dumps({"card": card, "driver": driver, "wake-ups a second": {"sleeper": seen, "redis": beside}}))


def ports_of_the_machine():
    """A card that is reached by I/O ports gives nobody the machine's ports: not the program, a thread, a child or a program
    that it starts. It serves on when the program has given root up."""
    with Card("virtio-legacy", "uio_pci_generic") as guest:
        guest.start("ports", "/b/io_ports", f"{GUEST} {SLEEPER}")
        guest.await_logged("ports", "ready")
        said = guest.machine.logged("ports")
        check(" may\n" not in said and said.count("may not") == 6, f"I/O ports may be used: {said}")
        guest.ask("trips", SLEEPER, 5, 0.1)


# More than the buffers that a port begins with can hold.
UNREAD = 3_000_000


def without_root(card, driver):
    """The program has given root up before the card has to take in more than its first buffers hold. On physical addresses
    no more can be made by then, as the kernel hides them."""
    long_form()
    with Card(card, driver) as guest:
        guest.start_confined("nobody", UNREAD)
        check(guest.ask("echo", SLEEPER, 2 * UNREAD)["same"], "the bytes came back as other ones")


def case(card, driver="vfio-pci", interrupts=True, always=False):
    def run():
        if not always:
            long_form()
        served(card, driver, interrupts)
    name = f"card_{card}" + ("" if driver == "vfio-pci" else f"_{driver}")
    CASES[name.replace("-", "_")] = run


case("e1000e", always=True)
for each in ("e1000", "vmxnet3", "virtio"):
    case(each)
# Without an IOMMU, as in most clouds. What uio's one interrupt does there differs from card to card.
for each in ("e1000e", "e1000", "vmxnet3", "virtio-legacy"):
    case(each, "uio_pci_generic", interrupts=False)
for each in ("vfio-pci", "uio_pci_generic"):
    CASES[f"card_without_root_{each}".replace("-", "_")] = lambda driver=each: without_root("e1000e", driver)
CASES["card_opened_again"] = opened_again
for each in ("e1000e", "e1000", "vmxnet3", "virtio"):
    CASES[f"card_idle_{each}"] = lambda card=each: idle(card)
CASES["card_io_ports"] = ports_of_the_machine

if __name__ == "__main__":
    run_named(CASES, "served")
