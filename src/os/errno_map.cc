#include "os/errno_map.h"

#include <cerrno>

namespace bypass::socket {

namespace {

int number_of(Error cause) {
  switch (cause) {
    case Error::kNone:
      return 0;
    case Error::kWouldBlock:
      return EAGAIN;
    case Error::kInProgress:
      return EINPROGRESS;
    case Error::kAlready:
      return EALREADY;
    case Error::kIsConnected:
      return EISCONN;
    case Error::kNotConnected:
      return ENOTCONN;
    case Error::kInvalid:
      return EINVAL;
    case Error::kAddressInUse:
      return EADDRINUSE;
    case Error::kAddressNotAvailable:
      return EADDRNOTAVAIL;
    case Error::kNoRoute:
      return ENETUNREACH;
    case Error::kHostUnreachable:
      return EHOSTUNREACH;
    case Error::kNetUnreachable:
      return ENETUNREACH;
    case Error::kRefused:
      return ECONNREFUSED;
    case Error::kReset:
      return ECONNRESET;
    case Error::kAborted:
      return ECONNABORTED;
    case Error::kTimedOut:
      return ETIMEDOUT;
    case Error::kBrokenPipe:
      return EPIPE;
    case Error::kMessageTooLarge:
      return EMSGSIZE;
    case Error::kNoMemory:
      return ENOMEM;
    case Error::kNotSupported:
      return EOPNOTSUPP;
    case Error::kInterrupted:
      return EINTR;
    case Error::kFault:
      return EFAULT;
    case Error::kAccess:
      return EACCES;
    case Error::kProtocol:
      return EPROTO;
  }
  return EIO;
}

int number_of(Refusal cause) {
  switch (cause) {
    case Refusal::kBadDescriptor:
      return EBADF;
    case Refusal::kExists:
      return EEXIST;
    case Refusal::kNotThere:
      return ENOENT;
    case Refusal::kLoop:
      return ELOOP;
    case Refusal::kNoOption:
      return ENOPROTOOPT;
    case Refusal::kOutOfRange:
      return ERANGE;
    case Refusal::kDomain:
      return EDOM;
    case Refusal::kFamily:
      return EAFNOSUPPORT;
    case Refusal::kNoDestination:
      return EDESTADDRREQ;
    case Refusal::kNotPermitted:
      return EPERM;
    case Refusal::kNoBuffers:
      return ENOBUFS;
    case Refusal::kBadPointer:
      return EFAULT;
    case Refusal::kNoSuchName:
      return ENOENT;
  }
  return EIO;
}

}  // namespace

const long kAgain = -EAGAIN;
const long kTimedOutWait = -ETIME;
const long kInterrupted = -EINTR;
const long kMoved = -ERESTART;
const long kRelayed = -EREMCHG;

long failure(Error cause) {
  return -number_of(cause);
}
long failure(Refusal cause) {
  return -number_of(cause);
}
long kernel_failure() {
  return -errno;
}
int option_error(Error cause) {
  return number_of(cause);
}

}  // namespace bypass::socket
