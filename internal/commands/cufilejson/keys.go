package cufilejson

import (
	"math"
	"strings"
)

// kind is the type of a value.
type kind int

const (
	boolean kind = iota
	number
	signed // a number that may be negative
	text
	texts   // an array of strings
	numbers // an array of numbers
	object  // with any contents
)

func (k kind) String() string {
	return [...]string{"true or false", "a whole number", "a whole number", "a string", "an array of strings", "an array of whole numbers", "an object"}[k]
}

// key is one setting.
type key struct {
	path     string // with its sections: "properties.io_batchsize"
	kind     kind
	min, max int64
	multiple int64    // 0 where any number will do
	bytes    int64    // as KB, more than this is surely bytes; 0 where the value has no such unit
	values   []string // allowed strings, nil for any
	since    int      // a libcufile that knows it, 1019 for 1.19; 0 where 1.15 does
}

func (k key) section() string { return k.path[:strings.LastIndexByte(k.path, '.')] }
func (k key) name() string    { return k.path[strings.LastIndexByte(k.path, '.')+1:] }

// Sizes in KB, and defaults.
const (
	gibKB = 1 << 20
	tibKB = 1 << 30

	defaultDirectKB    = 16384
	defaultPerBufferKB = 1024
	defaultCacheKB     = 131072
	defaultPinnedKB    = 33554432
	defaultBatch       = 128
)

// keys are all settings that libcufile 1.15 to 1.19 reads.
func keys() []key { return append(withLimits(), plain()...) }

// withLimits are those that have a range, a unit or a list of values.
func withLimits() []key {
	return []key{
		{path: "logging.dir", kind: text},
		{path: "logging.level", kind: text, values: []string{"ERROR", "WARN", "NOTICE", "INFO", "DEBUG", "TRACE"}},
		{path: "logging.max_file_size_mb", kind: signed, min: -1, max: math.MaxInt32, since: 1019},
		{path: "profile.cufile_stats", kind: number, max: 3},
		{path: "execution.max_io_queue_depth", kind: number, min: 1, max: 256},
		{path: "execution.max_io_threads", kind: number, max: 128},
		{path: "execution.min_io_threshold_size_kb", kind: number, min: 4, max: math.MaxUint32, bytes: gibKB},
		{path: "execution.max_request_parallelism", kind: number, max: 8},
		{path: "properties.max_direct_io_size_kb", kind: number, min: 64, max: 16384, multiple: 64, bytes: 16384},
		{path: "properties.max_device_cache_size_kb", kind: number, max: math.MaxUint32, multiple: 4, bytes: 32 * gibKB},
		{path: "properties.per_buffer_cache_size_kb", kind: number, min: 64, max: 16384, multiple: 64, bytes: 16384},
		{path: "properties.max_device_pinned_mem_size_kb", kind: number, max: math.MaxInt64 >> 10, multiple: 4, bytes: 2 * tibKB},
		{path: "properties.poll_mode_max_size_kb", kind: number, min: 4, max: math.MaxUint32, multiple: 4, bytes: 1023},
		{path: "properties.posix_pool_slab_size_kb", kind: numbers, min: 4, max: math.MaxUint32, multiple: 4, bytes: gibKB},
		{path: "properties.posix_pool_slab_count", kind: numbers, min: 1, max: math.MaxUint32},
		{path: "properties.gpu_bounce_buffer_slab_config.slab_size_kb", kind: numbers, min: 4, max: math.MaxUint32, multiple: 4, bytes: gibKB, since: 1017},
		{path: "properties.gpu_bounce_buffer_slab_config.slab_count", kind: numbers, min: 1, max: math.MaxUint32, since: 1017},
		{path: "properties.io_batchsize", kind: number, min: 1, max: 256},
		{path: "properties.io_priority", kind: text, values: []string{"default", "low", "med", "high"}},
		{path: "properties.max_batch_io_timeout_msecs", kind: number, min: 1, max: 1000},
		{path: "properties.rdma_dev_addr_list", kind: texts},
		{path: "properties.rdma_load_balancing_policy", kind: text, values: []string{"RoundRobin", "FirstFit", "MaxMinFit", "RoundRobinMaxMin", "Randomized"}},
		{path: "properties.rdma_dynamic_routing_order", kind: texts, values: []string{"GPU_MEM_NVLINKS", "GPU_MEM", "SYS_MEM", "P2P"}},
		{path: "properties.rdma_topN_ranks", kind: number, max: math.MaxUint32},
		{path: "properties.rdma_service_level", kind: number, max: 15},
		{path: "properties.rdma_peer_type", kind: text, values: []string{"nvidia_peermem", "dmabuf"}},
		{path: "properties.rdma_dc_key", kind: text},
		{path: "properties.rdma_access_mask", kind: text},
		{path: "properties.rdma_transport_type", kind: text, since: 1019},
		{path: "properties.compat_odirect_unaligned_read_split_min_size_kb", kind: number, min: 4, max: math.MaxUint32, multiple: 4, bytes: gibKB, since: 1019},
		{path: "miscellaneous.static_routing_filepath", kind: text, since: 1017},
		{path: "miscellaneous.rdma_token_reset_timeout_secs", kind: number, min: 1, max: 86400, since: 1019},
	}
}

