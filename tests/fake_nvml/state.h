/* What the stand-in knows: boards, slices, listed processes and rules, read from a text file,
 * and what live processes hold, read from a directory.  README.md describes both. */
#ifndef STAND_IN_STATE_H
#define STAND_IN_STATE_H

#include <stdbool.h>
#include <stddef.h>

#define MAX_BOARDS 64
#define MAX_SLICES 256
#define MAX_PROCESSES 4096

typedef struct device {
    int index;  /* of a board among boards, of a slice on its board */
    int parent; /* the board's index; -1 for a board */
    char uuid[96], name[96], bus[32];
    unsigned long long total, reserved, used, unlisted;
    bool used_is_fixed; /* else: what is held, plus `unlisted` */
    long long free;     /* what it claims; -1: what is left */
    int utilisation, memory_utilisation; /* percent; -1: not supported */
    int mig, max_slices;                 /* mig: 1 on, 0 off, -1 not supported */
    unsigned gpu_instance, compute_instance;
} device;

typedef struct process {
    unsigned pid;
    char kind; /* C(ompute), G(raphics), M(PS) */
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process;

/* A listed process of the state file, alive or not. */
typedef struct row {
    int gpu;
    bool only_live;
    process process;
} row;

typedef struct verdict {
    int code;     /* what the call must return instead of working; 0: let it work */
    bool garbage; /* the call succeeds and its answer is noise */
    bool blind;   /* the call succeeds and sees nothing */
} verdict;

extern char driver_version[64], library_version[64];
extern int cuda_version;

int board_count(void);
device *board_at(int index);
device *slice_at(int board, int index);
const device *device_named(const char *uuid);
const row *row_at(int index);

/* The value of ` key=value` in a line: copied out, as a number, or as bytes with a suffix. */
bool word(const char *line, const char *key, char *out, size_t size);
long number(const char *line, const char *key, long otherwise);
unsigned long long parse_bytes(const char *text);

/* Sessions: each process that initialises the library is of the one that the file names then. */
void begin_session(void);
void end_session(void);
/* Whether this process's session is one of those up to `last`. */
bool session_is_up_to(long last);

/* Rules: drop those known, then take one from each line that is one. */
void forget_rules(void);
void read_rule(const char *line, const char *what, const char *function);

/* Read the state file again if its text changed. */
void refresh_state(void);

/* Everything that lists on a device under one kind ('*': any); returns how many there are. */
int processes_on(const device *where, char kind, process *out, int capacity);

/* Bytes in use on a device, what the driver reserves apart. */
unsigned long long used_on(const device *where);

/* Apply every rule for this call, in order: sleep, hang, crash, fail or spoil it. */
verdict judge(const char *function, const device *where);

#endif
