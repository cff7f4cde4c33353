/* A connection of the program to itself. */
#pragma once
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "say.h"

/* Both ends, blocking; nothing is printed. */
static inline void connect_both(int* a, int* b) {
  struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t length = sizeof(where);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr*)&where, length) != 0 || listen(listener, 1) != 0) abort();
  getsockname(listener, (struct sockaddr*)&where, &length);
  *a = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(*a, (struct sockaddr*)&where, length) != 0) abort();
  *b = accept(listener, NULL, NULL);
  close(listener);
}

/* The same in steps whose results are printed, but for accept()'s. The client does not block, so that what a refused
 * call leaves waiting ends. */
struct connection {
  int listener, client, server;
  struct sockaddr_in address;
};

static inline void open_listener(struct connection* c) {
  c->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = own_address()};
  socklen_t length = sizeof c->address;
  c->listener = socket(AF_INET, SOCK_STREAM, 0);
  c->client = socket(AF_INET, SOCK_STREAM, 0);
  fcntl(c->client, F_SETFL, O_NONBLOCK);
  TRY(bind(c->listener, (struct sockaddr*)&c->address, length));
  TRY(listen(c->listener, 5));
  TRY(getsockname(c->listener, (struct sockaddr*)&c->address, &length));
}

static inline void connect_to_it(struct connection* c) {
  int connected = connect(c->client, (struct sockaddr*)&c->address, sizeof c->address);
  say("connect", connected == 0 || errno == EINPROGRESS);
  TRY(poll(&(struct pollfd){c->client, POLLOUT, 0}, 1, 3000));
  TRY(poll(&(struct pollfd){c->listener, POLLIN, 0}, 1, 3000));
  c->server = accept(c->listener, NULL, NULL);
}
