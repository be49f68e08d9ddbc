/*
 * libhbmfs: the reader and the writer of hbmfs as a C library. It moves ranges of files, of an hbmfs mount or any other,
 * into the memory of an NVIDIA GPU or of the host, and such memory into files, by the fastest path that works, and says
 * which path every byte took.
 *
 *	if (hbmfs_abi() != HBMFS_ABI) ...                     // the library is not the one of this header
 *	hbmfs_failure why;
 *	hbmfs_reader_options o = {.struct_size = sizeof o, .device = 0};
 *	hbmfs_handle reader, file, request;
 *	if (hbmfs_reader_open(&o, &reader, &why)) die(why.text);
 *	if (hbmfs_file_open(reader, "/mnt/pile/.hbmfs/views/tokens.bin", &file, &why)) die(why.text);
 *	hbmfs_gather_begin(file, dst, room, offsets, 512, 8194, HBMFS_KEEP, stream, &request, &why);
 *	... // other work
 *	hbmfs_result r = {.struct_size = sizeof r};
 *	if (hbmfs_wait(request, -1, &r, &why)) die(why.text);  // the bytes are in dst, for any stream
 *	hbmfs_file_close(file, &why);
 *	hbmfs_reader_close(reader, &why);
 *
 * Rules that hold everywhere:
 *
 * - Every function but hbmfs_abi, hbmfs_version and those whose name ends in _name returns an hbmfs_code, HBMFS_OK or why not, and
 *   fills `why` when it fails. why may be NULL. It is the caller's, so that no thread sees another's error. Text is
 *   UTF-8, one sentence, always ended by a zero byte.
 * - Every function may be called from any thread at any time, also on one handle at once.
 * - A handle is a number that is never given out twice. A closed one is refused with HBMFS_CLOSED, a number that never
 *   was one with HBMFS_INVALID; 0 is never a handle. Closing twice is harmless.
 * - There are no callbacks. Closing a reader closes its files, and closing a file cancels its requests and waits for
 *   them; so does a writer of its writes. After HBMFS_OK nothing runs, and nothing uses the caller's memory. HBMFS_TIMEOUT says that a call did not
 *   end within five seconds: the memory must stay, and the caller closes again later.
 * - Arrays and strings that go in are copied before the function returns, but for those of an hbmfs_batch. These, and memory that bytes
 *   go to, or are written from, must stay until the request or write has ended.
 * - A struct with struct_size: the caller sets it to sizeof before the call. Later versions only add at its end; fields
 *   that are not there count as zero. Reserved fields must be zero.
 * - A process that forks: in the child every function returns HBMFS_FORKED at once, also those that close, since
 *   neither the library's threads nor CUDA survive a fork. Load the library in a fresh process (exec, spawn) instead.
 * - The library handles no asynchronous signal and replaces no handler of the program's. Handlers need SA_ONSTACK, as
 *   Python's have it, since a signal may reach a thread with a small stack; those that are there when the library is
 *   loaded are given it. The library must not be unloaded.
 * - An interrupted wait: give hbmfs_wait a short timeout and look for the program's own signals between two of them.
 */
#ifndef LIBHBMFS_H
#define LIBHBMFS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HBMFS_ABI 2 /* hbmfs_abi() must give this */

typedef uint64_t hbmfs_handle; /* of a reader, file, request, draft, verification, piece of memory, writer, snapshot, write or store */

/* Results. Numbers are never given another meaning; there may be more of them in later versions. */
typedef enum {
	HBMFS_OK = 0,
	HBMFS_TIMEOUT = 1,        /* not yet: ask again. Nothing has changed. */
	HBMFS_INVALID = 10,       /* an argument that makes no sense */
	HBMFS_CLOSED = 11,        /* the handle, or what it was opened through, has been closed */
	HBMFS_NOT_FOUND = 12,     /* no such file */
	HBMFS_PERMISSION = 13,    /* the file may not be read */
	HBMFS_STALE = 14,         /* the mount or the file is no longer what it was: open it again */
	HBMFS_UNAVAILABLE = 15,   /* a path that was required does not work here; the text says why */
	HBMFS_NO_DEVICE = 16,     /* no such GPU, or no driver */
	HBMFS_OUT_OF_MEMORY = 17, /* on the GPU, pinnable, or on the host */
	HBMFS_OUT_OF_RANGE = 18,  /* bytes that the file, or memory of hbmfs_memory_alloc, does not have: of all functions */
	HBMFS_TOO_LARGE = 19,     /* more at once than can be: ask for less */
	HBMFS_CANCELLED = 20,     /* by hbmfs_cancel, or because its file or reader was closed */
	HBMFS_IO = 21,            /* reading failed; os_errno says how where it is not 0 */
	HBMFS_FORKED = 22,        /* this process is a fork of the one that loaded the library */
	HBMFS_INTERNAL = 23,      /* a mistake in hbmfs or the driver */
	HBMFS_EXISTS = 24,        /* the checkpoint, or something else of its name, is there already */
	HBMFS_BUSY = 25,          /* a living process works on the checkpoint; the text names it */
	HBMFS_WRITE = 26,         /* writing failed; os_errno says how where it is not 0 */
	HBMFS_FORMAT = 27         /* a file is damaged; the text names the file and the place */
} hbmfs_code;

typedef struct hbmfs_failure {
	int32_t code;     /* the hbmfs_code that was returned */
	int32_t os_errno; /* of the system call that failed, 0 where there is none */
	char text[512];   /* one sentence: what failed, on what, why */
} hbmfs_failure;

uint32_t hbmfs_abi(void);
const char *hbmfs_version(void);             /* such as "v0.4.0"; not to be freed */
const char *hbmfs_code_name(int32_t code);   /* such as "out of range"; not to be freed */

/* ---- readers ---- */

#define HBMFS_HOST (-1) /* the device of host memory */

