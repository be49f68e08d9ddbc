/* Writes one of each struct of hbmfs.h, with values that a test of package control knows. */
#include "../hbmfs.h"

#include <stdio.h>

#define WRITE(type, ...)                                   \
	do {                                               \
		type value = __VA_ARGS__;                  \
		fwrite(&value, sizeof(value), 1, stdout);  \
	} while (0)

int main(void)
{
	uint32_t commands[] = {
		HBMFS_IOC_INFO, HBMFS_IOC_EXTENTS(0), HBMFS_IOC_EXTENTS(HBMFS_MAX_EXTENTS), HBMFS_IOC_PREFETCH(HBMFS_MAX_RANGES),
	};
	fwrite(commands, sizeof(commands), 1, stdout);
	WRITE(struct hbmfs_info, {1, HBMFS_INFO_MOUNT | HBMFS_INFO_BYPASS, 2, 3, 4, -1, 6, 7, 8, {9}, {0}});
	WRITE(struct hbmfs_extents, {1, HBMFS_EXTENTS_LAST, 2, 3, 4, 1, 0, {5}, {6}, 7, {0}});
	WRITE(struct hbmfs_extent, {1, 2, 3, 4, 5, 6, HBMFS_EXTENT_MOUNT, 0});
	WRITE(struct hbmfs_prefetch, {1, 0, 1, {0}});
	WRITE(struct hbmfs_range, {2, 3});
	WRITE(struct hbmfs_header, {HBMFS_MAGIC, 1, HBMFS_DROP, 2, 0});
	WRITE(struct hbmfs_hello, {1, 2, 3, "name"});
	WRITE(struct hbmfs_welcome, {1, 0, HBMFS_WELCOME_DRAFTS, {2}, 3, 4});
	WRITE(struct hbmfs_redeem, {{1}, 0, 0});
	WRITE(struct hbmfs_list, {1, 0});
	WRITE(struct hbmfs_object, {1, 2, 3, 4, -5, 6, -1});
	WRITE(struct hbmfs_ack, {1, 2});
	WRITE(struct hbmfs_lookup, {0, HBMFS_LOOKUP_FDS});
	WRITE(struct hbmfs_files, {1, 0, 0, 0});
	WRITE(struct hbmfs_file, {1, 2, -1, 4, 5, 6, HBMFS_INFO_MORE, 8, 9, 0, 0});
	WRITE(struct hbmfs_list, {1, 0});
	WRITE(struct hbmfs_named, {1, 0, 0});
	WRITE(struct hbmfs_list, {1, 0});
	WRITE(struct hbmfs_moved, {4, 0, 0, 5, 6});
	WRITE(struct hbmfs_count, {7, 0});
	WRITE(struct hbmfs_list, {1, 0});
	WRITE(struct hbmfs_object_range, {1, 2, 3});
	WRITE(struct hbmfs_begin, {{1}, 2, 3, 4, HBMFS_BEGIN_ATTACH, 0, 0});
	WRITE(struct hbmfs_add, {{1}, 0, 0});
	WRITE(struct hbmfs_draft, {{1}, 2, 3});
	WRITE(struct hbmfs_seal, {{1}, 2, 0, 3});
	WRITE(struct hbmfs_publish, {{1}, 2, 0, 3});
	WRITE(struct hbmfs_drop, {{1}});
	WRITE(struct hbmfs_header, {HBMFS_MAGIC, 1, HBMFS_KV_VERIFIED, 2, 0});
	WRITE(struct hbmfs_kv_open, {1, 2, HBMFS_KV_CREATE | HBMFS_KV_WRITE, 0, 0});
	WRITE(struct hbmfs_kv_space, {1, 2, 3, 4, 5, 1, 0});
	WRITE(struct hbmfs_kv_tier, {HBMFS_KV_DISK, 0, 2, 3, 4, HBMFS_KV_DIRECT, 0});
	WRITE(struct hbmfs_kv_batch, {1, HBMFS_KV_PIN, 0, 0});
	WRITE(struct hbmfs_kv_batch, {1, 0, 0, 0});
	WRITE(struct hbmfs_list, {1, 0});
	WRITE(struct hbmfs_kv_slot, {1, 1, 3, 4, 5, HBMFS_KV_HAS_CRC, 0, 7});
	WRITE(struct hbmfs_kv_batch, {1, 0, 1, 0});
	WRITE(struct hbmfs_kv_stored, {2, 3, HBMFS_KV_HAS_CRC});
	WRITE(struct hbmfs_kv_batch, {1, HBMFS_KV_SUSPECT, 1, 0});
	WRITE(uint64_t, 2);
	WRITE(struct hbmfs_list, {1, 0});
	WRITE(struct hbmfs_kv_done, {1, HBMFS_KV_HELD});
	WRITE(struct hbmfs_kv_stat, {1, 0});
	WRITE(struct hbmfs_kv_counts, {1, 2, 3, 4, 5, 6, 7, 8, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 8}});
	WRITE(struct hbmfs_kv_attach, {1, 2});
	WRITE(struct hbmfs_kv_verify, {1, 0, 2});
	WRITE(struct hbmfs_kv_verified, {1, 2, 3, 4, 5, 6, 7});
	WRITE(struct hbmfs_changes, {HBMFS_CHANGES_COUNTER, 0, 2});
	WRITE(struct hbmfs_changed, {1, 1, 1, 3, 0});
	WRITE(struct hbmfs_change, {4, 3, 0, 5, 0});
	WRITE(struct hbmfs_error, {11, 0});
	return 0;
}
