/*
 * The control channel of hbmfs, version 1, for C and C++. docs/reference/control-protocol.md is the reference; a test of package
 * control compiles this file and compares it with what the Go side writes.
 *
 * All fields are little-endian, as is every machine that CUDA runs on: the structs are what is on the wire.
 */
#ifndef HBMFS_H
#define HBMFS_H

#include <stdint.h>
#include <sys/ioctl.h>

#ifdef __cplusplus
#define HBMFS_ASSERT(what) static_assert(what, #what)
#else
#define HBMFS_ASSERT(what) _Static_assert(what, #what)
#endif

#define HBMFS_VERSION 1

/* ---- ioctls on an open file of the mount ---- */

#define HBMFS_INFO_WHOLE  1u /* the file is one backing file from its first byte to its last */
#define HBMFS_INFO_MOUNT  2u /* some bytes exist only in the mount */
#define HBMFS_INFO_BYPASS 4u /* some bytes lie in backing files */
#define HBMFS_INFO_MORE   8u /* of a file of FILES: EXTENTS has more extents */
#define HBMFS_INFO_CACHED 16u /* backing files are a cache's: they come, and those that nobody leases go */

struct hbmfs_info { /* in: version, flags (0), the rest is ignored */
	uint32_t version;
	uint32_t flags;
	uint64_t size;
	uint32_t dtype;
	uint32_t element_size;
	int64_t tokens; /* -1 where unknown */
	uint64_t alignment;
	uint64_t runs;
	uint64_t generation;
	uint8_t epoch[16];
	uint8_t reserved[56];
};
HBMFS_ASSERT(sizeof(struct hbmfs_info) == 128);

#define HBMFS_EXTENTS_COUNT  1u /* in: no extents, only their number */
#define HBMFS_EXTENTS_TICKET 2u /* in: a ticket is wanted; out: there is one */
#define HBMFS_EXTENTS_LAST   4u /* out: the range ends with this answer */

#define HBMFS_EXTENT_MOUNT   1u /* the bytes exist only in the mount */
#define HBMFS_EXTENT_PENDING 2u /* with MOUNT: will lie in a backing file once it is on this machine */
#define HBMFS_EXTENT_ENCODED 4u /* reserved */

struct hbmfs_extent { /* piece k < count: logical + k*length of the file, offset + k*stride of the object */
	uint64_t logical;
	uint64_t length; /* of one piece */
	uint64_t offset;
	uint64_t object; /* 0 for bytes of the mount */
	uint64_t stride;
	uint64_t count;
	uint32_t flags;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_extent) == 56);

struct hbmfs_extents { /* in: version to cursor, the rest is zero; behind it the room for extents */
	uint32_t version;
	uint32_t flags;
	uint64_t offset;
	uint64_t length;
	uint64_t cursor;
	uint32_t count;
	uint32_t reserved;
	uint8_t ticket[16];
	uint8_t epoch[16];
	uint64_t total;
	uint8_t reserved2[16];
};
HBMFS_ASSERT(sizeof(struct hbmfs_extents) == 96);

struct hbmfs_range {
	uint64_t offset;
	uint64_t length;
};

struct hbmfs_prefetch { /* behind it count ranges */
	uint32_t version;
	uint32_t flags; /* 0 */
	uint32_t count;
	uint8_t reserved[20];
};
HBMFS_ASSERT(sizeof(struct hbmfs_prefetch) == 32);

#define HBMFS_MAX_EXTENTS 290
#define HBMFS_MAX_RANGES  1021

#define HBMFS_IOC_INFO        _IOC(_IOC_READ | _IOC_WRITE, 'H', 0xB0, sizeof(struct hbmfs_info))
#define HBMFS_IOC_EXTENTS(n)  _IOC(_IOC_READ | _IOC_WRITE, 'H', 0xB1, sizeof(struct hbmfs_extents) + (n) * sizeof(struct hbmfs_extent))
#define HBMFS_IOC_PREFETCH(n) _IOC(_IOC_WRITE, 'H', 0xB2, sizeof(struct hbmfs_prefetch) + (n) * sizeof(struct hbmfs_range))

/* ---- frames on the SOCK_SEQPACKET socket .hbmfs/control ---- */

#define HBMFS_MAGIC       0x464d4248u /* "HBMF" */
#define HBMFS_MAX_FRAME   65536
#define HBMFS_MAX_OBJECTS 64
#define HBMFS_MAX_PATHS   1024