/*
 * Whether a file's pages stay in the page cache after reading. The kernel keeps pages that any process has mapped or pinned, and dirty
 * ones. Through a mount they are those of the files that hold the bytes, as far as they are open.
 */
typedef enum {
	HBMFS_PAGE_CACHE_KEEP = 0,
	HBMFS_PAGE_CACHE_DROP = 1,
	HBMFS_PAGE_CACHE_AUTO = 2 /* dropped where the files that the reader has opened are more than the page cache could have: in the process's
				     control groups, of version 1 and 2, and on the machine, beside memory that is used for other things */
} hbmfs_page_cache;

/*
 * Paths: "auto", "direct" (storage to GPU by DMA), "mapped" (page cache to GPU, or to pinned memory, by the GPU), "staged" (pread
 * into pinned memory, overlapped with copies), "compat" (libcufile's own POSIX mode), "host" (pread into host memory).
 *
 * method is a wish: where it does not work another path is taken, and hbmfs_result.reason says why. require is an
 * order: where it does not work, opening the reader or the file fails with HBMFS_UNAVAILABLE. Bytes that lie on no
 * storage, such as the header that a view of a mount begins with, are always "staged" or "host".
 */
typedef struct hbmfs_reader_options {
	uint32_t struct_size;
	int32_t device;       /* CUDA's index, 0 the first; HBMFS_HOST */
	const char *method;   /* NULL: "auto" */
	const char *require;  /* NULL: nothing is required */
	int32_t threads;      /* that read; 0: three quarters of the CPUs, 4 to 16, or for each of several readers its share, 2 to 16. For a GPU fewer read where more are no faster */
	int32_t readers;      /* readers that share this host, if the caller knows it; 0: one */
	int64_t arena_bytes;  /* of the device's memory, for "direct" and "compat", and for widening what is not registered yet, when one first wants it; 0: 1 GiB, on the host 256 MiB */
	int64_t pinned_bytes; /* most host memory kept registered with CUDA; of all readers with the same number; 0: a quarter of the RAM, or of the control group's limit */
	int64_t slot_bytes;   /* that a thread moves at a time; 0: 2 MiB. Each thread pins three slots */
	int32_t reuse;        /* not 0: the same bytes will be read again, so that keeping them registered pays */
	int32_t page_cache;   /* an hbmfs_page_cache: what closing a file does with its pages */
	const char *libcuda;   /* NULL: the system's */
	const char *libcufile; /* NULL: the system's */
	const char *libnvml;   /* for later versions: this one does not ask NVML */
	const char *hbmfs;     /* the hbmfs command, by which "direct" is proven in a process of its own; NULL: the one in PATH */
	const char *client;    /* the name by which the mount's status shows this reader; NULL: "libhbmfs" */
} hbmfs_reader_options;

typedef struct hbmfs_reader_info {
	uint32_t struct_size;
	int32_t device;       /* CUDA's index, HBMFS_HOST */
	char name[128];       /* "NVIDIA H200"; "host" */
	char uuid[64];        /* "GPU-xxxxxxxx-...", as nvidia-smi prints it; empty for the host */
	char pci[32];         /* "0000:19:00.0"; empty for the host */
	int32_t numa;         /* the node it hangs on, -1 where not known */
	char method[16];      /* in force: "auto", or one path only */
	char note[256];       /* why the wished method is not in force; empty where it is */
} hbmfs_reader_info;

/* Bytes by the path that they took. */
typedef struct hbmfs_moved_bytes {
	int64_t direct, mapped, staged, compat, host;
} hbmfs_moved_bytes;

typedef struct hbmfs_reader_stats {
	uint32_t struct_size;
	int32_t files;            /* open now */
	int32_t requests;         /* begun and not yet waited for or cancelled */
	int32_t reserved;
	hbmfs_moved_bytes moved;  /* since the reader was opened */
	int64_t pinned_bytes;     /* of files, registered with CUDA now */
	int64_t reads;            /* requests that ended well */
	char path[16];            /* of the last of them; empty before the first */
	char reason[256];         /* why that path */
	int64_t dropped_bytes;    /* that went from the page cache by this reader's advice; all of a file's where the kernel does not tell this user */
} hbmfs_reader_stats;

/* Takes up to seconds on a GPU, since CUDA makes its context and pins memory. */
int32_t hbmfs_reader_open(const hbmfs_reader_options *options, hbmfs_handle *reader, hbmfs_failure *why);
int32_t hbmfs_reader_get_info(hbmfs_handle reader, hbmfs_reader_info *info, hbmfs_failure *why);
int32_t hbmfs_reader_get_stats(hbmfs_handle reader, hbmfs_reader_stats *stats, hbmfs_failure *why);

/*
 * Closes its files too. HBMFS_TIMEOUT: a read is slow or hangs, and may still write to the caller's memory; the reader
 * does nothing more, close it again later. HBMFS_INTERNAL: the reader is closed, and some resource is lost.
 */
int32_t hbmfs_reader_close(hbmfs_handle reader, hbmfs_failure *why);

/* ---- files ---- */

typedef struct hbmfs_file_info {
	uint32_t struct_size;
	uint32_t mounted;      /* 1: of an hbmfs mount, 0: any other */
	int64_t size;          /* bytes */
	uint32_t dtype;        /* of the elements: 0 unknown, 1 u8, 2 i8, 3 u16, 4 i16, 5 u32, 6 i32, 7 u64, 8 i64, 9 f16,
	                          10 bf16, 11 f32, 12 f64, 13 bool, 14 f8_e4m3, 15 f8_e5m2 (docs/reference/control-protocol.md) */
	uint32_t element_size; /* bytes, 0 where unknown */
	int64_t tokens;        /* elements of the payload, -1 where unknown */
	uint64_t generation;   /* equal for equal content; 0 where unknown */
	int64_t runs;          /* pieces that the file is made of; 1 for a plain file */
	hbmfs_moved_bytes moved; /* from this file so far */
	char note[256];        /* why it is read through the mount and not from where its bytes lie; empty as a rule */
	uint32_t seen;         /* 1: the last read found all its bytes in memory that the device reads, and hbmfs_prefetch does nothing */
	uint32_t reserved;
} hbmfs_file_info;