// plain are those where a right type is all that it takes.
func plain() []key {
	var all []key
	add := func(since int, kind kind, section string, names ...string) {
		for _, name := range names {
			all = append(all, key{path: section + "." + name, kind: kind, max: math.MaxUint32, since: since})
		}
	}
	add(0, boolean, "profile", "nvtx")
	add(0, boolean, "execution", "parallel_io")
	add(0, boolean, "properties", "use_poll_mode", "allow_compat_mode", "force_compat_mode", "use_pci_p2pdma", "force_odirect_mode",
		"prefer_iouring", "gds_rdma_write_support", "allow_system_memory", "rdma_dynamic_routing")
	add(1019, boolean, "properties", "gds_fallback_io", "vanilla_posix_io_mode", "compat_odirect_unaligned_read_split",
		"allow_rdma_token_reset", "rdma_multipath_enabled", "rdma_failback_enabled", "rdma_async_event_monitoring")
	add(1019, number, "properties", "rdma_max_backup_devices", "rdma_io_retry_count", "rdma_io_retry_delay_ms",
		"rdma_failback_delay_ms", "rdma_health_check_interval_ms", "rdma_unhealthy_threshold")
	add(0, boolean, "fs.generic", "posix_unaligned_writes")
	add(0, boolean, "fs.gpfs", "gds_write_support", "gds_async_support")
	add(0, boolean, "fs.weka", "rdma_write_support")
	add(0, texts, "denylist", "drivers", "devices", "mounts", "filesystems", "fsids")
	add(0, boolean, "miscellaneous", "api_check_aggressive", "rcu_library_used", "stream_memops_bypass", "skip_topology_detection")
	add(1017, boolean, "miscellaneous", "enable_static_routing")
	for _, fs := range []string{"lustre", "beegfs", "nfs", "gpfs", "weka", "scatefs", "panfs"} {
		since := 0
		if fs == "panfs" {
			since = 1019
		}
		add(since, texts, "fs."+fs, "rdma_dev_addr_list")
		add(since, object, "fs."+fs, "mount_table")
		if fs == "lustre" || fs == "beegfs" || fs == "scatefs" {
			add(since, number, "fs."+fs, "posix_gds_min_kb")
		}
	}
	for _, fs := range []string{"lustre", "beegfs", "nfs", "gpfs", "scatefs", "panfs", "virtiofs"} {
		add(1019, boolean, "fs."+fs, "use_pci_p2pdma")
	}
	for _, block := range []string{"nvme", "nvmeof", "raid", "raid1", "raid10"} {
		add(1016, boolean, "block."+block, "use_pci_p2pdma")
	}
	return all
}

// schema is keys, ready to be asked.
type schema struct {
	keys     map[string]key  // by path
	sections map[string]bool // "fs", "fs.nfs"
}

func newSchema() schema {
	s := schema{map[string]key{}, map[string]bool{}}
	for _, k := range keys() {
		s.keys[k.path] = k
		parts := strings.Split(k.section(), ".")
		for i := range parts {
			s.sections[strings.Join(parts[:i+1], ".")] = true
		}
	}
	return s
}

// alias translates names that examples, older manuals and gdscheck's output use.
func alias(name string) string {
	switch name {
	case "max_direct_io_size", "max_device_cache_size", "per_buffer_cache_size", "max_device_pinned_mem_size", "poll_mode_max_size", "min_io_threshold_size", "posix_pool_slab_size":
		return name + "_kb"
	case "use_compat_mode", "compat_mode":
		return "allow_compat_mode"
	case "max_batch_io_size":
		return "io_batchsize"
	case "rdma_peer_affinity_policy":
		return "rdma_load_balancing_policy"
	case "blacklist", "blocklist":
		return "denylist"
	case "exec":
		return "execution"
	case "misc":
		return "miscellaneous"
	case "p2pdma", "pci_p2pdma":
		return "use_pci_p2pdma"
	}
	return name
}

// meant gives the path of the setting that somebody who wrote name in section probably meant, "" where none is near.
func (s schema) meant(section, name string) string {
	wanted := strings.ToLower(alias(name))
	best, least := "", 1+min(3, 1+len(wanted)/5)
	for _, k := range keys() {
		d := distance(wanted, strings.ToLower(k.name()))
		if d < least || d == least && best != "" && k.section() == section {
			best, least = k.path, d
		}
	}
	return best
}

// meantSection is the same for sections.
func (s schema) meantSection(parent, name string) string {
	wanted := join(parent, strings.ToLower(alias(name)))
	best, least := "", 3
	for section := range s.sections {
		d := distance(wanted, section)
		if strings.Count(section, ".") == strings.Count(wanted, ".") && (d < least || d == least && best != "" && section < best) {
			best, least = section, d
		}
	}
	return best
}

func join(section, name string) string {
	if section == "" {
		return name
	}
	return section + "." + name
}

// distance is Levenshtein's, in bytes. A name that is far too long for any setting is just far.
func distance(a, b string) int {
	if len(a) > 2*len(b)+8 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
