/* A crowd of small processes: starts as many as it is told, and replaces some when asked.

   usage: b2_crowd COUNT OWNERS
   Process i belongs to owner i % OWNERS (uid 20001 and up; its starter's uid where it may not
   change it); every 20th holds 6 MiB.  Answers "ready" once all run; each line "N" ends the N
   oldest, waits for them, starts N others and answers "done".  The crowd ends with its stdin. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIRST_OWNER = 20001, BIG_EVERY = 20, BIG_BYTES = 6 << 20 };

static pid_t start(long number, long owners) {
  int ready[2];
  if (pipe(ready) != 0) exit(2);
  pid_t child = fork();
  if (child < 0) exit(3);
  if (child == 0) {
    close(ready[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(STDIN_FILENO);
    if (number % BIG_EVERY == 0) {
      char *held = malloc(BIG_BYTES);
      if (held == NULL) _exit(4);
      memset(held, 1, BIG_BYTES);
    }
    if (owners > 1 && setuid((uid_t)(FIRST_OWNER + number % owners)) == 0)
      prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of uid clears it */
    if (write(ready[1], "r", 1) != 1) _exit(5);
    close(ready[1]);
    for (;;) pause();
  }
  close(ready[1]);
  char byte;
  if (read(ready[0], &byte, 1) != 1) exit(6);
  close(ready[0]);
  return child;
}

int main(int argc, char **argv) {
  if (argc != 3) return 1;
  long count = atol(argv[1]), owners = atol(argv[2]), started = 0, oldest = 0;
  pid_t *crowd = calloc((size_t)count, sizeof *crowd);
  if (crowd == NULL) return 1;
  for (; started < count; started++) crowd[started] = start(started, owners);
  puts("ready");
  fflush(stdout);
  char line[32];
  while (fgets(line, sizeof line, stdin) != NULL) {
    long replaced = atol(line);
    for (long i = 0; i < replaced; i++) kill(crowd[(oldest + i) % count], SIGKILL);
    for (long i = 0; i < replaced; i++) {
      waitpid(crowd[(oldest + i) % count], NULL, 0);
      crowd[(oldest + i) % count] = start(started++, owners);
    }
    oldest = (oldest + replaced) % count;
    puts("done");
    fflush(stdout);
  }
  for (long i = 0; i < count; i++) kill(crowd[i], SIGKILL);
  for (long i = 0; i < count; i++) waitpid(crowd[i], NULL, 0);
  return 0;
}