int32_t hbmfs_file_open(hbmfs_handle reader, const char *path, hbmfs_handle *file, hbmfs_failure *why);

/*
 * Opens count files, a few hundred in one round trip to the mount where they are of one. files[i] is 0 where
 * codes[i] is not HBMFS_OK. Returns HBMFS_OK when all could be opened, else the first code that is not, and its why.
 * Those that could be opened are open either way.
 */
int32_t hbmfs_file_open_many(hbmfs_handle reader, const char *const *paths, int64_t count, hbmfs_handle *files, int32_t *codes,
			     hbmfs_failure *why);
int32_t hbmfs_file_get_info(hbmfs_handle file, hbmfs_file_info *info, hbmfs_failure *why);

/* Cancels its requests first, and waits for them. HBMFS_TIMEOUT as above. */
int32_t hbmfs_file_close(hbmfs_handle file, hbmfs_failure *why);

/*
 * Ends this reader's mappings and registrations of a file, and then drops its pages as page_cache (an hbmfs_page_cache) says. dropped gets the bytes
 * that went. Processes that read one file all call it with HBMFS_PAGE_CACHE_KEEP, wait for each other, and call it again to drop. The file can still be read.
 */
int32_t hbmfs_file_uncache(hbmfs_handle file, int32_t page_cache, int64_t *dropped, hbmfs_failure *why);

/*
 * Announces reads of count ranges, in their order. It is advice, which may be ignored: HBMFS_OK says only that the
 * ranges make sense.
 */
int32_t hbmfs_prefetch(hbmfs_handle file, const int64_t *offsets, const int64_t *lengths, int64_t count, hbmfs_failure *why);

/* ---- reading into memory of the caller ----
 *
 * dst is an address of the reader's device: a CUdeviceptr of cudaMalloc, of torch, or of hbmfs_memory_alloc, at any
 * alignment; on the host any address. dst_length is the room there: a read that does not fit is refused before anything is
 * written. An address that CUDA does not know as memory of that GPU is refused. Bytes that are not widened may also go to memory of
 * the host that CUDA has pinned, with "auto" or "mapped". Those count as "mapped" where the GPU copies them, and as "host" where threads do.
 *
 * stream is a CUstream (cudaStream_t) of the reader's device, as a number. Nothing is written to dst before the
 * work that was enqueued on it, up to the call of begin, is done: so memory of a caching allocator can be given. 0 is the legacy
 * default stream, as everywhere in CUDA. HBMFS_NO_STREAM: nothing to wait for. On the host it is ignored.
 */
#define HBMFS_NO_STREAM UINT64_MAX

/*
 * How elements are converted on the device, after they have crossed the link: those of U8 have 1 byte and no sign, and I64 are
 * int64_t. dst must be aligned to what it gets.
 */
typedef enum {
	HBMFS_KEEP = 0, /* they stay as they are */
	HBMFS_U16_TO_I64 = 1,
	HBMFS_U32_TO_I64 = 2,
	HBMFS_U8_TO_I32 = 3,
	HBMFS_U8_TO_I64 = 4,
	HBMFS_I8_TO_I32 = 5,
	HBMFS_I8_TO_I64 = 6,
	HBMFS_U16_TO_I32 = 7,
	HBMFS_I16_TO_I32 = 8,
	HBMFS_I16_TO_I64 = 9,
	HBMFS_I32_TO_I64 = 10
} hbmfs_widen;

typedef struct hbmfs_result {
	uint32_t struct_size;
	uint32_t reserved;
	hbmfs_moved_bytes moved; /* bytes of the file, before any widening */
	char path[16];           /* that was chosen: "mapped"; a part of the bytes may have taken another, see moved */
	char reason[256];        /* why */
} hbmfs_result;

/* Starts reading [offset, offset+length) of a file to dst. */
int32_t hbmfs_read_begin(hbmfs_handle file, uint64_t dst, int64_t dst_length, int64_t offset, int64_t length, uint64_t stream,
			 hbmfs_handle *request, hbmfs_failure *why);

/*
 * Starts reading count spans of length bytes, which begin at offsets, to dst, one after the other: a [count, length]
 * tensor. Spans may overlap and come in any order. widen is an hbmfs_widen; where it is not HBMFS_KEEP, length must be
 * whole elements. On the host the function may read small batches before it returns, where the last one came from the page cache.
 */
int32_t hbmfs_gather_begin(hbmfs_handle file, uint64_t dst, int64_t dst_length, const int64_t *offsets, int64_t count, int64_t length,
			   int32_t widen, uint64_t stream, hbmfs_handle *request, hbmfs_failure *why);

/*
 * A batch: spans of several files, which are of any readers of dst's device, and what is said of their elements. The arrays
 * must stay until the request has ended.
 */
