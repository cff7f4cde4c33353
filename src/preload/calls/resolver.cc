// The resolver's sockets are its own: name service modules open, poll and close them through our exported names.
#include <netdb.h>

#include "preload/straight.h"
#include "preload/symbols.h"

namespace bypass::preload {
namespace {

BYPASS_EXPORT(int, getaddrinfo, (const char* node, const char* service, const addrinfo* hints, addrinfo** found)) {
  Inside inside;
  return real.getaddrinfo(node, service, hints, found);
}

BYPASS_EXPORT(int, getnameinfo,
              (const sockaddr* address, socklen_t length, char* host, socklen_t host_room, char* service,
               socklen_t service_room, int flags)) {
  Inside inside;
  return real.getnameinfo(address, length, host, host_room, service, service_room, flags);
}

BYPASS_EXPORT(hostent*, gethostbyname, (const char* name)) {
  Inside inside;
  return real.gethostbyname(name);
}

BYPASS_EXPORT(hostent*, gethostbyname2, (const char* name, int family)) {
  Inside inside;
  return real.gethostbyname2(name, family);
}

BYPASS_EXPORT(hostent*, gethostbyaddr, (const void* address, socklen_t length, int family)) {
  Inside inside;
  return real.gethostbyaddr(address, length, family);
}

BYPASS_EXPORT(int, gethostbyname_r,
              (const char* name, hostent* out, char* room, size_t size, hostent** found, int* error)) {
  Inside inside;
  return real.gethostbyname_r(name, out, room, size, found, error);
}

BYPASS_EXPORT(int, gethostbyname2_r,
              (const char* name, int family, hostent* out, char* room, size_t size, hostent** found, int* error)) {
  Inside inside;
  return real.gethostbyname2_r(name, family, out, room, size, found, error);
}

BYPASS_EXPORT(int, gethostbyaddr_r,
              (const void* address, socklen_t length, int family, hostent* out, char* room, size_t size,
               hostent** found, int* error)) {
  Inside inside;
  return real.gethostbyaddr_r(address, length, family, out, room, size, found, error);
}

}  // namespace
}  // namespace bypass::preload