enum hbmfs_type {
	HBMFS_HELLO = 1,
	HBMFS_WELCOME,
	HBMFS_REDEEM,
	HBMFS_FDS,
	HBMFS_ACK,
	HBMFS_RELEASE,
	HBMFS_LOOKUP,
	HBMFS_FILES,
	HBMFS_NAME,
	HBMFS_NAMES,
	HBMFS_STATS,
	HBMFS_PREFETCH,
	HBMFS_DONE,
	HBMFS_READERS,
	HBMFS_COUNT,
	HBMFS_ERROR,
	HBMFS_BEGIN,
	HBMFS_ADD,
	HBMFS_DRAFT,
	HBMFS_SEAL,
	HBMFS_PUBLISH,
	HBMFS_DROP,
	HBMFS_KV_OPEN,
	HBMFS_KV_SPACE,
	HBMFS_KV_LOOKUP,
	HBMFS_KV_SLOTS,
	HBMFS_KV_RESERVE,
	HBMFS_KV_COMMIT,
	HBMFS_KV_DONE,
	HBMFS_KV_RELEASE,
	HBMFS_KV_REMOVE,
	HBMFS_KV_STAT,
	HBMFS_KV_COUNTS,
	HBMFS_KV_ATTACH,
	HBMFS_KV_VERIFY,
	HBMFS_KV_VERIFIED,
	HBMFS_RECORD,
	HBMFS_TOUCHES,
	HBMFS_BRING,
	HBMFS_BROUGHT,
	HBMFS_CHANGES,
	HBMFS_CHANGED
};

struct hbmfs_header {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t id;
	uint32_t length; /* of the payload */
};
HBMFS_ASSERT(sizeof(struct hbmfs_header) == 16);

struct hbmfs_hello {
	uint16_t min;
	uint16_t max;
	uint32_t reader; /* the same on all connections of one reader, 0: it counts as none */
	char name[48];
};
HBMFS_ASSERT(sizeof(struct hbmfs_hello) == 56);

#define HBMFS_WELCOME_READ_ONLY 1u /* opening a descriptor again for writing is EROFS */
#define HBMFS_WELCOME_DRAFTS    2u /* the mount is a checkpoint volume: BEGIN makes a draft in it */
#define HBMFS_WELCOME_KV        4u /* the mount is a KV volume: KV_OPEN opens a namespace of it */
#define HBMFS_WELCOME_CHANGES   8u /* the daemon answers CHANGES */
#define HBMFS_WELCOME_FIELDS    16u /* STATS may name fields */

struct hbmfs_welcome {
	uint16_t version;
	uint16_t reserved;
	uint32_t flags;
	uint8_t epoch[16];
	uint32_t max_leases;
	uint32_t max_paths;
};
HBMFS_ASSERT(sizeof(struct hbmfs_welcome) == 32);

struct hbmfs_redeem { /* REDEEM and NAME; behind it count objects of 64 bits */
	uint8_t ticket[16];
	uint32_t count;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_redeem) == 24);

struct hbmfs_list { /* begins FDS, RELEASE, NAMES, STATS, PREFETCH, KV_SLOTS and KV_DONE */
	uint32_t count;
	uint32_t reserved;
};

struct hbmfs_object {
	uint64_t object;
	uint64_t size;
	uint64_t dev;
	uint64_t ino;
	int64_t mtime_ns;
	uint32_t error; /* why there is no descriptor */
	int32_t fd;     /* place among the message's descriptors, -1 for none */
};
HBMFS_ASSERT(sizeof(struct hbmfs_object) == 48);

struct hbmfs_ack {
	uint32_t id;
	uint32_t received;
};

#define HBMFS_LOOKUP_FDS 1u

struct hbmfs_lookup { /* behind it count lengths of 32 bits, then the paths */
	uint32_t count;
	uint32_t flags;
};

struct hbmfs_files { /* behind it the files, the extents, the objects */
	uint32_t files;
	uint32_t extents;
	uint32_t objects;
	uint32_t reserved;
};

struct hbmfs_file {
	uint64_t size;
	uint64_t generation;
	int64_t tokens;
	uint64_t alignment;
	uint64_t runs;
	uint32_t error;
	uint32_t flags;
	uint32_t dtype;
	uint32_t element_size;
	uint32_t first; /* place of its first extent */
	uint32_t extents;
};
HBMFS_ASSERT(sizeof(struct hbmfs_file) == 64);