typedef struct hbmfs_batch {
	uint32_t struct_size;
	int32_t element; /* bytes of an element */
	const hbmfs_handle *files;
	const int64_t *begins; /* of each file: bytes before its first element; NULL: none */
	int64_t file_count;

	int64_t count;          /* spans */
	const int32_t *sources; /* of each: which of the files; NULL: the first */
	const int64_t *starts;  /* of each: its first element; -1: nothing is read, and what is there stays */
	const int64_t *lengths; /* of each: elements; NULL: `length` */
	const int64_t *places;  /* of each: the element of dst that it goes to; NULL: one behind the other. They must not overlap */
	int64_t length;
	uint64_t dst;
	int64_t dst_length; /* bytes */
	uint64_t stream;

	/* Documents, or parts of them, that the elements of dst are of, one behind the other. */
	int64_t sequence_count;
	const int64_t *sequence_lengths; /* elements of each */
	const int64_t *sequence_documents;
	int64_t elements;      /* of all sequences, less than 2^31 */
	uint64_t cu_seqlens;   /* int32[sequence_count + 1]: where each begins, and the end; 0: none of these three is written, only padding */
	uint64_t position_ids; /* int64[elements]: each element's place in its sequence */
	uint64_t document_ids; /* int64[elements]: the number of each element's document */
	uint64_t pad;          /* elements of dst that are of a document below 0 (padding) become this, as far as their 1, 2, 4 or 8 bytes go */

	/* How elements are written. Lengths and places count those that are read. */
	int32_t widen; /* an hbmfs_widen of elements of `element` bytes */
	int32_t reserved;
	uint64_t targets; /* not 0: of each row of `length` elements dst gets all but the last one, and targets, on the same device, all but the
			     first. Both have length - 1 elements for a row. Without lengths and places */
	int64_t targets_length; /* bytes */
} hbmfs_batch;

/*
 * Starts reading a batch, as one request. Closing one of the files ends it with HBMFS_CANCELLED. Its handle stays until hbmfs_wait
 * or hbmfs_cancel ends it. Spans and sequences that cannot be are an error of this call, or of hbmfs_wait.
 */
int32_t hbmfs_batch_begin(const hbmfs_batch *batch, hbmfs_handle *request, hbmfs_failure *why);

/*
 * Waits for a request at most timeout_ns, forever if that is negative, not at all if it is 0. HBMFS_TIMEOUT: it goes
 * on, wait again. Anything else ends the request and its handle: HBMFS_OK means that the bytes are in dst, for the CPU
 * and for any stream; another code that they are not, and that nothing writes to dst any more. result may be NULL.
 */
int32_t hbmfs_wait(hbmfs_handle request, int64_t timeout_ns, hbmfs_result *result, hbmfs_failure *why);

/*
 * Ends a request or write, done or not, and its handle. HBMFS_OK: nothing uses its memory any more. HBMFS_TIMEOUT: it was told to
 * end, but a call into the system or the driver, or the caller's stream, still holds it: its memory must stay. Call again.
 */
int32_t hbmfs_cancel(hbmfs_handle request, int64_t timeout_ns, hbmfs_failure *why);

/* Begin and wait in one, for as long as it takes. */
int32_t hbmfs_read(hbmfs_handle file, uint64_t dst, int64_t dst_length, int64_t offset, int64_t length, uint64_t stream,
		   hbmfs_result *result, hbmfs_failure *why);
int32_t hbmfs_gather(hbmfs_handle file, uint64_t dst, int64_t dst_length, const int64_t *offsets, int64_t count, int64_t length,
		     int32_t widen, uint64_t stream, hbmfs_result *result, hbmfs_failure *why);

/* ---- orders: loops over samples and documents that cost too much in an interpreter ---- */

/* Documents in samples of room tokens: the sequences of one sample after another. Arrays are the caller's. */
typedef struct hbmfs_packed {
	uint32_t struct_size;
	uint32_t reserved;
	int64_t capacity;           /* sequences that there is room for, of borders for one more */
	int64_t sequences, samples; /* how many there are; where that is more than capacity, there may be fewer sequences */
	int64_t tokens;             /* of the documents */
	int64_t *starts, *lengths, *documents; /* of each document in a sample: its first token, its tokens, its number; of padding: -1, tokens, -1 */
	int64_t *borders;                      /* how many sequences come before each sample, and in all */
} hbmfs_packed;

/*
 * Packs a window of documents into samples of room tokens: best-fit decreasing. Document d has borders[d + 1] - borders[d] tokens, from
 * begins[d] on (NULL: borders[d]), and one longer than room is cut. The window is count places from first on of a permutation of all documents
 * by so many keys (see hbmfs_starts). Samples come in the order of a permutation by as many further keys. With rounds 0 documents come as
 * they are numbered, and samples as they were begun. Where sequences is more than capacity, no array is written: call again with so much.
 * With capacity 0 and without arrays the function counts exactly.
 */
int32_t hbmfs_pack(const int64_t *borders, int64_t borders_count, const int64_t *begins, int64_t first, int64_t count, int64_t room,
		   const uint64_t *keys, int64_t rounds, hbmfs_packed *packed, hbmfs_failure *why);

/*
 * Says which documents rows of length consecutive tokens hold. Row i begins at token starts[i] of dataset sources[i] (NULL: the first),
 * whose counts borders say where each of its documents begins, and where the last one ends. each[i] is how many documents row i holds,
 * and total is their sum. documents has their numbers, lengths their tokens in the row, goes_on 1 for those that go on behind it; where
 * total is more than room, call again with so much.
 */
int32_t hbmfs_cut(const int64_t *const *borders, const int64_t *counts, int64_t datasets, const int32_t *sources, const int64_t *starts, int64_t rows,
		  int64_t length, int64_t *each, int64_t *lengths, int64_t *documents, uint8_t *goes_on, int64_t room, int64_t *total, hbmfs_failure *why);

/* The samples of a dataset, in the order of all epochs: sample k is one of epoch k / count. */
typedef struct hbmfs_epochs {
	int64_t count, apart;   /* samples of an epoch, and tokens from one of them to the next */
	int64_t given;          /* samples that come before those that were drawn */
	int64_t first, epochs;  /* keys are of so many epochs from the first one on */
	const uint64_t *keys;   /* NULL: samples come as they lie */
	int64_t documents;
	const int64_t *borders, *before; /* documents + 1 each: where documents begin, and how many samples come before each; NULL: none are known */
} hbmfs_epochs;

/*
 * Gives each of count samples its first token, and the number of its dataset, of k (at most 256). drawn has the datasets of n consecutive samples,
 * and places, which ascend, say which of them are asked for. With drawn NULL they are places in the order of the first dataset. The order of
 * an epoch is a permutation, a Feistel network with so many rounds and cycle walking. python/hbmfs/data/permutation.py defines it.
 */
