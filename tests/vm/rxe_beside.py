"""soft0 beside Linux's rdma_rxe: the same verbs programs between the same two guests, first on the one, then on the other.
rxe_beside.py latency|bandwidth   prints a JSON object: latency in ns, bandwidth in MiB/s

For tools/bench. soft0 is on the interface that rxe0 is on (af_packet), with an address of its own. The guests have no KVM:
each instruction costs many times what it costs outside, and a busy guest takes the other one's processor."""
import json
import re
import sys

from joined_guests import ADDRESSES, Joined
from harness import PERFTEST, Failure, Skip, check, free_port, guardian

SOFT = {"server": "10.66.0.11", "client": "10.66.0.12"}
FORMS = {
    # Column of the output: the typical time in us; the average in MiB/s.
    "latency": (("ib_send_lat", "-s", 64, "-n", 200), 4, 1e3),
    "bandwidth": (("ib_write_bw", "-s", 65536, "-n", 100), 3, 1),
}


class Guest(Joined):
    built = ("libbypass-softverbs.so", "libbypass-packet.so", "libbypass-toml.so")
    card, driver = "virtio-net-pci", "virtio_net"

    def on(self, device):
        """Words in front of a program that make that device its first."""
        if device == "rxe0":
            return ()
        return ("env", "LD_PRELOAD=/b/libbypass-softverbs.so", "BYPASS_SOFT=af_packet:eth0", f"BYPASS_ADDR={SOFT[self.role]}/24")


def figure(said, column):
    found = re.search(r"^ \d+ +\d+ +[\d.]+.*", said, re.M)
    check(found, said)
    return float(found.group(0).split()[column])


def measure(server, client, device, form):
    """One run of the program between the guests."""
    command, column, unit = FORMS[form]
    port = free_port()
    words = (command[0], "-d", device, *PERFTEST, *command[1:], "-p", port)
    child = server.start_program(*server.on(device), *words, timeout=100)
    try:
        server.await_port(port)
        code, said = client.run_in(" ".join(map(str, ("timeout", "-s", "KILL", 90, *client.on(device), *words, ADDRESSES["server"]))), 100)
        check(code == 0, f"exit {code}: {said}")
    finally:
        server.kill_program(child)
    return figure(said, column) * unit


def measure_again(server, client, device, form):
    """rxe of Linux 6.1 may stand still for ever after it has repeated something: docs/roce.md."""
    for attempt in range(4):
        repeated = sum(guest.counter("completer_retry_err") for guest in (server, client))
        try:
            return measure(server, client, device, form)
        except Failure:
            if device != "rxe0" or attempt == 3 or sum(guest.counter("completer_retry_err") for guest in (server, client)) == repeated:
                raise


def beside(form):
    with Guest("server") as server, Guest("client", server) as client:
        figures = {device: measure_again(server, client, device, form) for device in ("soft0", "rxe0")}
    command, column, unit = FORMS[form]
    # The program, and how its output is read, for a run elsewhere.
    return {**figures, "words": [str(word) for word in (command[0], "-d", "soft0", *PERFTEST, *command[1:])], "column": column, "unit": unit}


if __name__ == "__main__":
    if sys.argv[1:] not in ([form] for form in FORMS):
        raise SystemExit(f"usage: rxe_beside.py {'|'.join(FORMS)}")
    guardian.start()
    try:
        print(json.dumps(beside(sys.argv[1])))
    except (Skip, Failure) as reason:
        raise SystemExit(str(reason)) from None
