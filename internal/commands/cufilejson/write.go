// Package cufilejson writes cufile.json, the configuration of NVIDIA's libcufile, for a machine and a workload: each value with its
// reason.
//
// Units and defaults are those of NVIDIA's GPUDirect Storage configuration guide of November 2026. libcufile 1.13.1, 1.15.1 and 1.19.1
// took such files. The dialect is JSON with comments, but without trailing commas.
package cufilejson

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Defaults of libcufile, in KB, and the entries of a batch.
const (
	defaultDirectKB    = 16384
	defaultPerBufferKB = 1024
	defaultPinnedKB    = 33554432
	defaultBatch       = 128
)

// Workloads that Write knows.
const (
	Read       = "read"       // a dataset, in pieces of a few MB and at random
	Checkpoint = "checkpoint" // large files are written and read
	Weights    = "weights"    // large files are read once, as fast as they come
)

// Node is the facts of a machine that Write needs. Zero values are unknown.
type Node struct {
	GPU        string // its name and number, for the comment
	HBM        int64  // bytes of its memory
	GPUs, CPUs int
	Filesystem string // where the data is, as in /proc/mounts
	Version    int    // of libcufile, 1015 for 1.15
	P2PDMA     bool   // bytes go by the kernel's PCI P2PDMA, without the module nvidia-fs
	Blocked    string // why reads cannot be direct here, "" where they are or may be
}

// setting is a value with its reason.
type setting struct{ path, value, why string }

// Write gives a cufile.json for a machine and a workload.
func Write(n Node, workload string) ([]byte, error) {
	if !slices.Contains([]string{Read, Checkpoint, Weights}, workload) {
		return nil, errors.New("the workload is read, checkpoint or weights")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "{\n    // for %s; use it with CUFILE_ENV_PATH_JSON=FILE, or as /etc/cufile.json\n", workload)
	fmt.Fprintf(&b, "    // settings that are left out have libcufile's default\n")
	settings := slices.Concat(n.general(), n.memory(), n.threads(workload), n.storage(workload))
	slices.SortStableFunc(settings, func(a, b setting) int { return strings.Compare(sectionOf(a.path), sectionOf(b.path)) })
	var open []string // sections
	leave := func(depth int) {
		for len(open) > depth {
			open = open[:len(open)-1]
			b.WriteString("\n" + strings.Repeat("    ", len(open)+1) + "}")
		}
	}
	for i, s := range settings {
		parts := strings.Split(s.path, ".")
		sections, name := parts[:len(parts)-1], parts[len(parts)-1]
		same := 0
		for same < min(len(open), len(sections)) && open[same] == sections[same] {
			same++
		}
		leave(same)
		if i > 0 {
			b.WriteString(",\n")
		}
		for _, section := range sections[same:] {
			fmt.Fprintf(&b, "%s%q: {\n", strings.Repeat("    ", len(open)+1), section)
			open = append(open, section)
		}
		indent := strings.Repeat("    ", len(open)+1)
		fmt.Fprintf(&b, "%s// %s\n%s%q: %s", indent, s.why, indent, name, s.value)
	}
	leave(0)
	b.WriteString("\n}\n")
	return []byte(b.String()), nil
}

func sectionOf(path string) string { return path[:strings.LastIndexByte(path, '.')] }

func (n Node) general() []setting {
	compat := setting{"properties.allow_compat_mode", "false", "a read that cannot be direct is an error, instead of slow and unnoticed"}
	if n.Blocked != "" {
		compat = setting{compat.path, "true", "direct reads do not work here: " + oneLine(n.Blocked)}
	}
	return []setting{
		{"logging.level", `"ERROR"`, "lower levels write for each read"},
		{"logging.dir", `"/tmp"`, "by default cufile.log is written into each program's working directory"},
		compat,
	}
}

// oneLine makes a text fit for a comment.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (n Node) memory() []setting {
	pinned := setting{"properties.max_device_pinned_mem_size_kb", fmt.Sprint(defaultPinnedKB), "KB that can be registered; the default, 32 GiB, since no GPU was seen: make it the GPU's memory"}
	if n.HBM > 0 {
		pinned.value = fmt.Sprint(n.HBM >> 10 / 4 * 4)
		pinned.why = fmt.Sprintf("KB, all %d GiB of %s; the default, 32 GiB, fails with error 5016 beyond", n.HBM>>30, oneLine(n.GPU))
	}
	return []setting{
		pinned,
		{"properties.max_direct_io_size_kb", fmt.Sprint(defaultDirectKB), "KB of one transfer, the most that is allowed; libcufile 1.19 has a smaller default"},
		{"properties.per_buffer_cache_size_kb", fmt.Sprint(defaultPerBufferKB), "KB of one bounce buffer; only reads that are not aligned to 4 KiB, or into memory that is not registered, use them"},
		{"properties.max_device_cache_size_kb", fmt.Sprint(defaultPerBufferKB * defaultBatch), "KB of a GPU's memory for them: one for each entry of a batch, io_batchsize"},
		{"properties.io_batchsize", fmt.Sprint(defaultBatch), "entries of a batch"},
		{"properties.use_poll_mode", "false", "polling only helps transfers of some KB"},
	}
}

func (n Node) threads(workload string) []setting {
	threads := 4
	why := "host threads for each GPU that split large reads; the default, since readers of datasets bring their own"
	if workload != Read {
		threads, why = 8, "host threads for each GPU; one large file is split among them"
		if share := n.CPUs / max(n.GPUs, 1); n.CPUs > 0 && share < threads {
			threads = max(share, 1)
			why = fmt.Sprintf("host threads for each GPU: %d CPUs for %d GPUs", n.CPUs, max(n.GPUs, 1))
		}
	}
	return []setting{
		{"execution.parallel_io", "true", "split large reads; the stream API needs it, too"},
		{"execution.max_io_threads", fmt.Sprint(threads), why},
		{"execution.max_request_parallelism", fmt.Sprint(min(threads, 8)), "pieces of one read, 8 at most"},
		{"execution.min_io_threshold_size_kb", "8192", "KB; smaller reads are not split"},
	}
}

func (n Node) storage(workload string) []setting {
	var all []setting
	if n.P2PDMA {
		all = append(all, setting{"properties.use_pci_p2pdma", "true", "there is no nvidia-fs here, and the kernel can do PCI P2PDMA"})
		if n.Version >= 1016 {
			all = append(all, setting{"block.nvme.use_pci_p2pdma", "true", "since libcufile 1.16 it is asked for each kind of device, too"})
		}
	}
	if workload == Checkpoint {
		all = append(all, setting{"fs.generic.posix_unaligned_writes", "false", "the end of a file that is not aligned goes the same way as the rest"})
		if n.network() {
			all = append(all, setting{"properties.gds_rdma_write_support", "true", "write by RDMA, too"})
		}
	}
	if n.network() {
		all = append(all, setting{"properties.rdma_dev_addr_list", "[]", "fill in: addresses of this machine's RDMA interfaces in quotes, the nearest to the GPU first (rdma link; ip -br addr)"})
	}
	return all
}

// network says whether the data comes over RDMA, if it is to be direct.
func (n Node) network() bool {
	return slices.Contains([]string{"nfs", "nfs4", "lustre", "beegfs", "wekafs", "gpfs"}, n.Filesystem)
}