int32_t hbmfs_starts(const hbmfs_epochs *of, int64_t k, int64_t rounds, const uint8_t *drawn, int64_t n, const int64_t *places, int64_t count,
		     int64_t *starts, int32_t *sources, hbmfs_failure *why);

/* A source of a mixture. Its next sample comes after may - 1 samples at the earliest, and is due as sample due. */
typedef struct hbmfs_source {
	int64_t may, due;
	int64_t then_may, then_due;     /* of the sample after that one */
	int64_t every;                  /* samples from one to the next, and part/slope of one */
	uint64_t slope[2], part[2];     /* of 128 bits, the upper half first; slope 0: it gives no further one */
	uint64_t may_past[2], due_past[2]; /* what then_may and then_due were rounded up by, times slope */
} hbmfs_source;

/*
 * Draws at most room samples behind the first n of a mixture: of the sources, at most 256, whose next sample may come, the one that is due
 * first. It stops behind one of a source that is due next only beyond end, or never. count is how many were drawn.
 */
int32_t hbmfs_draw(hbmfs_source *sources, int64_t k, int64_t n, int64_t end, uint8_t *drawn, int64_t room, int64_t *count, hbmfs_failure *why);

/* ---- safetensors ---- */

/*
 * Reads and checks the header of a safetensors file, which is open for reading as fd; errors call it name. table gets JSON of length bytes,
 * without a zero behind it:
 *
 *	{"size": BYTES, "metadata": {KEY: TEXT}, "tensors": [[NAME, DTYPE, [DIMENSION, ...], OFFSET, BYTES], ...]}
 *
 * The first size is the file's. Tensors come in the order of their bytes, which begin at OFFSET in the file. Where length is more than
 * room, nothing is written: call again with so much. HBMFS_FORMAT: the file is damaged, or no such file; what is accepted is what the safetensors package accepts,
 * but for names that are there twice.
 */
int32_t hbmfs_safetensors_header(int32_t fd, const char *name, char *table, int64_t room, int64_t *length, hbmfs_failure *why);

/* ---- checkpoints: drafts and verifications have handles ----
 *
 * A checkpoint is a directory of files that is complete or not there. Its files are written into a draft beside it, of mode
 * 0700, and synced. Publishing writes a manifest with their sizes and sums, and renames the draft. A crash leaves a draft, which the next
 * hbmfs_draft_begin of this name removes, and so does hbmfs_checkpoint_clean.
 *
 * In a checkpoint volume (hbmfs checkpoint mount) a draft is written past FUSE: its files are descriptors that the volume's daemon
 * gives, and nothing of them is left when the process that began it ends. Such a draft has no directory:
 * hbmfs_draft_write_begin writes its files, of both kinds. Where path lies in a mount of hbmfs whose daemon cannot be asked, that is
 * HBMFS_UNAVAILABLE.
 *
 * A call that makes, publishes or removes fails with HBMFS_WRITE (26) and os_errno where the system could not.
 */
typedef struct hbmfs_draft_file {
	const char *name;       /* below the draft, slash-separated, UTF-8 */
	int64_t size;           /* bytes */
	const uint32_t *crc32c; /* CRC-32C (Castagnoli) of each 4 MiB; the last ones may be shorter */
	int64_t sums;           /* of them: (size + 4 MiB - 1) / 4 MiB */
} hbmfs_draft_file;

/*
 * Makes the draft of the checkpoint at path, and the directory around it. part of parts, counted from 0, says which part of a
 * checkpoint this is that several nodes keep on disks of their own; 0 of 1 where one directory has all. HBMFS_EXISTS: something is at
 * path; a complete checkpoint is never overwritten. HBMFS_BUSY: a living process writes or removes it.
 */
int32_t hbmfs_draft_begin(const char *path, int32_t part, int32_t parts, hbmfs_handle *draft, hbmfs_failure *why);

/* Gives 1 to is where the draft is one of a checkpoint volume, 0 where it is a directory. */
int32_t hbmfs_draft_is_in_volume(hbmfs_handle draft, int32_t *is, hbmfs_failure *why);

/* The same of a checkpoint that may not be there. HBMFS_INVALID: path lies in a volume, and is none of the directories at its top. */
int32_t hbmfs_checkpoint_in_volume(const char *path, int32_t *is, hbmfs_failure *why);

/*
 * Opens the draft of the checkpoint at path that another process of this user has begun, to write files of it. hbmfs_draft_drop then
 * ends the handle, and the draft stays. Nobody has begun the draft, or it is over: HBMFS_STALE in a volume, HBMFS_NOT_FOUND elsewhere.
 */
int32_t hbmfs_draft_attach(const char *path, hbmfs_handle *draft, hbmfs_failure *why);

/* The directory of a checkpoint's draft, for any process. room is that of directory, the zero byte too. */
int32_t hbmfs_draft_directory(const char *path, char *directory, int64_t room, hbmfs_failure *why);

/*
 * Publishes a draft and ends its handle: the checkpoint is on the disk. files are all that is in the draft. HBMFS_INVALID: it
 * has other ones. HBMFS_BUSY, in a volume: a file is still open for writing, or mapped, in any process; the text names it. After an error the checkpoint is not there and the draft stays: try again, or drop it.
 */
int32_t hbmfs_draft_publish(hbmfs_handle draft, const hbmfs_draft_file *files, int64_t count, hbmfs_failure *why);

/* Removes a draft and ends its handle, also where not all could be removed. */
int32_t hbmfs_draft_drop(hbmfs_handle draft, hbmfs_failure *why);

typedef struct hbmfs_checkpoint_info {
	char name[256];
	int32_t part, parts; /* see hbmfs_draft_begin */
	int64_t files;
	int64_t size;        /* bytes */
	int64_t created;     /* nanoseconds since 1970, by the writer's clock, which may be wrong */
} hbmfs_checkpoint_info;

