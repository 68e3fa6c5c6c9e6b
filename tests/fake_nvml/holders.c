/* Who holds what: the listed rows of the state file and the registry of live holders. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"
#include "state.h"

/* Whether this very process still runs: a zombie's device memory is gone, and a number taken over
 * by a later process (other start ticks) is not the holder. */
static bool is_alive(unsigned pid, unsigned long long start_ticks) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *after_name = strrchr(text, ')');
    char status;
    unsigned long long ticks;
    if (!after_name ||
        sscanf(after_name + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &status, &ticks) != 2)
        return false;
    return status != 'Z' && status != 'X' && (start_ticks == 0 || ticks == start_ticks);
}

/* Read one entry of the registry, "PID-TICKS-KIND-UUID" holding "BYTES [sticky]". */
static bool read_holder(const char *directory, const char *entry, process *out, char uuid[96]) {
    unsigned long long ticks;
    char path[4096], amount[64], flag[16] = "";
    if (sscanf(entry, "%u-%llu-%c-%95s", &out->pid, &ticks, &out->kind, uuid) != 4) return false;
    snprintf(path, sizeof path, "%s/%s", directory, entry);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    int read = fscanf(file, "%63s %15s", amount, flag);
    fclose(file);
    if (read < 1) return false;
    out->memory = parse_bytes(amount);
    return !strcmp(flag, "sticky") || is_alive(out->pid, ticks);
}

static bool covers(const device *where, const device *held) {
    return held == where || (where->parent < 0 && held->parent == where->index);
}

static int held_on(const device *where, char kind, process *out, int capacity) {
    const char *directory = getenv("GPUGATE_STANDIN_PROCS");
    DIR *registry = directory ? opendir(directory) : NULL;
    if (!registry) return 0;
    int n = 0;
    char uuid[96];
    for (struct dirent *entry = readdir(registry); entry; entry = readdir(registry)) {
        process p;
        if (!read_holder(directory, entry->d_name, &p, uuid)) continue;
        const device *held = device_named(uuid);
        if (!held || !covers(where, held) || (kind != '*' && kind != p.kind)) continue;
        p.gpu_instance = held->gpu_instance;
        p.compute_instance = held->compute_instance;
        if (n < capacity) out[n++] = p;
    }
    closedir(registry);
    return n;
}

int processes_on(const device *where, char kind, process *out, int capacity) {
    int n = 0;
    int board = where->parent < 0 ? where->index : where->parent;
    for (int i = 0; row_at(i) && n < capacity; i++) {
        const row *r = row_at(i);
        if (r->gpu != board || (kind != '*' && r->process.kind != kind)) continue;
        if (where->parent >= 0 && r->process.gpu_instance != where->gpu_instance) continue;
        if (r->only_live && !is_alive(r->process.pid, 0)) continue;
        out[n++] = r->process;
    }
    return n + held_on(where, kind, out + n, capacity - n);
}

unsigned long long used_on(const device *where) {
    if (where->used_is_fixed) return where->used;
    static process all[MAX_PROCESSES];
    int n = processes_on(where, '*', all, MAX_PROCESSES);
    unsigned long long sum = where->unlisted;
    for (int i = 0; i < n; i++) {
        if (all[i].memory == NOT_AVAILABLE_64) continue;
        /* The same bytes of a process may list as compute and as graphics. */
        bool counted = false;
        for (int j = 0; j < i; j++)
            if (all[j].pid == all[i].pid && all[j].kind != all[i].kind &&
                all[j].memory == all[i].memory)
                counted = true;
        if (!counted) sum += all[i].memory;
    }
    return sum;
}
