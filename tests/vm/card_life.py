"""What happens to a card while a program has it: its link, its removal, its addresses, frames of other lengths."""
from card import BULK, REDIS, SLEEPER, Card, long_form
from machine import GUEST
from harness import check, run_named

CASES = {}


def case(*cards, **options):
    """A case of each of these cards, in the long form."""
    def add(function):
        for card in cards:
            def run(card=card):
                long_form()
                with Card(card, **options) as guest:
                    function(guest)
            name = f"{function.__name__}_{card}" + ("_uio" if "driver" in options else "")
            CASES[name.replace("-", "_")] = run
        return function
    return add


@case("e1000e", "vmxnet3", "virtio")
def link_lost(guest):
    """The cable is pulled under load, and comes back: the connection goes on, and its bytes are whole."""
    guest.start_redis()
    moving = guest.start_asking("store", REDIS, BULK)
    guest.await_traffic(BULK // 10)
    guest.set_link(False)
    guest.await_why("link_down")
    check(moving.poll() is None, "the value had been moved before the link went")
    guest.set_link(True)
    check(guest.answer(moving)["same"], "the value came back as another one")
    check("link_down" not in guest.why(), "the link is up again")


@case("e1000e", "vmxnet3", driver="uio_pci_generic", slot=True)
@case("e1000e", "vmxnet3", "virtio", slot=True)
def removed(guest):
    """The card is pulled out under load, and put back: the kernel has it at once, the program says so, and the
    connection goes on with the card that comes, as it would on an interface of the kernel's."""
    guest.start_redis()
    moving = guest.start_asking("store", REDIS, BULK)
    guest.await_traffic(BULK // 10)
    guest.pull()
    guest.machine.until(lambda: not guest.is_there(), "the kernel has got the card", 30)
    guest.await_logged("redis", "the card has been taken from this process")
    guest.await_why("card_gone")
    check(moving.poll() is None, "the value had been moved before the card went")
    guest.plug()
    guest.await_logged("redis", "no driver has")
    guest.bind()
    guest.await_logged("redis", "the card is back")
    check(guest.answer(moving)["same"], "the value came back as another one")
    check("card_gone" not in guest.why(), "the card is back")
    check(guest.machine.logged("redis").count("has been taken") == 1, "it is said once")


@case("e1000e")
def unbound(guest):
    """The card is given to another driver while a program has it, and given back."""
    guest.start_redis()
    guest.machine.do(f"bind {guest.address} pci-stub || true")
    guest.await_why("card_gone")
    guest.bind()
    guest.await_logged("redis", "the card is back")
    guest.ask("trips", REDIS, 3, 0.1)


# QEMU has no slot for virtio's older form.
@case("virtio-legacy", driver="uio_pci_generic")
def dropped(guest):
    """The kernel takes a card out that is reached by I/O ports, and finds it again: its driver waits for no reset."""
    guest.start_redis()
    guest.machine.do(f"echo 1 >/sys/bus/pci/devices/{guest.address}/remove")
    guest.await_logged("redis", "the card has been taken from this process")
    guest.machine.do("echo 1 >/sys/bus/pci/rescan")
    guest.bind()
    guest.await_logged("redis", "the card is back")
    guest.ask("trips", REDIS, 3, 0.1)


@case("virtio-legacy", driver="uio_pci_generic")
@case("virtio")
def silent(guest):
    """A card that answers nothing on its control queue, because somebody keeps it from reaching memory: its driver would
    wait without end. The port does not open, the reason is said, and the next program has the card."""
    guest.machine.do(f"back mute /b/mute /sys/bus/pci/devices/{guest.address}/config")
    guest.start("redis", "redis-server", f"--bind {GUEST}", "--protected-mode no", "--save ''")
    guest.await_logged("redis", "the card has not answered its driver within 20 s", 120)
    guest.end("redis", "KILL")
    guest.end("mute", "KILL")
    guest.start_redis()
    guest.ask("trips", REDIS, 3, 0.1)


@case("e1000e", driver="uio_pci_generic")
@case("e1000e")
def chrooted(guest):
    """The program calls chroot(2), after which it sees nothing of the card in /sys: the card stays the program's."""
    guest.machine.do("mkdir /tmp/empty")
    guest.start_confined("/tmp/empty")
    guest.ask("trips", SLEEPER, 11, 0.5)  # longer than the port's looks at the card are apart
    check(guest.ask("echo", SLEEPER, BULK)["same"], "the bytes came back as other ones")
    check("taken" not in guest.machine.logged("confined"), "the card was given up")


JUMBO, OPTIONS = 9000, 12  # of TCP: the time stamps
HEADERS = 40


# Not vmxnet3: bulk into the guest stalls (docs/card.md).
@case("e1000e", "virtio")
def jumbo(guest):
    """BYPASS_MTU=9000: segments are that long both ways, and a value's bytes are whole."""
    guest.machine.set_mtu("tap0", JUMBO)
    guest.start_redis(before=f"BYPASS_MTU={JUMBO}")
    mss = guest.ask("mss", REDIS)["mss"]
    check(JUMBO - HEADERS - OPTIONS <= mss <= JUMBO - HEADERS, f"a segment has {mss} bytes")
    check(guest.ask("store", REDIS, BULK)["same"], "the value came back as another one")


@case("e1000e", "vmxnet3", "virtio")
def own_mac(guest):
    """BYPASS_MAC: the card takes frames to that address, and sends with it."""
    address = "52:54:00:aa:bb:cc"
    guest.start_redis(before=f"BYPASS_MAC={address}")
    check(guest.ask("store", REDIS, BULK)["same"], "the value came back as another one")
    told = guest.machine.run("outside", "/usr/sbin/ip", "neigh", "show", GUEST).decode()
    check(address in told, f"the neighbour is {told}")


if __name__ == "__main__":
    run_named(CASES, "lived")