struct hbmfs_named { /* behind the last one the names */
	uint64_t object;
	uint32_t length;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_named) == 16);

#define HBMFS_MAX_MOVED   64
#define HBMFS_REASON_SIZE 128

struct hbmfs_moved { /* behind the last one the reasons and fields: each entry's reason, then its field */
	uint32_t path; /* 0 direct, 1 mapped, 2 staged, 3 compat, 4 host */
	uint16_t length; /* of the reason */
	uint16_t field_length; /* of the field's name, 0 for none */
	uint64_t bytes;
	uint64_t reads;
};
HBMFS_ASSERT(sizeof(struct hbmfs_moved) == 24);

struct hbmfs_count {
	uint32_t readers;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_count) == 8);

struct hbmfs_object_range {
	uint64_t object;
	uint64_t offset;
	uint64_t length;
};

#define HBMFS_MAX_NEW_FILES 64
#define HBMFS_MAX_SUMS      16000
#define HBMFS_SUM_CHUNK     (4u << 20) /* bytes that a sum is of */

#define HBMFS_BEGIN_ATTACH 1u /* the draft of this name that another process of the user has begun is wanted */

struct hbmfs_begin { /* behind it the files, the checkpoint's name, the files' names */
	uint8_t draft[16]; /* drawn at random by the client */
	uint32_t part;
	uint32_t parts;
	uint32_t umask;
	uint32_t flags;
	uint32_t files;
	uint32_t name_length;
};
HBMFS_ASSERT(sizeof(struct hbmfs_begin) == 40);

struct hbmfs_add { /* behind it the files, their names */
	uint8_t draft[16];
	uint32_t files;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_add) == 24);

struct hbmfs_new_file {
	uint64_t size;
	uint32_t name_length;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_new_file) == 16);

struct hbmfs_draft { /* with it a descriptor of each file */
	uint8_t draft[16];
	uint32_t first; /* the number of the first of them */
	uint32_t files;
};
HBMFS_ASSERT(sizeof(struct hbmfs_draft) == 24);

struct hbmfs_seal { /* behind it the sums, 32 bits each */
	uint8_t draft[16];
	uint32_t file;
	uint32_t sums;
	uint64_t first; /* the chunk that the first sum is of */
};
HBMFS_ASSERT(sizeof(struct hbmfs_seal) == 32);

struct hbmfs_publish {
	uint8_t draft[16];
	uint32_t files; /* all of the draft */
	uint32_t reserved;
	uint64_t bytes; /* of them */
};
HBMFS_ASSERT(sizeof(struct hbmfs_publish) == 32);

struct hbmfs_drop {
	uint8_t draft[16];
};

#define HBMFS_MAX_KV_KEYS  1024
#define HBMFS_MAX_KV_KEY   64          /* bytes of a key */
#define HBMFS_MAX_KV_NAME  128         /* bytes of a namespace's name */
#define HBMFS_MAX_KV_BLOCK (1u << 30)  /* bytes of a block */
#define HBMFS_MAX_KV_TIERS 2

#define HBMFS_KV_CREATE 1u /* make the namespace where there is none */
#define HBMFS_KV_WRITE  2u /* to reserve, commit and remove; descriptors can write */

struct hbmfs_kv_open { /* behind it the name */
	uint64_t block_bytes; /* 0: as the namespace has it */
	uint32_t mode;
	uint32_t flags;
	uint32_t name_length;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_open) == 24);

struct hbmfs_kv_space { /* behind it the tiers; with it a descriptor of each */
	uint32_t space;
	uint32_t mode;
	uint64_t client; /* for KV_ATTACH */
	uint64_t block_bytes;
	uint64_t slot_bytes;
	uint32_t tiers;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_space) == 40);

#define HBMFS_KV_MEMORY 1u
#define HBMFS_KV_DISK   2u

struct hbmfs_kv_tier {
	uint32_t kind;
	int32_t fd;      /* place among the message's descriptors */
	uint64_t bytes;  /* that its file may grow to */
	uint64_t region; /* bytes by which it grows */
	uint64_t cuts;   /* how often regions went: map the file anew where it is another number */
	uint32_t flags;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_tier) == 40);

#define HBMFS_KV_DIRECT 1u /* of a tier: read and write its slots past the page cache, where the filesystem allows that */

