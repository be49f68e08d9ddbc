#include <stdint.h>

/*
 * Reads that are under way, by their handles. A thread waits for one in the kernel, by its word: to wait in Go wakes three threads for each read, which
 * costs as much CPU as all else. A word is the handle, above a bit that says that somebody waits. It is 0 once the read has ended. A read whose place another
 * one has is waited for in Go.
 */
enum { HBMFS_BELLS = 4096, HBMFS_AWAITED = 1, HBMFS_BELL_BITS = 1 };
extern __attribute__((visibility("hidden"))) uint64_t hbmfs_bells[HBMFS_BELLS];
