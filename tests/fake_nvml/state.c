/* Reading the state file; see state.h and README.md. */
#define _GNU_SOURCE
#include "state.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#define MAX_TEXT (1 << 20)

char driver_version[64], library_version[64];
int cuda_version;

static device boards[MAX_BOARDS], slices[MAX_SLICES];
static int boards_known, slices_known;
static row rows[MAX_PROCESSES];
static int rows_known;
static char *known_text;
static long session_named, session_held = -1; /* by the file; by this process, -1: none */

int board_count(void) { return boards_known; }

device *board_at(int index) {
    return index >= 0 && index < boards_known ? &boards[index] : NULL;
}

const row *row_at(int index) { return index < rows_known ? &rows[index] : NULL; }

device *slice_at(int board, int index) {
    for (int i = 0; i < slices_known; i++)
        if (slices[i].parent == board && slices[i].index == index) return &slices[i];
    return NULL;
}

const device *device_named(const char *uuid) {
    for (int i = 0; i < boards_known; i++)
        if (!strcmp(boards[i].uuid, uuid)) return &boards[i];
    for (int i = 0; i < slices_known; i++)
        if (!strcmp(slices[i].uuid, uuid)) return &slices[i];
    return NULL;
}

/* -- sessions -------------------------------------------------------------------------------- */

void begin_session(void) { session_held = session_named; }

void end_session(void) { session_held = -1; }

bool session_is_up_to(long last) { return session_held >= 0 && session_held <= last; }

/* A session may go on with the boards that it knew when a line said so. */
static bool boards_stay(const char *text) {
    const char *line = strstr(text, "\nstale upto=");
    return line && session_is_up_to(strtol(line + strlen("\nstale upto="), NULL, 0));
}

/* -- words of a line ------------------------------------------------------------------------- */

unsigned long long parse_bytes(const char *text) {
    if (!strcmp(text, "na")) return NOT_AVAILABLE_64;
    char *end;
    unsigned long long whole = strtoull(text, &end, 0);
    if (*end == 0) return whole;
    double value = strtod(text, &end);
    switch (toupper((unsigned char)*end)) {
        case 'G': value *= 1024; /* fall through */
        case 'M': value *= 1024; /* fall through */
        case 'K': value *= 1024;
    }
    return (unsigned long long)value;
}

/* Copy the value of ` key=value` into out; false when the line has no such key. */
bool word(const char *line, const char *key, char *out, size_t size) {
    char pattern[40];
    snprintf(pattern, sizeof pattern, " %s=", key);
    const char *at = strstr(line, pattern);
    if (!at) return false;
    at += strlen(pattern);
    size_t n = 0;
    while (*at && !isspace((unsigned char)*at) && n + 1 < size) out[n++] = *at++;
    out[n] = 0;
    return true;
}

long number(const char *line, const char *key, long otherwise) {
    char text[64];
    return word(line, key, text, sizeof text) ? strtol(text, NULL, 0) : otherwise;
}

static unsigned long long bytes(const char *line, const char *key, unsigned long long otherwise) {
    char text[64];
    return word(line, key, text, sizeof text) ? parse_bytes(text) : otherwise;
}

static void name(const char *line, char *out, size_t size, const char *otherwise) {
    if (!word(line, "name", out, size)) snprintf(out, size, "%s", otherwise);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = ' '; /* a word of a line has no spaces */
}

static void read_memory(const char *line, device *d, unsigned long long total) {
    char text[64];
    d->total = bytes(line, "total", total);
    d->reserved = bytes(line, "reserved", 0);
    d->unlisted = bytes(line, "unlisted", 0);
    d->used_is_fixed = word(line, "used", text, sizeof text) && strcmp(text, "auto");
    if (d->used_is_fixed) d->used = parse_bytes(text);
    d->free = word(line, "free", text, sizeof text) ? (long long)parse_bytes(text) : -1;
}

/* -- lines ----------------------------------------------------------------------------------- */

