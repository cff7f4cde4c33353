"""Prints docs/verbs-trace.md (tools/verbs-trace-page).

    verbs_trace_page.py COMMAND FOLDER   COMMAND: the built `bypass`. FOLDER: for the wire and the traces"""
import collections
import json
import os
import socket
import subprocess
import sys
import time

COMMAND, FOLDER = sys.argv[1:3]
INTRO = """# Verbs, call by call

Read this to see what a verbs program does. `tools/verbs-trace-page --write` has made the page by `bypass verbs-trace`, with two
software devices over one wire. Numbers and times change from run to run. The two sides stand next to each other in the order of their
calls. A call that repeats says how often.

How to trace a program of your own: [rdma.md](rdma.md#which-verbs-a-program-calls).
"""
PROGRAMS = (
    ("ibv_rc_pingpong", ("-d", "soft0", "-g", "1", "-n", "3", "-s", "64", "-r", "10"), """
Two messages of 64 bytes cross three times, over a reliable connection. Each side registers memory, makes a completion queue and a
queue pair, and posts receive requests. Then they tell each other number, sequence number and GID over TCP, and change the queue pair
to RTR (ready to receive) and RTS (ready to send). The completion of a receive request says that the peer's message is there."""),
    ("ib_send_bw", ("-d", "soft0", "-x", "1", "-F", "-n", "20", "-s", "1024", "-t", "4", "-u", "18"), """
One side sends 20 messages of 1 KiB, four at a time. The receiver posts its requests beforehand, and posts one for each
that has completed."""),
)


def listens(port):
    """Whether somebody on this host listens at the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def trace(name, options):
    """Runs both sides. Returns the calls of each, as JSON objects."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ends = {}
    for role, kind, address in (("receiver", "vhost", "10.9.0.1/24"), ("sender", "virtio", "10.9.0.2/24")):
        environment = dict(os.environ, BYPASS_SOFT=f"{kind}:{FOLDER}/{name}", BYPASS_SOFT_ADDR=address)
        command = [COMMAND, "verbs-trace", "--json", "-o", f"{FOLDER}/{name}.{role}", "--", name, *options, "-p", str(port)]
        meeting_point = ["127.0.0.1"] if role == "sender" else []
        ends[role] = subprocess.Popen(command + meeting_point, env=environment, stdout=subprocess.DEVNULL)
        while role == "receiver" and not listens(port):
            if ends[role].poll() is not None:
                sys.exit(f"{name}: the receiver ended with {ends[role].returncode}")
            time.sleep(0.02)
    for role, end in ends.items():
        if end.wait(60) != 0:
            sys.exit(f"{name}: the {role} ended with {end.returncode}")
    return {role: together([json.loads(line) for line in open(f"{FOLDER}/{name}.{role}")]) for role in ends}


def together(calls):
    """The calls, those that equal the one before them as one."""
    kept = []
    for call in calls:
        same = ("verb", "arguments", "result", "told")
        if kept and [kept[-1].get(name) for name in same] == [call.get(name) for name in same]:
            kept[-1]["times"] += call["times"]
        else:
            kept.append(call)
    return kept


def told(call):
    """One call as a cell of the table: short, because two stand in a row."""
    def part(name, value):
        text = str(value)
        return text if text.startswith(f"{name} ") else f"{name} {text}"

    cell = f"**{call['verb'].removeprefix('ibv_')}**({', '.join(part(*each) for each in call['arguments'].items())})"
    if call.get("result", "0") != "0":
        cell += f" = {call['result']}"
    if call.get("told"):
        counts = collections.Counter(part(name.split("[")[0], value) for name, value in call["told"].items())
        cell += " → " + ", ".join(f"{text} × {count}" if count > 1 else text for text, count in counts.items())
    if call["times"] > 1:
        cell += f" × {call['times']}"
    return cell.replace("|", "\\|")


def is_empty_poll(call):
    return call["verb"] == "ibv_poll_cq" and call["result"] == "0"


def rows(calls):
    """The calls of both sides in the order of their beginning. Calls of the two sides within a millisecond share a row."""
    merged = sorted(((call["at_ns"], role, call) for role, each in calls.items() for call in each if not is_empty_poll(call)), key=lambda row: row[0])
    began, row, first = merged[0][0], {}, 0
    for at, role, call in merged:
        if role in row or row and at - first > 1_000_000:
            yield row
            row = {}
        if not row:
            row, first = {"at": f"{(at - began) / 1e6:.3f}"}, at
        row[role] = told(call)
    yield row


print(INTRO)
for name, options, text in PROGRAMS:
    print(f"## {name}\n{text}\n\n```\n{name} {' '.join(options)}\n```\n")
    print("Polls that find nothing are left out.\n\n| ms | sender | receiver |\n| --: | --- | --- |")
    for row in rows(trace(name, options)):
        print(f"| {row['at']} | {row.get('sender', '')} | {row.get('receiver', '')} |")
    print()
