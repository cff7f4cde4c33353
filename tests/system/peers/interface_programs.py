"""interface_programs.py INTERFACE: how many programs hang at its ingress (TCX) and in its driver (XDP)."""
import ctypes
import socket
import struct
import sys

SYS_BPF, BPF_PROG_QUERY, BPF_XDP, BPF_TCX_INGRESS = 321, 16, 37, 46
libc = ctypes.CDLL(None, use_errno=True)


def count(attach_type):
    ids = (ctypes.c_uint32 * 64)()
    # target, attach type, flags of the query and (answered) of the programs, where the numbers go, how many
    attributes = bytearray(struct.pack("=IIIIQI", socket.if_nametoindex(sys.argv[1]), attach_type, 0, 0, ctypes.addressof(ids), 64))
    attributes += bytes(128 - len(attributes))
    buffer = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    if libc.syscall(SYS_BPF, BPF_PROG_QUERY, buffer, len(attributes)) != 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return struct.unpack_from("=I", attributes, 24)[0]


print("tcx", count(BPF_TCX_INGRESS))