/*
 * Lists the complete checkpoints in a directory, by the natural order of their names: step_9 before step_10. The first room of
 * them go to infos; count is how many there are.
 */
int32_t hbmfs_checkpoint_list(const char *directory, hbmfs_checkpoint_info *infos, int64_t room, int64_t *count, hbmfs_failure *why);

/* Renames a checkpoint to a hidden name and removes it, so that it is never half there. */
int32_t hbmfs_checkpoint_remove(const char *path, hbmfs_failure *why);

/*
 * Removes what dead processes left in a directory, and nothing of living ones. names gets the names of what was removed, each
 * with a zero byte behind it, as far as room goes; length is that of all of them.
 */
int32_t hbmfs_checkpoint_clean(const char *directory, char *names, int64_t room, int64_t *length, hbmfs_failure *why);

typedef struct hbmfs_verified {
	uint32_t struct_size;
	uint32_t reserved;
	int64_t done, total; /* bytes */
	int64_t files;
	int64_t damaged;     /* chunks and files that are not what was published */
} hbmfs_verified;

/* Starts comparing all bytes of a checkpoint with their sums, on so many threads; 0: one for each CPU, at most 8. */
int32_t hbmfs_verify_begin(const char *path, int32_t threads, hbmfs_handle *verification, hbmfs_failure *why);

/*
 * Waits as hbmfs_wait does. HBMFS_TIMEOUT: it goes on, and verified says how far it is. HBMFS_FORMAT: the text names the first
 * damage, and verified says how much there is. HBMFS_IO: the first damage is a file that cannot be read. verified may be NULL.
 */
int32_t hbmfs_verify_wait(hbmfs_handle verification, int64_t timeout_ns, hbmfs_verified *verified, hbmfs_failure *why);

/* Ends a verification, done or not. HBMFS_TIMEOUT: a read still hangs in the system; call again. */
int32_t hbmfs_verify_cancel(hbmfs_handle verification, int64_t timeout_ns, hbmfs_failure *why);

/* ---- memory of a GPU, for callers that have no allocator of their own ----
 *
 * It belongs to the process and not to the reader: it stays when the reader is closed, and is given back by
 * hbmfs_memory_free. On the host it is HBMFS_INVALID: use malloc.
 */
int32_t hbmfs_memory_alloc(hbmfs_handle reader, int64_t length, hbmfs_handle *memory, uint64_t *pointer, hbmfs_failure *why);

/* Copies [offset, offset+length) of it to the host and waits. It waits for no stream but the legacy default one. */
int32_t hbmfs_memory_copy_out(hbmfs_handle memory, int64_t offset, int64_t length, void *to, hbmfs_failure *why);
int32_t hbmfs_memory_free(hbmfs_handle memory, hbmfs_failure *why);

/* ---- writers ----
 *
 * A writer makes files of memory: of its GPU, and of the host. It sums them on the way: a CRC-32C (Castagnoli) of each
 * HBMFS_CHUNK bytes of a file.
 *
 * Paths: "auto", "direct" (GPU to storage by DMA), "mapped" (GPU to the pages of a file of tmpfs), "staged" (past the
 * page cache, O_DIRECT), "buffered" (through the page cache). method and require are as of readers, but that a
 * directory's filesystem decides: a path that is required and does not work there is HBMFS_UNAVAILABLE of the write.
 */
#define HBMFS_CHUNK (4 << 20)

typedef struct hbmfs_writer_options {
	uint32_t struct_size;
	int32_t device;        /* CUDA's index, 0 the first; HBMFS_HOST */
	const char *method;    /* NULL: "auto" */
	const char *require;   /* NULL: nothing is required */
	int32_t threads;       /* that copy, sum and write; 0: 8, but no more than there are CPUs, and 4 at least */
	int32_t reserved;
	int64_t arena_bytes;   /* of pinned memory for snapshots; 0: none */
	int64_t rate;          /* most bytes a second to storage; 0: no bound */
	const char *libcuda;   /* NULL: the system's */
	const char *libcufile; /* NULL: the system's */
	const char *libnvml;   /* for later versions */
	const char *hbmfs;     /* the hbmfs command, by which "direct" is proven in a process of its own; NULL: the one in PATH */
} hbmfs_writer_options;

/* Bytes of files by the path that they took. Zeros that no part covers count, too. */
typedef struct hbmfs_written_bytes {
	int64_t direct, mapped, staged, buffered;
} hbmfs_written_bytes;

typedef struct hbmfs_writer_stats {
	uint32_t struct_size;
	int32_t ready;             /* 1: the arena is pinned, or there is none */
	int64_t arena_bytes;
	hbmfs_written_bytes moved; /* since the writer was opened */
	int64_t writes;            /* that ended well */
	char path[16];             /* of the last of them; empty before the first */
	char reason[256];          /* why that path */
} hbmfs_writer_stats;

/* Does not wait for the arena, which comes up in the background. */
int32_t hbmfs_writer_open(const hbmfs_writer_options *options, hbmfs_handle *writer, hbmfs_failure *why);
int32_t hbmfs_writer_get_stats(hbmfs_handle writer, hbmfs_writer_stats *stats, hbmfs_failure *why);

/* Waits until the arena is pinned, as hbmfs_wait does. HBMFS_OUT_OF_MEMORY: it cannot be. */
int32_t hbmfs_writer_wait_ready(hbmfs_handle writer, int64_t timeout_ns, hbmfs_failure *why);

/*
 * Cancels its writes and waits for them. HBMFS_TIMEOUT: as of readers. Snapshots stay until they are released, and their
 * memory with them.
 */
int32_t hbmfs_writer_close(hbmfs_handle writer, hbmfs_failure *why);

