/* A stand-in for libnvidia-ml.so.1: the calls that a memory monitor makes, answered from a state
 * file and a registry of holders instead of a driver.  README.md describes both.
 *
 * Variants, by -D at build time:
 *   WITHOUT_MEMORY_V2   no nvmlDeviceGetMemoryInfo_v2 (drivers before R510)
 *   WITHOUT_LISTS_V2    no _v2 process lists (drivers before R450)
 *   WITHOUT_LISTS_V3    no _v3 process lists (drivers before R510)
 *   WIDE_ROWS           the _v3 lists write 32-byte rows (drivers 535.43 to 535.86)
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "abi.h"
#include "state.h"

#define API __attribute__((visibility("default")))

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int users;

/* Every call: lock, read the state, apply the rules, refuse before nvmlInit. */
static verdict enter(const char *function, const device *where) {
    pthread_mutex_lock(&one_at_a_time);
    refresh_state();
    verdict v = judge(function, where);
    if (!v.code && !users && strcmp(function, "nvmlInit_v2")) v.code = NVML_UNINITIALIZED;
    return v;
}

static nvml_return leave(nvml_return code) {
    pthread_mutex_unlock(&one_at_a_time);
    return code;
}

/* Bytes that no answer could have: every word differs, and every one is far too great. */
static void spoil(void *answer, size_t size) {
    unsigned char *at = answer;
    for (size_t i = 0; i < size; i++) at[i] = (unsigned char)(0xA5 + 7 * (i / 8));
}

static nvml_return answer_number(const char *function, const device *d, unsigned value,
                                 unsigned *out) {
    verdict v = enter(function, d);
    if (v.code) return leave(v.code);
    *out = value;
    if (v.garbage) spoil(out, sizeof *out);
    return leave(NVML_SUCCESS);
}

static nvml_return answer_text(const char *function, const device *d, const char *value, char *out,
                               unsigned size) {
    verdict v = enter(function, d);
    if (v.code) return leave(v.code);
    if (strlen(value) + 1 > size) return leave(NVML_INSUFFICIENT_SIZE);
    strcpy(out, value);
    if (v.garbage) memset(out, 0xFF, strlen(value));
    return leave(NVML_SUCCESS);
}

/* -- the library ----------------------------------------------------------------------------- */

API nvml_return nvmlInit_v2(void) {
    verdict v = enter("nvmlInit_v2", NULL);
    if (!v.code && !users++) begin_session();
    return leave(v.code);
}

API nvml_return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return nvmlInit_v2();
}

API nvml_return nvmlShutdown(void) {
    verdict v = enter("nvmlShutdown", NULL);
    if (!v.code && !--users) end_session();
    return leave(v.code);
}

API const char *nvmlErrorString(nvml_return code) {
    switch (code) {
        case NVML_SUCCESS: return "Success";
        case NVML_UNINITIALIZED: return "Uninitialized";
        case NVML_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_NOT_SUPPORTED: return "Not Supported";
        case NVML_NO_PERMISSION: return "Insufficient Permissions";
        case NVML_NOT_FOUND: return "Not Found";
        case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NVML_TIMEOUT: return "Timeout";
        case NVML_FUNCTION_NOT_FOUND: return "Function Not Found";
        case NVML_GPU_IS_LOST: return "GPU is lost";
        case NVML_RESET_REQUIRED: return "GPU requires restart";
        case NVML_VERSION_MISMATCH: return "Driver/library version mismatch";
        case NVML_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
        default: return "Unknown Error";
    }
}

API nvml_return nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return answer_text("nvmlSystemGetDriverVersion", NULL, driver_version, out, size);
}

API nvml_return nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return answer_text("nvmlSystemGetNVMLVersion", NULL, library_version, out, size);
}

API nvml_return nvmlSystemGetCudaDriverVersion_v2(int *out) {
    verdict v = enter("nvmlSystemGetCudaDriverVersion_v2", NULL);
    if (!v.code) *out = cuda_version;
    return leave(v.code);
}

/* -- boards and slices ----------------------------------------------------------------------- */

API nvml_return nvmlDeviceGetCount_v2(unsigned *out) {
    verdict v = enter("nvmlDeviceGetCount_v2", NULL);
    if (v.code) return leave(v.code);
    *out = v.blind ? 0 : (unsigned)board_count();
    if (v.garbage) spoil(out, sizeof *out);
    return leave(NVML_SUCCESS);
}

/* Handles are looked up before the rules are applied, so that a rule can name their device: the
 * state is read twice then, which is as good as once. */
static device *known(device *(*find)(int, int), int a, int b) {
    pthread_mutex_lock(&one_at_a_time);
    refresh_state();
    device *d = find(a, b);
    pthread_mutex_unlock(&one_at_a_time);
    return d;
}

static device *find_board(int index, int unused) {
    (void)unused;
    return board_at(index);
}

API nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    *out = known(find_board, (int)index, 0);
    verdict v = enter("nvmlDeviceGetHandleByIndex_v2", *out);
    return leave(v.code ? v.code : *out ? NVML_SUCCESS : NVML_INVALID_ARGUMENT);
}

API nvml_return nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    *out = known(slice_at, d->index, (int)index);
    verdict v = enter("nvmlDeviceGetMigDeviceHandleByIndex", d);
    return leave(v.code ? v.code : *out ? NVML_SUCCESS : NVML_NOT_FOUND);
}