static void read_board(const char *line) {
    if (boards_known == MAX_BOARDS) return;
    device *d = &boards[boards_known];
    memset(d, 0, sizeof *d);
    d->index = boards_known++;
    d->parent = -1;
    d->gpu_instance = d->compute_instance = NOT_AVAILABLE_32;
    snprintf(d->uuid, sizeof d->uuid, "GPU-%08x-0000-0000-0000-000000000000", d->index);
    word(line, "uuid", d->uuid, sizeof d->uuid);
    snprintf(d->bus, sizeof d->bus, "00000000:%02X:00.0", d->index + 1);
    word(line, "bus", d->bus, sizeof d->bus);
    name(line, d->name, sizeof d->name, "Stand-in GPU");
    read_memory(line, d, 24ULL << 30);
    d->utilisation = (int)number(line, "util", 0);
    d->memory_utilisation = (int)number(line, "memutil", 0);
    d->mig = (int)number(line, "mig", -1);
    d->max_slices = (int)number(line, "maxmig", 7);
}

static void read_slice(const char *line) {
    if (slices_known == MAX_SLICES) return;
    device *d = &slices[slices_known];
    memset(d, 0, sizeof *d);
    sscanf(line, "%*s %d %d", &d->parent, &d->index);
    snprintf(d->uuid, sizeof d->uuid, "MIG-%08x-0000-0000-0000-000000000000", slices_known);
    slices_known++;
    word(line, "uuid", d->uuid, sizeof d->uuid);
    name(line, d->name, sizeof d->name, "Stand-in GPU MIG 1g.10gb");
    read_memory(line, d, 10ULL << 30);
    d->gpu_instance = (unsigned)number(line, "gi", d->index + 1);
    d->compute_instance = (unsigned)number(line, "ci", 0);
    d->utilisation = d->memory_utilisation = d->mig = -1;
}

static void read_process(const char *line) {
    if (rows_known == MAX_PROCESSES) return;
    row *r = &rows[rows_known++];
    char kind[8] = "C";
    word(line, "kind", kind, sizeof kind);
    r->gpu = (int)number(line, "gpu", 0);
    r->only_live = number(line, "live", 0) != 0;
    r->process.kind = kind[0];
    r->process.pid = (unsigned)number(line, "pid", 0);
    r->process.memory = bytes(line, "mem", 0);
    r->process.gpu_instance = (unsigned)number(line, "gi", -1);
    r->process.compute_instance = (unsigned)number(line, "ci", -1);
}

static void read_line(char *line, bool same_boards) {
    char *comment = strchr(line, '#');
    if (comment) *comment = 0;
    char what[32], argument[96] = "";
    if (sscanf(line, "%31s %95s", what, argument) < 1) return;
    if (!strcmp(what, "driver")) snprintf(driver_version, sizeof driver_version, "%.63s", argument);
    else if (!strcmp(what, "nvmlver"))
        snprintf(library_version, sizeof library_version, "%.63s", argument);
    else if (!strcmp(what, "cuda")) cuda_version = atoi(argument);
    else if (!strcmp(what, "session")) session_named = atol(argument);
    else if (!strcmp(what, "gpu") || !strcmp(what, "mig")) {
        if (!same_boards) (what[0] == 'g' ? read_board : read_slice)(line);
    } else if (!strcmp(what, "proc")) read_process(line);
    else read_rule(line, what, argument);
}

static char *read_text(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    char *text = malloc(MAX_TEXT);
    size_t n = text ? fread(text, 1, MAX_TEXT - 1, file) : 0;
    fclose(file);
    if (text) text[n] = 0;
    return text;
}

void refresh_state(void) {
    const char *path = getenv("GPUGATE_STANDIN_STATE");
    char *text = path ? read_text(path) : NULL;
    /* Comparing the text itself: a file replaced within one tick of the disk's clock, by another
     * of the same size, looks unchanged to stat. */
    if (!text || (known_text && !strcmp(text, known_text))) {
        free(text);
        return;
    }
    free(known_text);
    known_text = strdup(text);
    bool same_boards = boards_stay(text);
    if (!same_boards) boards_known = slices_known = 0;
    rows_known = 0;
    forget_rules();
    snprintf(driver_version, sizeof driver_version, "550.54.14");
    snprintf(library_version, sizeof library_version, "12.550.54.14");
    cuda_version = 12040;
    char *rest = text;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n"))
        read_line(line, same_boards);
    free(text);
}