/* Memory that is written: [address, address + length) of the host, or of the writer's GPU. */
typedef struct hbmfs_memory {
	uint64_t address;
	int64_t length;
	int32_t on_device; /* 1: a CUdeviceptr; 0: an address of the host */
	int32_t reserved;
} hbmfs_memory;

/*
 * Starts copying count pieces of memory into the arena, after the work that is on stream at the call; see reading above.
 * copies[i] becomes the address of the copy of the i-th, which begins with a page. Waits timeout_ns for room that other
 * snapshots give back: HBMFS_TIMEOUT: nothing has begun, call again. HBMFS_TOO_LARGE: there can never be room.
 */
int32_t hbmfs_snapshot_begin(hbmfs_handle writer, const hbmfs_memory *list, int64_t count, uint64_t stream, int64_t timeout_ns,
			     uint64_t *copies, hbmfs_handle *snapshot, hbmfs_failure *why);

/*
 * Waits until all is copied, so that the memory may change. It does not end the handle. took_ns is the time from begin
 * until then; it may be NULL.
 */
int32_t hbmfs_snapshot_wait(hbmfs_handle snapshot, int64_t timeout_ns, int64_t *took_ns, hbmfs_failure *why);

/* Ends a snapshot and its handle: its room is given to others, once all is copied. */
int32_t hbmfs_snapshot_release(hbmfs_handle snapshot, hbmfs_failure *why);

/* A file to be made. Its parts are the next `parts` of the array of all parts. */
typedef struct hbmfs_write_file {
	const char *name; /* in the directory: no path. A file that is there is HBMFS_WRITE with EEXIST */
	int64_t size;     /* bytes */
	int64_t parts;
} hbmfs_write_file;

/* Memory that becomes the bytes of a file from offset on. Parts of a file are disjoint and in order; other bytes are zeros. */
typedef struct hbmfs_write_part {
	int64_t offset;
	hbmfs_memory memory;
} hbmfs_write_part;

typedef struct hbmfs_write_result {
	uint32_t struct_size;
	uint32_t reserved;
	hbmfs_written_bytes moved;
	int64_t took_ns;     /* from begin until all files were synced */
	int64_t prepared_ns; /* of it, until pages of the files were there and registered: "mapped" only */
	int64_t released_ns; /* of it, until they were no longer registered: likewise */
	char path[16];       /* that was chosen; a part of the bytes may have taken another, see moved */
	char reason[256];    /* why */
} hbmfs_write_result;

/*
 * Starts writing files into a directory that is there. Memory must stay as it is until the write has ended. A write that
 * failed or was cancelled leaves its files to the caller. The directory is not synced. End it by hbmfs_write_wait or
 * hbmfs_cancel.
 */
int32_t hbmfs_write_begin(hbmfs_handle writer, const char *directory, const hbmfs_write_file *files, int64_t file_count,
			  const hbmfs_write_part *parts, int64_t part_count, uint64_t stream, hbmfs_handle *write, hbmfs_failure *why);

/*
 * The same into a draft, whether that is a directory or one of a checkpoint volume. There the files are closed and sealed with their
 * sums when the write has ended.
 */
int32_t hbmfs_draft_write_begin(hbmfs_handle writer, hbmfs_handle draft, const hbmfs_write_file *files, int64_t file_count,
				const hbmfs_write_part *parts, int64_t part_count, uint64_t stream, hbmfs_handle *write, hbmfs_failure *why);

/* Gives the bytes that are written by now. */
int32_t hbmfs_write_progress(hbmfs_handle write, int64_t *written, hbmfs_failure *why);

/*
 * Waits as hbmfs_wait does. HBMFS_OK: the files are on storage, and sums, which may be NULL, has the sums of all chunks of
 * the first file, then of the second; sum_count must be how many there are: the sizes, divided by HBMFS_CHUNK, rounded up.
 */
int32_t hbmfs_write_wait(hbmfs_handle write, int64_t timeout_ns, hbmfs_write_result *result, uint32_t *sums, int64_t sum_count,
			 hbmfs_failure *why);

/* ---- KV volumes: blocks by key, that leave a GPU and come back ----
 *
 * A store is one namespace of a volume (hbmfs kv mount), for one device. Requests take many blocks at once. A block that is not there,
 * or for which there is no room, is an outcome and no error: docs/guide/kv-engines.md.
 *
 *	hbmfs_kv_options o = {.struct_size = sizeof o, .device = 0, .mount = "/mnt/kv", .namespace_ = "llama-8b-fp8", .block_bytes = 2 << 20,
 *			      .flags = HBMFS_KV_CREATE | HBMFS_KV_WRITE};
 *	hbmfs_kv_open(&o, &store, &why);
 *	hbmfs_kv_batch b = {.struct_size = sizeof b, .count = n, .keys = keys, .key_lengths = lengths, .parts = memory, .part_count = n,
 *			    .stream = stream};
 *	hbmfs_kv_put_begin(store, &b, &request, &why);
 *	hbmfs_kv_wait(request, -1, NULL, outcomes, NULL, n, &why);   // or hbmfs_cancel
 */
#define HBMFS_KV_CREATE 1u /* make the namespace where there is none */
#define HBMFS_KV_WRITE 2u  /* to put and to remove */
#define HBMFS_KV_SUMS 4u   /* blocks in memory have checksums (CRC-32C), too, which gets compare; blocks on the disk always do */

typedef struct hbmfs_kv_options {
	uint32_t struct_size;
	int32_t device;         /* CUDA's index, 0 the first; HBMFS_HOST */
	const char *mount;      /* a path in the volume */
	const char *namespace_; /* its name: of one model, layout and dtype */
	int64_t block_bytes;    /* the most that a block has; 0: as the namespace has it */
	uint32_t flags;         /* HBMFS_KV_CREATE, HBMFS_KV_WRITE, HBMFS_KV_SUMS */
	uint32_t mode;          /* permission bits of a namespace that this makes; 0: 0600 */
	int32_t threads;        /* that copy; 0: 4, but on the host no more than there are CPUs */
	int32_t reserved;
	const char *client;     /* the name by which the mount's status shows this store; NULL: "libhbmfs" */
	const char *libcuda;    /* NULL: the system's */
} hbmfs_kv_options;

