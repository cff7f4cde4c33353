"""Programs whose standard streams, or other streams of C's, become a connection: as the kernel's sockets would have it.
stdio_programs.py NAME...   (no name: lists them)"""
import shutil

from harness import Skip, check, free_port, run_named
from sides import leaves_nobody_to_ask, on

SCENARIOS = {}


def scenario(*wires):
    return on(SCENARIOS, *wires)


def needs(program):
    if shutil.which(program) is None:
        raise Skip(f"no {program}")
    return program


# The shell's own printf and echo write to C's stdout, over which it puts the connection meanwhile.
BASH = """
exec 3<>/dev/tcp/$1/$2
printf 'a %s and %d\\n' word 7 >&3
echo "a line" >&3
read -r answer <&3
echo "answer: $answer"
printf '%s\\n' {1..2000} >&3
type printf >&3
read -r -N 10 part <&3
read -r rest <&3
echo "part: $part, $rest"
exec 3>&- 3<&-
"""


def answers(side, *lines):
    """A server that takes one connection, answers, and says all that has come."""
    port = free_port()
    server = side.start_python("server", "answers_lines.py", side.address, port, *lines, until="ready")
    return server, port


def said(side, server):
    check(side.end(server) == 0, side.output(server))
    return [line for line in side.output(server).splitlines() if line.startswith("got ")]


@scenario("vhost", "virtio", "local", "veth")
@leaves_nobody_to_ask
def bash_writes_to_a_connection(side):
    server, port = answers(side, "first", "0123456789rest")
    out = side.run("client", needs("bash"), "-c", BASH, "bash", side.address, port)
    return out, said(side, server)


PERL = """
use IO::Socket::INET;
my $s = IO::Socket::INET->new("$ARGV[0]:$ARGV[1]") or die;
open(my $kept, ">&", \\*STDOUT);
open(STDOUT, ">&", $s); open(STDIN, "<&", $s); open(STDERR, ">&", $s);
$| = 1;
printf "a %s\\n", "line"; warn "a warning\\n"; print "x" x 20000, "\\n";
my $answer = <STDIN>;
print $kept "answer: $answer";
"""


@scenario("vhost", "local", "veth")
@leaves_nobody_to_ask
def perl_over_a_connection(side):
    server, port = answers(side, "first")
    out = side.run("client", needs("perl"), "-e", PERL, side.address, port)
    return out, said(side, server)


PYTHON = """
import ctypes, os, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
kept = os.dup(1)
for number in range(3):
    os.dup2(s.fileno(), number)
s.close()
print("by print()", flush=True)
libc = ctypes.CDLL(None)
libc.printf(b"by C's printf, %d\\n", 7)
libc.fflush(None)
print("to stderr", file=sys.stderr)
answer = input()
os.write(kept, b"answer: " + answer.encode() + b"\\n")
libc.puts(b"left in C's buffer")
"""


@scenario("vhost", "local", "veth")
@leaves_nobody_to_ask
def python_over_a_connection(side):
    server, port = answers(side, "first")
    with open(side.path("over.py"), "w") as file:
        file.write(PYTHON)
    out = side.run("client", "/usr/bin/python3", side.path("over.py"), side.address, port)
    return out, said(side, server)


@scenario("vhost", "virtio", "local", "veth")
@leaves_nobody_to_ask
def nuttcp(side):
    """Its server puts the connection of a client over its standard streams, and answers by printf()."""
    program, results = needs("nuttcp"), []
    for direction in ("-t", "-r"):
        port, data = free_port(), free_port()
        server = side.start("server", program, "-S", "-1", "-P", port)

        def ask():  # whoever connects only to see whether it listens, is its one client
            return side.run("client", program, direction, "-P", port, "-p", data, "-n", 64, "-l", 65536, side.address, expect=None)
        out = side.until(ask, "nuttcp's server answers")
        results.append(out.split()[:2])
        check(side.end(server) == 0, side.output(server))
    return results


run_named(SCENARIOS, "same on both sides")
