// An NVML for tests: one GPU at any PCI address, with 32 GiB of BAR1 on PCIe 5 x16.
#include <string.h>

typedef struct { unsigned long long total, free, used; } bar1;
static int device;

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **d) { *d = &device; return strlen(id) ? 0 : 2; }
int nvmlDeviceGetBAR1MemoryInfo(void *d, bar1 *b) { b->total = 32ULL << 30; b->free = b->total; b->used = 0; return d == &device ? 0 : 2; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *g) { *g = 5; return d == &device ? 0 : 2; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *w) { *w = 16; return d == &device ? 0 : 2; }
