/* The floor of a process walk: descriptors on statm kept open, one pread per process.

   Each line on stdin asks for one walk; it answers "PROCESSES PRIVATE_PAGES CPU_NANOSECONDS".
   New processes are parsed for parent, start ticks and owner; kernel threads are passed over. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PIDS = 1 << 22, KERNEL_THREAD = 0x00200000 };

struct row {
  int descriptor; /* 0: none, -1: a kernel thread */
  unsigned seen, parent, owner;
  unsigned long long start_ticks, private_pages;
};

static struct row *rows;
static unsigned *listed, *before;
static unsigned listed_count, before_count, tick;

static void drop(unsigned pid) {
  if (rows[pid].descriptor > 0) close(rows[pid].descriptor);
  memset(&rows[pid], 0, sizeof rows[pid]);
}

static int measure(struct row *row) {
  char text[96];
  ssize_t length = pread(row->descriptor, text, sizeof text - 1, 0);
  if (length <= 0) return -1;
  text[length] = 0;
  char *at = text;
  strtoull(at, &at, 10);
  unsigned long long resident = strtoull(at, &at, 10);
  row->private_pages = resident - strtoull(at, &at, 10);
  return 0;
}

static void meet(unsigned pid) {
  char path[40], text[1024];
  struct row *row = &rows[pid];
  struct stat folder;
  snprintf(path, sizeof path, "/proc/%u/statm", pid);
  if ((row->descriptor = open(path, O_RDONLY | O_CLOEXEC)) <= 0) { row->descriptor = 0; return; }
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  int stat_descriptor = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length = stat_descriptor < 0 ? -1 : read(stat_descriptor, text, sizeof text - 1);
  if (stat_descriptor >= 0) close(stat_descriptor);
  text[length < 0 ? 0 : length] = 0;
  char *at = strrchr(text, ')');
  unsigned flags;
  if (at == NULL || sscanf(at, ") %*c %u %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d"
                               " %*d %*d %*d %llu", &row->parent, &flags, &row->start_ticks) != 3) {
    drop(pid);
    return;
  }
  if (flags & KERNEL_THREAD) { close(row->descriptor); row->descriptor = -1; return; }
  snprintf(path, sizeof path, "/proc/%u", pid);
  if (stat(path, &folder) != 0 || measure(row) != 0) { drop(pid); return; }
  row->owner = folder.st_uid;
}

static void walk(unsigned long long *processes, unsigned long long *pages) {
  DIR *proc = opendir("/proc");
  struct dirent *entry;
  unsigned *swap = before;
  before = listed; before_count = listed_count; listed = swap; listed_count = 0; tick++;
  while (proc != NULL && (entry = readdir(proc)) != NULL) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
    struct row *row = &rows[pid];
    if (row->descriptor > 0 && measure(row) != 0) drop(pid);
    if (row->descriptor == 0) meet(pid);
    row->seen = tick;
    listed[listed_count++] = pid;
    if (row->descriptor > 0) { *processes += 1; *pages += row->private_pages; }
  }
  if (proc != NULL) closedir(proc);
  for (unsigned i = 0; i < before_count; i++)
    if (rows[before[i]].seen != tick) drop(before[i]);
}

static unsigned long long cpu(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

int main(void) {
  rows = calloc(MOST_PIDS + 1, sizeof *rows);
  listed = calloc(MOST_PIDS + 1, sizeof *listed);
  before = calloc(MOST_PIDS + 1, sizeof *before);
  if (rows == NULL || listed == NULL || before == NULL) return 1;
  char line[8];
  while (fgets(line, sizeof line, stdin) != NULL) {
    unsigned long long processes = 0, pages = 0, start = cpu();
    walk(&processes, &pages);
    unsigned long long spent = cpu() - start;
    printf("%llu %llu %llu\n", processes, pages, spent);
    fflush(stdout);
  }
  return 0;
}