/* What became of one block or key. */
typedef enum {
	HBMFS_KV_DONE = 0,       /* it was stored, loaded, found, pinned, unpinned or removed */
	HBMFS_KV_MISSING = 1,    /* it is not there */
	HBMFS_KV_PRESENT = 2,    /* of a put: it was there before */
	HBMFS_KV_BUSY = 3,       /* of a put: another request is writing it */
	HBMFS_KV_NO_ROOM = 4,    /* of a put: nothing can be evicted now */
	HBMFS_KV_OVER_LIMIT = 5, /* this user holds as much as one user may */
	HBMFS_KV_LENGTH = 6,     /* of a get: the block has another length than the memory */
	HBMFS_KV_DAMAGED = 7,    /* of a get: its bytes are not those that were stored */
	HBMFS_KV_LOST = 8,       /* of a put: its reservation ended with the daemon, each time */
	HBMFS_KV_FAILED = 9,     /* its tier could not be read or written */
	HBMFS_KV_UNDONE = 10     /* the request ended before its turn */
} hbmfs_kv_outcome;

/* Blocks, or keys alone, or tokens alone. Arrays are read before begin returns. */
typedef struct hbmfs_kv_batch {
	uint32_t struct_size;
	int32_t eventfd;            /* gets 1 added once the request has ended; 0: none */
	int64_t count;
	const uint8_t *keys;        /* one behind the other */
	const int32_t *key_lengths; /* bytes of each, 1 to 64 */
	const hbmfs_memory *parts;  /* memory of all blocks, see writers; a block's bytes are its parts, one behind the other */
	const int64_t *part_counts; /* of each block; NULL: one */
	int64_t part_count;         /* of all */
	uint64_t stream;            /* see reading into memory of the caller */
	const uint64_t *tokens;     /* of hbmfs_kv_unpin_begin */
} hbmfs_kv_batch;

/* Bytes of blocks, by the path that they took, and by the tier of their slots. */
typedef struct hbmfs_kv_moved {
	int64_t mapped; /* between the GPU and slots that are registered with CUDA */
	int64_t staged; /* through pinned memory */
	int64_t host;   /* by the CPU */
	int64_t memory, disk;
} hbmfs_kv_moved;

typedef struct hbmfs_kv_result {
	uint32_t struct_size;
	uint32_t reserved;
	int64_t done; /* outcomes that are HBMFS_KV_DONE */
	hbmfs_kv_moved moved;
} hbmfs_kv_result;

typedef struct hbmfs_kv_stats {
	uint32_t struct_size;
	uint32_t reserved;
	int64_t block_bytes;
	hbmfs_kv_moved put, get;          /* since the store was opened */
	int64_t stored, present, refused; /* blocks of puts */
	int64_t loaded, missing, damaged; /* blocks of gets */
	int64_t requests;                 /* under way */
	int64_t connections;              /* to daemons, one after the other */
	int64_t pinned_bytes;             /* of the memory tier, registered with CUDA */
	int64_t direct_bytes;             /* of puts and gets of the disk tier: past the page cache */
	char buffered[192];               /* why blocks of the disk tier go through the page cache; "" where they do not */
} hbmfs_kv_stats;

/*
 * HBMFS_NOT_FOUND: there is no such namespace, and HBMFS_KV_CREATE is not set. HBMFS_INVALID: it has blocks of another size. HBMFS_PERMISSION:
 * its mode keeps this user out, or this process would write and has the volume mounted read-only. HBMFS_UNAVAILABLE: mount lies in no KV volume, or its daemon cannot be asked.
 */
int32_t hbmfs_kv_open(const hbmfs_kv_options *options, hbmfs_handle *store, hbmfs_failure *why);

/*
 * Start a request. Memory must stay as it is, or is written to, until it has ended. End it by hbmfs_kv_wait or hbmfs_cancel. A daemon that is
 * replaced meanwhile is no error: the request goes on with the next one.
 */
int32_t hbmfs_kv_put_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why);
int32_t hbmfs_kv_get_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why);
int32_t hbmfs_kv_contains_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why);

/* Pins blocks: they are not evicted until they are unpinned by their tokens, or this process ends. */
int32_t hbmfs_kv_pin_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why);
int32_t hbmfs_kv_unpin_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why);

/* A block that is pinned is found no more, and goes with its last pin. */
int32_t hbmfs_kv_remove_begin(hbmfs_handle store, const hbmfs_kv_batch *batch, hbmfs_handle *request, hbmfs_failure *why);

/*
 * Waits as hbmfs_wait does. outcomes gets an hbmfs_kv_outcome for each of the first count blocks, also after an error; tokens those of pins, 0
 * for others. result, outcomes and tokens may be NULL.
 */
int32_t hbmfs_kv_wait(hbmfs_handle request, int64_t timeout_ns, hbmfs_kv_result *result, int32_t *outcomes, uint64_t *tokens, int64_t count,
		      hbmfs_failure *why);

/* Removes all blocks of the namespace, whoever stored them. */
int32_t hbmfs_kv_clear(hbmfs_handle store, hbmfs_failure *why);
int32_t hbmfs_kv_get_stats(hbmfs_handle store, hbmfs_kv_stats *stats, hbmfs_failure *why);

/* Cancels its requests and waits for them. HBMFS_TIMEOUT: as of readers. */
int32_t hbmfs_kv_close(hbmfs_handle store, hbmfs_failure *why);
const char *hbmfs_kv_outcome_name(int32_t outcome); /* such as "no room"; not to be freed */

#ifdef __cplusplus
}
#endif
#endif