#define HBMFS_KV_PIN     1u /* of LOOKUP: what is found stays until it is released */
#define HBMFS_KV_ALL     1u /* of REMOVE without keys: all blocks */
#define HBMFS_KV_SUSPECT 1u /* of RELEASE: the bytes do not match, or could not be written */

struct hbmfs_kv_batch { /* begins LOOKUP, REMOVE, RESERVE, COMMIT and RELEASE */
	uint32_t space;
	uint32_t flags;
	uint32_t count;
	uint32_t reserved;
}; /* LOOKUP, REMOVE: count lengths of 32 bits, the keys. RESERVE: count blocks, the keys. COMMIT: stored. RELEASE: tokens of 64 bits */
HBMFS_ASSERT(sizeof(struct hbmfs_kv_batch) == 16);

struct hbmfs_kv_block {
	uint32_t key_length;
	uint32_t length; /* of the block */
};

#define HBMFS_KV_HAS_CRC 1u

struct hbmfs_kv_slot { /* KV_SLOTS is a list of these */
	uint32_t error;
	uint32_t tier;
	uint64_t slot; /* at slot * slot_bytes of the tier's file */
	uint32_t length;
	uint32_t crc; /* CRC-32C of the bytes */
	uint32_t flags;
	uint32_t reserved;
	uint64_t token;
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_slot) == 40);

struct hbmfs_kv_stored {
	uint64_t token;
	uint32_t crc;
	uint32_t flags;
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_stored) == 16);

#define HBMFS_KV_ON_DISK 1u /* it survives a kill of the daemon, and another mount */
#define HBMFS_KV_HELD    2u /* it survives a kill of the daemon: another process keeps the memory */
#define HBMFS_KV_NOTHING 3u /* it ends with the daemon */

struct hbmfs_kv_done { /* KV_DONE is a list of these */
	uint32_t error;
	uint32_t survives; /* of COMMIT */
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_done) == 8);

struct hbmfs_kv_stat {
	uint32_t space; /* 0: all */
	uint32_t reserved;
};

struct hbmfs_kv_tier_counts {
	uint64_t limit;
	uint64_t allocated;
	uint64_t blocks;
	uint64_t bytes;
	uint64_t hits;
	uint64_t evictions;
	uint64_t copied;
	uint64_t faults;
};

struct hbmfs_kv_counts {
	uint64_t hits;
	uint64_t misses;
	uint64_t stored;
	uint64_t exists;
	uint64_t refused;
	uint64_t pins;
	uint64_t reservations;
	uint64_t dropped;
	struct hbmfs_kv_tier_counts memory;
	struct hbmfs_kv_tier_counts disk;
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_counts) == 192);

struct hbmfs_kv_attach {
	uint64_t client;
	uint64_t seen; /* the highest token that came; UINT64_MAX: none is given back */
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_attach) == 16);

struct hbmfs_kv_verify {
	uint32_t space;
	uint32_t reserved;
	uint64_t cursor; /* 0 at first */
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_verify) == 16);

struct hbmfs_kv_verified {
	uint64_t cursor; /* of the next request; 0: that was all */
	uint64_t slots;
	uint64_t at;
	uint64_t blocks;
	uint64_t bytes;
	uint64_t unknown; /* blocks without a checksum */
	uint64_t damaged; /* blocks that are gone now */
};
HBMFS_ASSERT(sizeof(struct hbmfs_kv_verified) == 56);

#define HBMFS_CHANGES_COUNTER 1u /* the counter is wanted */

struct hbmfs_changes {
	uint32_t flags;
	uint32_t reserved;
	uint64_t from;
};
HBMFS_ASSERT(sizeof(struct hbmfs_changes) == 16);

struct hbmfs_changed { /* behind it count struct hbmfs_change, and the names */
	uint64_t next;
	uint32_t more;
	uint32_t count;
	uint32_t withheld;
	uint32_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_changed) == 24);

struct hbmfs_change {
	uint64_t object;
	uint32_t kind; /* 1 cut, 2 rewritten, 3 replaced, 4 removed */
	uint32_t name; /* its length */
	uint64_t ago;  /* ns */
	uint64_t reserved;
};
HBMFS_ASSERT(sizeof(struct hbmfs_change) == 32);

struct hbmfs_counter { /* what the descriptor of CHANGED shows; read both atomically */
	uint64_t changes;
	int64_t looked; /* CLOCK_MONOTONIC, ns */
};

struct hbmfs_error { /* behind it the text */
	uint32_t error;
	uint32_t length;
};

#endif
