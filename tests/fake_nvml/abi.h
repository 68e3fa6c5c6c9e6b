/* The part of the driver library's binary interface that the stand-in answers: return codes and
 * the layouts of what callers hand in.  Sizes and order are the library's, names are ours. */
#ifndef STAND_IN_ABI_H
#define STAND_IN_ABI_H

typedef int nvml_return;

enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_VERSION_MISMATCH = 18,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999
};

/* "This number cannot be told": all bits set. */
#define NOT_AVAILABLE_64 ((unsigned long long)-1)
#define NOT_AVAILABLE_32 ((unsigned)-1)

typedef struct memory_v1 {
    unsigned long long total, free, used;
} memory_v1;

typedef struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

#define MEMORY_V2_VERSION ((2u << 24) | (unsigned)sizeof(memory_v2))

/* What the unversioned process lists fill in. */
typedef struct process_v1 {
    unsigned pid;
    unsigned long long memory;
} process_v1;

/* What the _v2 lists fill in, and the _v3 lists of a driver without faults. */
typedef struct process_v2 {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_v2;

/* What the _v3 lists of the drivers 535.43 to 535.86 filled in: callers read 24-byte rows. */
typedef struct process_wide {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_memory;
} process_wide;

typedef struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_info;

typedef struct utilization {
    unsigned gpu, memory; /* percent of time, not of bytes */
} utilization;

#endif
