"""A guest for a person (tools/vm): try.py card CARD [DRIVER], try.py shell [CARD]."""
import os
import sys
import tempfile

from card import REDIS, Card
from machine import CARDS, GUEST, command, made
from harness import Skip, guardian


def card(name, driver="vfio-pci"):
    with Card(name, driver) as guest:
        guest.start_redis()
        namespace = guest.machine.namespaces["outside"]
        print(f"redis runs on {name} ({driver}, {guest.address}) {guest.machine.do('cat /proc/uptime').split()[0]} s after power-on.")
        print(f"Ask it: ip netns exec {namespace} redis-cli -h {GUEST} -p {REDIS} ping")
        print("A line here is the guest's shell's; the end of input or Ctrl-C ends it.")
        for line in sys.stdin:
            if line.strip():
                print(guest.machine.run_in(line.strip(), 600)[1], end="", flush=True)


def shell(name=None):
    with tempfile.TemporaryDirectory() as folder:
        archive = os.path.join(folder, "root.cpio")
        kernel = made(archive)
        devices = ["-netdev", "user,id=n0", "-device", f"{CARDS[name]},netdev=n0,romfile="] if name else []
        words = command(kernel, archive, devices, words="shell")
        os.spawnvp(os.P_WAIT, words[0], [*words, "-serial", "mon:stdio"])


def main():
    what, names = sys.argv[1], sys.argv[2:]
    if names and names[0] not in CARDS:
        raise SystemExit(f"there is no card {names[0]}; accepted are {', '.join(CARDS)}")
    guardian.start()
    try:
        {"card": card, "shell": shell}[what](*(names or (["e1000e"] if what == "card" else [])))
    except Skip as reason:
        raise SystemExit(str(reason)) from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
