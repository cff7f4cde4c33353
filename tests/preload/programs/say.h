/* What the test programs print: a result with the errno it left, so that two runs can be compared. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The host's own address to connect to: the loopback's, or TEST_ADDRESS. */
static inline in_addr_t own_address(void) {
  const char* text = getenv("TEST_ADDRESS");
  return text != NULL ? inet_addr(text) : htonl(INADDR_LOOPBACK);
}

static inline void say(const char* what, long result) {
  if (result < 0) {
    printf("%s: %ld %s\n", what, result, strerrorname_np(errno));
  } else {
    printf("%s: %ld\n", what, result);
  }
}

/* Whether TEST_SKIP names that part: what the library under test does not do yet. */
static inline int skips(const char* part) {
  const char* parts = getenv("TEST_SKIP");
  return parts != NULL && strstr(parts, part) != NULL;
}

/* The call itself is the label. errno must survive success. */
#define TRY(call)                                           \
  ({                                                        \
    errno = 77;                                             \
    long result_ = (long)(call);                            \
    if (result_ >= 0 && errno != 77) printf("errno lost "); \
    say(#call, result_);                                    \
    result_;                                                \
  })
