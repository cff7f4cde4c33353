// mute FILE: keeps a card from reading and writing memory, until it is killed. FILE is the card's configuration space
// in /sys. Whoever opens the card makes it a bus master, and this takes that back at once (PCI 3.0, 6.2.2).
#include <fcntl.h>
#include <unistd.h>

#define COMMAND 4
#define IO_AND_MEMORY 3

int main(int argc, char** argv) {
  const int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
  const char command = IO_AND_MEMORY;
  while (fd >= 0 && pwrite(fd, &command, 1, COMMAND) == 1) continue;
  return 1;
}
