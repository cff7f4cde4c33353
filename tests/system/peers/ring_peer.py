"""One end of a connection in shared memory, written by hand: it says and writes what it is told, in any order. RingPeer
speaks as the guest of src/fastpath/shm/rendezvous/message.h, RingHost as the host. Told to an agent without the library."""
import fcntl
import mmap
import os
import socket
import struct

OPEN, CUT, RESUME, STOP = 0x316e706f73737962, 0x3174756373737962, 0x316d757373737962, 0x3170747373737962
WELCOME, PROOF, SEGMENT, READY, REFUSED = 1, 2, 3, 4, 5
TIMED_OUT = 4
FRONT, SIDE_BYTES = 4096, 384
PRODUCED, CONSUMED, RESUMED = 512, 640, 776  # of the guest's block


def message(kind, reason=0, number=-1):
    return struct.pack("<QHHHBxiI8x", 0x316c737361707962, 4, 32, kind, reason, number, 0)


def reach(call, path):
    """bind() or connect() of a path that may be longer than a socket's."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    call(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    os.close(folder)


def hear(channel, kind):
    packet, fds, _, _ = socket.recv_fds(channel, 64, 1)
    if len(packet) != 32 or struct.unpack_from("<H", packet, 12)[0] != kind:
        raise RuntimeError(f"instead of {kind}: {packet}")
    return fds


def hear_word(peer, kind):
    """The next word but wake-ups, which must be `kind`."""
    while len(packet := peer.channel.recv(64)) == 1:
        pass
    return struct.unpack("<QQ", packet)[0] == kind


class RingHost:
    """Waits at the name from the beginning on; meets whoever comes."""
    def __init__(self, name):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.name = name
        reach(self.listener.bind, name)
        self.listener.listen()

    def meet(self, tcp, ring=1 << 16):
        self.channel = self.listener.accept()[0]
        self.listener.close()
        os.unlink(self.name)
        self.channel.send(message(WELCOME, number=tcp.fileno()))
        hear(self.channel, PROOF)
        self.channel.send(message(PROOF))
        memory = os.memfd_create("bypass-connection", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, FRONT + 2 * ring)
        os.pwrite(memory, struct.pack("<QIIQQ", 0x316d687370796221, 3, SIDE_BYTES, ring, ring), 0)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        socket.send_fds(self.channel, [message(SEGMENT)], [memory])
        os.close(memory)

    def refuse_late(self):
        """The guest is ready, and the host's patience has ended just before."""
        hear(self.channel, READY)
        self.channel.send(message(REFUSED, TIMED_OUT))
        self.channel.close()


class RingPeer:
    def __init__(self, tcp, name):
        self.tcp, self.written, self.read = tcp, 0, 0
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reach(self.channel.connect, name)
        hear(self.channel, WELCOME)
        self.channel.send(message(PROOF, number=tcp.fileno()))
        hear(self.channel, PROOF)
        memory, = hear(self.channel, SEGMENT)
        self.memory = mmap.mmap(memory, 0)
        socket.close(memory)
        self.to_guest, self.to_host = struct.unpack_from("<QQ", self.memory, 16)
        self.channel.send(message(READY))

    def say(self, kind, count):
        self.channel.send(struct.pack("<QQ", kind, count))

    def resumes(self, count):
        """The first RESUME, also told to one that looks for it in the memory."""
        struct.pack_into("<I", self.memory, RESUMED, 2)
        self.say(RESUME, count)

    def put(self, data):
        """Into the ring that the host reads."""
        at = FRONT + self.to_guest
        for i in range(0, len(data)):
            self.memory[at + (self.written + i) % self.to_host] = data[i]
        self.written += len(data)
        struct.pack_into("<Q", self.memory, PRODUCED, self.written)

    def reset(self):
        """As the kernel ends a connection whose process was killed with bytes unread; its channel, too."""
        self.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tcp.close()
        self.channel.close()