API nvml_return nvmlDeviceGetName(device *d, char *out, unsigned size) {
    return answer_text("nvmlDeviceGetName", d, d->name, out, size);
}

API nvml_return nvmlDeviceGetUUID(device *d, char *out, unsigned size) {
    return answer_text("nvmlDeviceGetUUID", d, d->uuid, out, size);
}

API nvml_return nvmlDeviceGetPciInfo_v3(device *d, pci_info *out) {
    verdict v = enter("nvmlDeviceGetPciInfo_v3", d);
    if (v.code) return leave(v.code);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", d->bus);
    sscanf(d->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return leave(NVML_SUCCESS);
}

API nvml_return nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    verdict v = enter("nvmlDeviceGetMigMode", d);
    if (v.code) return leave(v.code);
    if (d->mig < 0) return leave(NVML_NOT_SUPPORTED);
    *current = *pending = (unsigned)d->mig;
    return leave(NVML_SUCCESS);
}

API nvml_return nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out) {
    return answer_number("nvmlDeviceGetMaxMigDeviceCount", d,
                         d->mig < 0 ? 0 : (unsigned)d->max_slices, out);
}

API nvml_return nvmlDeviceGetUtilizationRates(device *d, utilization *out) {
    verdict v = enter("nvmlDeviceGetUtilizationRates", d);
    if (v.code) return leave(v.code);
    if (d->utilisation < 0 || d->mig == 1) return leave(NVML_NOT_SUPPORTED);
    out->gpu = (unsigned)d->utilisation;
    out->memory = (unsigned)d->memory_utilisation;
    if (v.garbage) spoil(out, sizeof *out);
    return leave(NVML_SUCCESS);
}

/* -- memory ---------------------------------------------------------------------------------- */

static unsigned long long free_on(const device *d, unsigned long long used) {
    if (d->free >= 0) return (unsigned long long)d->free;
    return used + d->reserved > d->total ? 0 : d->total - used - d->reserved;
}

/* The old struct counts what the driver keeps for itself as used. */
API nvml_return nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    verdict v = enter("nvmlDeviceGetMemoryInfo", d);
    if (v.code) return leave(v.code);
    unsigned long long used = used_on(d);
    out->total = d->total;
    out->used = used + d->reserved;
    out->free = free_on(d, used);
    if (v.garbage) spoil(out, sizeof *out);
    return leave(NVML_SUCCESS);
}

#ifndef WITHOUT_MEMORY_V2
API nvml_return nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    verdict v = enter("nvmlDeviceGetMemoryInfo_v2", d);
    if (v.code) return leave(v.code);
    if (out->version != MEMORY_V2_VERSION) return leave(NVML_ARGUMENT_VERSION_MISMATCH);
    unsigned long long used = used_on(d);
    out->total = d->total;
    out->reserved = d->reserved;
    out->used = used;
    out->free = free_on(d, used);
    if (v.garbage) spoil(out, sizeof *out);
    return leave(NVML_SUCCESS);
}
#endif

/* -- process lists --------------------------------------------------------------------------- */

typedef void put_row(void *rows, int i, const process *p);

/* Only the unversioned lists write these: no device was cut into slices then. */
static void put_v1(void *rows, int i, const process *p) {
    process_v1 row = {p->pid, p->memory};
    ((process_v1 *)rows)[i] = row;
}

/* A variant may have no list that needs it. */
__attribute__((unused)) static void put_v2(void *rows, int i, const process *p) {
    process_v2 row = {p->pid, p->memory, p->gpu_instance, p->compute_instance};
    ((process_v2 *)rows)[i] = row;
}

#ifdef WIDE_ROWS
static void put_v3(void *rows, int i, const process *p) {
    process_wide row = {p->pid, p->memory, p->gpu_instance, p->compute_instance, 0};
    ((process_wide *)rows)[i] = row;
}
#else
#define put_v3 put_v2
#endif

/* Rows as a broken driver writes them: no pid at all, and more memory than any board has. */
static int garbage_rows(process *out) {
    process without_pid = {0, 'C', 999999, 0, 0};
    process immense = {4242, 'C', 1ULL << 60, 0, 0};
    out[0] = without_pid;
    out[1] = immense;
    return 2;
}

static nvml_return list(const char *function, device *d, char kind, put_row *put, unsigned *count,
                        void *rows) {
    static process found[MAX_PROCESSES];
    verdict v = enter(function, d);
    if (v.code) return leave(v.code);
    int n = v.garbage ? garbage_rows(found) : processes_on(d, kind, found, MAX_PROCESSES);
    bool fits = rows && (unsigned)n <= *count;
    *count = (unsigned)n;
    if (n && !fits) return leave(NVML_INSUFFICIENT_SIZE);
    for (int i = 0; i < n; i++) put(rows, i, &found[i]);
    return leave(NVML_SUCCESS);
}

#define LIST(name, kind, put)                                               \
    API nvml_return name(device *d, unsigned *count, void *rows) {          \
        return list(#name, d, kind, put, count, rows);                      \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, 'C', put_v1)
LIST(nvmlDeviceGetGraphicsRunningProcesses, 'G', put_v1)
#ifndef WITHOUT_LISTS_V2
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'C', put_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', put_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', put_v2)
#endif
#ifndef WITHOUT_LISTS_V3
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'C', put_v3)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', put_v3)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', put_v3)
#endif
