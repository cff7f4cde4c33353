/* C's streams over sockets: standard streams and others whose number becomes a connection after they were opened, and
 * those of fdopen(). Each case runs in a child with fresh streams. Its results go to a stream of a file. */
#include <err.h>
#include <error.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>
#include <wchar.h>

#include "connection.h"

static FILE* results;
static int a, b; /* two ends of a connection */
static char text[4096];

#define REPORT(...) (fprintf(results, __VA_ARGS__), fflush(results))
#define TELL(call)                                                                     \
  ({                                                                                   \
    errno = 0;                                                                         \
    long result_ = (long)(call);                                                       \
    REPORT("%s: %ld %s\n", #call, result_, result_ < 0 ? strerrorname_np(errno) : ""); \
    result_;                                                                           \
  })

enum { kEnd = 1 << 20 };

/* What comes at the other end: that many bytes, with kEnd the end behind them, and what else is there by then. */
static void arrived_at(int fd, const char* what, int bytes) {
  REPORT("%s <", what);
  for (struct pollfd p = {fd, POLLIN, 0}; poll(&p, 1, bytes > 0 ? 5000 : 0) == 1;) {
    ssize_t n = read(fd, text, sizeof text);
    if (n <= 0) {
      REPORT("%s", n == 0 ? "END" : strerrorname_np(errno));
      break;
    }
    for (ssize_t i = 0; i < n; i++) fputc(text[i], results);
    bytes -= (int)n;
  }
  REPORT(">\n");
}

static void arrived(const char* what, int bytes) {
  arrived_at(b, what, bytes);
}

/* The tables of functions that all streams have: nobody can write to them. */
static int has_writable_table(FILE* stream) {
  const unsigned long table = *(unsigned long*)(stream + 1); /* struct _IO_FILE_plus */
  FILE* maps = fopen("/proc/self/maps", "r");
  unsigned long low, high;
  char rights[8];
  int writable = -1;
  while (fscanf(maps, "%lx-%lx %7s%*[^\n]", &low, &high, rights) == 3) {
    if (table >= low && table < high) writable = rights[1] == 'w';
  }
  fclose(maps);
  return writable;
}

static void output(void) {
  printf("before");
  fflush(stdout);
  TELL(dup2(a, 1));
  printf("number %d, %s\n", 7, "text");
  puts("a line");
  putchar('c');
  putchar_unlocked('\n');
  fputs("put\n", stdout);
  TELL(fwrite("0123456789", 5, 2, stdout));
  TELL(fflush(stdout));
  arrived("all", 38);
  printf("by fflush(NULL)");
  TELL(fflush(NULL));
  arrived("all", 15);
  TELL(ftell(stdout));
  TELL(fseek(stdout, 0, SEEK_SET));
  TELL(fileno(stdout));
  TELL(has_writable_table(stdout));
}

static void buffers(void) {
  TELL(dup2(a, 1));
  TELL(setvbuf(stdout, NULL, _IONBF, 0));
  printf("not %s", "buffered");
  arrived("at once", 12);
  TELL(setvbuf(stdout, NULL, _IOLBF, 0));
  printf("a line\nand a part");
  arrived("a line", 17);
  static char room[16];
  TELL(setvbuf(stdout, room, _IOFBF, sizeof room));
  printf("0123456789");
  arrived("nothing new", 10);
  printf("0123456789");
  arrived("a part", 0);
  fflush(stdout);
  arrived("the rest", 10);
}

static void input(void) {
  TELL(dup2(a, 0));
  TELL(write(b, "line one\nline two\n42 words\nlong rest", 37));
  TELL(fgets(text, 64, stdin) != NULL);
  REPORT("%s", text);
  char* line = NULL;
  size_t room = 0;
  TELL(getline(&line, &room, stdin));
  REPORT("%s", line);
  int number = 0;
  TELL(scanf("%d %63s", &number, text));
  REPORT("%d %s\n", number, text);
  TELL(getchar());
  TELL(ungetc('L', stdin));
  TELL(getc_unlocked(stdin));
  TELL(shutdown(b, SHUT_WR));
  TELL(fread(text, 1, 64, stdin));
  TELL(feof(stdin) != 0);
  TELL(ferror(stdin));
  TELL(getchar());
  free(line);
}

static void one_line_at_a_time(void) {
  dup2(a, 0);
  TELL(setvbuf(stdin, NULL, _IONBF, 0));
  TELL(write(b, "one\ntwo\n", 8));
  TELL(fgets(text, 64, stdin) != NULL);
  TELL(read(0, text, 64));
}

static void errors(void) {
  program_invocation_name = program_invocation_short_name = "streams";
  TELL(dup2(a, 2));
  errno = EACCES;
  perror("perror without orientation");
  perror(NULL);
  TELL(fwide(stderr, 0));
  psignal(SIGTERM, "psignal");
  fprintf(stderr, "fprintf\n");
  errno = ENOENT;
  perror("perror");
  error(0, EPERM, "error %d", 1);
  errno = EINTR;
  warn("warn %d", 2);
  warnx("warnx");
  openlog("streams", LOG_PERROR, LOG_USER);
  syslog(LOG_INFO, "syslog %s", "too");
  arrived("errors", 244);
}

static void any_file(void) {
  FILE* file = fopen("/dev/null", "r+");
  TELL(dup2(a, fileno(file)) == fileno(file));
  TELL(fprintf(file, "by a file\n"));
  TELL(fflush(file));
  arrived("a file", 10);
  TELL(write(b, "an answer\n", 10));
  TELL(fgets(text, 64, file) != NULL);
  REPORT("%s", text);
  close(a);
  TELL(fclose(file));
  arrived("the end", kEnd);
}

static void other_ways(void) {
  FILE* file = fdopen(fcntl(open("/dev/null", O_RDWR), F_DUPFD, 60), "r+");
  TELL(close(60));
  TELL(fcntl(a, F_DUPFD, 60));
  TELL(dup3(a, 2, O_CLOEXEC));
  fprintf(file, "F_DUPFD ");
  fflush(file);
  fprintf(stderr, "dup3\n");
  arrived("both", 13);
  TELL(write(b, "in\n", 3));
  TELL(getc(file));
}

static void accepted(void) {
  struct connection c;
  int kept = dup(1);
  freopen("/dev/null", "w", stdout); /* what open_listener() prints */
  open_listener(&c);
  fflush(stdout);
  connect(c.client, (struct sockaddr*)&c.address, sizeof c.address);
  poll(&(struct pollfd){c.listener, POLLIN, 0}, 1, 3000);
  close(1);
  int s = accept(c.listener, NULL, NULL);
  if (s != 1) dup2(s, 1), close(s); /* a thread of the library has had the number for a moment */
  TELL(printf("from an accepted number"));
  TELL(fflush(stdout));
  arrived_at(c.client, "the client", 23);
  close(kept);
}

static void opened(void) {
  FILE* both = fdopen(a, "r+");
  TELL(fileno(both) == a);
  TELL(fprintf(both, "by fdopen\n"));
  TELL(fflush(both));
  arrived("fdopen", 10);
  TELL(write(b, "an answer\n", 10));
  TELL(fgetc(both));
  TELL(fclose(both));
  arrived("unread bytes", kEnd);
}

static void one_stream_each_way(void) {
  FILE *in = fdopen(a, "r"), *out = fdopen(dup(a), "w");
  TELL(setvbuf(out, NULL, _IOFBF, 1 << 16));
  TELL(fprintf(out, "question"));
  TELL(write(b, "answer\n", 7));
  TELL(fgets(text, 64, in) != NULL);
  arrived("nothing yet", 0);
  TELL(fclose(out));
  arrived("question", 8);
  TELL(fclose(in));
  arrived("end", kEnd);
}

static void wide(void) {
  TELL(dup2(a, 1));
  TELL(fwide(stdout, 1) > 0);
  TELL(wprintf(L"wide %d\n", 5));
  TELL(fputws(L"string\n", stdout));
  TELL(fflush(stdout));
  arrived("wide", 14);
  TELL(dup2(a, 0));
  TELL(write(b, "wide line\n", 10));
  wchar_t line[32];
  TELL(fgetws(line, 32, stdin) != NULL);
  REPORT("%ls", line);
}

static void reopened(void) {
  TELL(dup2(a, 1));
  printf("what the stream holds");
  TELL(freopen("/dev/null", "w", stdout) != NULL);
  TELL(fileno(stdout));
  TELL(printf("to nobody"));
  TELL(fflush(stdout));
  arrived("before", 21);
  TELL(write(1, "to nobody", 9));
  close(a);
  arrived("the end", kEnd);
  TELL(dup2(b, 0));
  TELL(freopen("/nowhere/at/all", "r", stdin) == NULL);
}

static void of_a_command(void) {
  FILE* command = popen("cat > /dev/null", "w");
  int pipe = dup(fileno(command));
  TELL(dup2(a, fileno(command)) == fileno(command));
  TELL(fprintf(command, "not to the command"));
  TELL(fflush(command));
  arrived("here", 18);
  close(pipe);
  TELL(pclose(command));
  close(a);
  arrived("the end", kEnd);
}

static void failures(void) {
  signal(SIGPIPE, SIG_IGN);
  TELL(dup2(a, 0));
  TELL(fcntl(a, F_SETFL, O_NONBLOCK));
  TELL(fgets(text, 64, stdin) != NULL ? 0 : -1);
  TELL(ferror(stdin) != 0);
  clearerr(stdin);
  TELL(write(b, "later\n", 6));
  poll(&(struct pollfd){a, POLLIN, 0}, 1, 3000);
  TELL(fgets(text, 64, stdin) != NULL);
  REPORT("%s", text);
  TELL(shutdown(a, SHUT_WR));
  dup2(a, 1);
  TELL(printf("nobody reads this"));
  TELL(fflush(stdout));
  TELL(ferror(stdout) != 0);
  clearerr(stdout);
  arrived("only the end", kEnd);
}

enum { kMuch = 3 << 20 };

static void* reads_much(void* stream) {
  unsigned long sum = 0, count = 0;
  for (int c; (c = getc(stream)) != EOF; count++) sum = sum * 31 + (unsigned)c;
  REPORT("%lu bytes, %lx\n", count, sum);
  return NULL;
}

static void much(void) {
  pthread_t reader;
  dup2(a, 1), close(a);
  alarm(30);
  pthread_create(&reader, NULL, reads_much, fdopen(b, "r"));
  for (int i = 0; i < kMuch / 8; i++) printf("%07d\n", i);
  TELL(fclose(stdout));
  pthread_join(reader, NULL);
}

static void ends_by(void (*end)(int)) {
  TELL(dup2(a, 1));
  FILE* other = fdopen(dup(a), "w");
  printf("left in stdout");
  fflush(stdout);
  fprintf(other, ", left in another stream");
  fflush(results);
  end(3);
}

static void aborts(int status) {
  (void)status;
  abort();
}

static void left_at_exit(void) {
  ends_by(exit);
}
static void left_at_quick_exit(void) {
  ends_by(quick_exit);
}
static void left_at_once(void) {
  ends_by(_exit);
}
static void left_at_abort(void) {
  ends_by(aborts);
}

static void of_a_child(void) {
  TELL(dup2(a, 1));
  printf("the parent's, ");
  if (fork() == 0) {
    printf("the child's\n");
    exit(0);
  }
  int status;
  wait(&status);
  arrived("child", 26);
  fflush(stdout);
  arrived("parent", 14);
}

static void run(const char* name, void (*body)(void)) {
  int status = 0;
  REPORT("== %s\n", name);
  connect_both(&a, &b);
  if (fork() == 0) {
    body();
    fflush(results);
    _exit(0);
  }
  close(a);
  wait(&status);
  REPORT("status %x\n", (unsigned)status & ~0x80U);
  if (strncmp(name, "left", 4) == 0) arrived("after the end", kEnd);
  close(b);
}

#define RUN(body) run(#body, body)

int main(void) {
  results = fdopen(fcntl(1, F_DUPFD_CLOEXEC, 100), "w");
  RUN(output);
  RUN(buffers);
  RUN(input);
  RUN(one_line_at_a_time);
  RUN(errors);
  RUN(any_file);
  RUN(other_ways);
  RUN(accepted);
  RUN(opened);
  RUN(one_stream_each_way);
  RUN(wide);
  RUN(reopened);
  RUN(of_a_command);
  RUN(failures);
  RUN(much);
  RUN(left_at_exit);
  RUN(left_at_quick_exit);
  RUN(left_at_once);
  RUN(left_at_abort);
  RUN(of_a_child);
  return 0;
}
