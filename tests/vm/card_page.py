"""The commands of docs/card.md, as they stand there, run in a fresh guest: a card is bound, redis is reached on it, and the
kernel has its card back."""
import os
import re
import shutil
import subprocess
import sys

from card import REDIS, long_form
from machine import HERE, Machine, tap_card
from harness import Skip, check, run_named

CASES = {}
PAGE = os.path.join(HERE, "..", "..", "docs", "card.md")
CARD, INTERFACE, OURS, GATEWAY = "0000:3b:00.0", "eth1", "192.0.2.10", "192.0.2.1"  # as the page names them
TOOL = "dpdk-devbind.py"
# Prints the files of the standard library that the tool loads.
LOADED = ("import runpy, sys\nsys.argv = ['tool', '--status-dev', 'net']\ntry: runpy.run_path(sys.argv.pop(), run_name='__main__')\n"
          "except (Exception, SystemExit): pass\n"
          "print(*{m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)}, sep='\\n')")


def case(function):
    def run():
        long_form()
        function()
    CASES[function.__name__] = run


def blocks():
    """The page's blocks of commands, each a list of lines."""
    with open(PAGE, encoding="utf-8") as file:
        return [found.strip().splitlines() for found in re.findall(r"^```\n(.*?)^```", file.read(), re.M | re.S)]


def block_with(word):
    """The one whose first lines have the word."""
    found = [lines for lines in blocks() if word in lines[0] or (len(lines) > 1 and word in lines[1])]
    check(len(found) == 1, f"{len(found)} blocks of docs/card.md begin with {word}")
    return found[0]


def tools():
    """What the page's commands call beyond busybox: the tool of DPDK's, Python with what the tool imports, lspci, and modprobe as a distribution has it."""
    if missing := [name for name in (TOOL, "lspci", "kmod") if shutil.which(name) is None]:
        raise Skip(f"{', '.join(missing)} not installed: apt-get install --no-install-recommends dpdk pciutils kmod")
    tool = shutil.which(TOOL)
    script = LOADED.replace("sys.argv.pop()", repr(tool))
    told = subprocess.run(["/usr/bin/python3", "-c", script], capture_output=True, text=True, check=True).stdout
    files = sorted({name for name in told.splitlines() if name.startswith("/usr/lib/") and os.path.exists(name)})
    return [tool, shutil.which("lspci"), shutil.which("kmod"), os.path.realpath("/usr/bin/python3"), *files]


class Fresh(Machine):
    """A guest in which nothing is bound: the kernel's driver has the card."""

    def __init__(self, iommu=True):
        self.programs = tools()
        super().__init__(tap_card("e1000e"), iommu=iommu)

    def build(self):
        super().build()
        self.do("export PATH=/b:$PATH; ln -sf $(ls /usr/bin/python3.* | head -1) /usr/bin/python3")
        # As a distribution has them. busybox's modprobe knows no soft dependencies.
        self.do("for name in modprobe depmod; do ln -sf $(command -v kmod) /usr/sbin/$name; done")
        self.do("mkdir -p /lib/modules/$(uname -r); ln -s /modules/*.ko /lib/modules/$(uname -r); /usr/sbin/depmod")
        self.do("modprobe() { /usr/sbin/modprobe \"$@\"; }")
        self.do("load e1000e")
        self.address = self.do("cards").strip()
        self.until(lambda: self.run_in("[ -e /sys/class/net/eth0 ]")[0] == 0, "the kernel's interface", 30)
        self.address_outside(f"{GATEWAY}/24")

    def page(self, line):
        """A line of the page's, with this machine's names in it."""
        return line.split("#")[0].strip().replace(CARD, self.address).replace(INTERFACE, "eth0")

    def follow(self, lines):
        for line in lines:
            self.do(self.page(line))

    def driver(self):
        return self.do(f"basename $(readlink /sys/bus/pci/devices/{self.address}/driver)").strip()

    def serves(self, line):
        """The page's redis is reached."""
        self.do(f"back redis {self.page(line)}")
        ask = os.path.join(HERE, "peers", "ask.py")
        try:
            self.run("outside", "/usr/bin/python3", ask, "wait", OURS, REDIS, 60, timeout=90)
        except BaseException:
            print(f"--- redis\n{self.logged('redis')}\n{self.run_in('lsmod; ls -l /dev/vfio; dmesg | tail')[1]}", file=sys.stderr)
            raise
        self.do("end redis; true")

    def kernel_has_it(self):
        self.do(f"ip addr add {OURS}/24 dev eth0")
        self.until(lambda: self.run_in(f"ping -c 1 -W 1 {GATEWAY}")[0] == 0, "the kernel's interface carries frames", 30)


@case
def page_vfio():
    """By the tool, and back; then by /sys, and back."""
    with Fresh() as guest:
        *steps, run = block_with("modprobe vfio-pci")
        guest.follow(steps)
        check(guest.driver() == "vfio-pci", guest.driver())
        guest.serves(run)
        guest.follow(block_with(f"{TOOL} --bind=e1000e"))
        guest.kernel_has_it()
        guest.do("ip link set eth0 down")
        override, *again = block_with("driver_override")
        guest.follow([override, *again])
        check(guest.driver() == "vfio-pci", guest.driver())
        guest.serves(run)
        guest.follow([re.sub(r"echo \S+", "echo", override), *again])
        guest.until(lambda: guest.driver() == "e1000e", "the kernel's driver", 30)


@case
def page_uio():
    """Without an IOMMU."""
    with Fresh(iommu=False) as guest:
        run = block_with("modprobe vfio-pci")[-1]
        guest.do("ip link set eth0 down")
        guest.follow(block_with("modprobe uio_pci_generic"))
        check(guest.driver() == "uio_pci_generic", guest.driver())
        guest.serves(run)
        guest.follow(block_with(f"{TOOL} --bind=e1000e"))
        guest.kernel_has_it()


if __name__ == "__main__":
    run_named(CASES, "followed")
