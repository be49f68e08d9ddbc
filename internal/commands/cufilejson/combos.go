package cufilejson

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// combinations looks at settings that are right alone and wrong together, or wrong for the machine of Options.
func (l *linter) combinations() {
	l.compat()
	l.sizes()
	l.slabs("properties.posix_pool_slab_size_kb", "properties.posix_pool_slab_count", false)
	l.slabs("properties.gpu_bounce_buffer_slab_config.slab_size_kb", "properties.gpu_bounce_buffer_slab_config.slab_count", true)
	l.network()
	l.idle()
}

// literal is the value of a setting, nil where it is not in the file or not of a kind that has one.
func (l *linter) literal(path string) hujson.Literal {
	if m := l.found[path]; m != nil {
		literal, _ := m.value().Value.(hujson.Literal)
		return literal
	}
	return nil
}

// number is the value of a setting, or the default. Other values were reported.
func (l *linter) number(path string, byDefault int64) int64 {
	n, err := strconv.ParseInt(string(l.literal(path)), 10, 64)
	if err != nil {
		return byDefault
	}
	return n
}

// sound is the same, but takes the default where the value was found wrong, so that nothing is reported twice.
func (l *linter) sound(path string, byDefault int64) int64 {
	n := l.number(path, byDefault)
	if _, problem := l.keys[path].inRange(n); problem != "" {
		return byDefault
	}
	return n
}

func (l *linter) isTrue(path string) bool  { return string(l.literal(path)) == "true" }
func (l *linter) isFalse(path string) bool { return string(l.literal(path)) == "false" }

// set reports about a setting, which may not be there, and names its right value.
func (l *linter) set(level Level, path, message, value string) {
	m := l.found[path]
	if m == nil {
		l.report(l.place(path), level, path, message, "add "+value)
		return
	}
	l.report(m.value().StartOffset, level, path, message, value)
}

// place is where a finding about a setting that is not there points to: its section, or the start.
func (l *linter) place(path string) int {
	section := l.keys[path].section()
	if m := l.found[section]; m != nil {
		return m.name().StartOffset
	}
	return l.root.StartOffset
}

func (l *linter) compat() {
	const force, allow = "properties.force_compat_mode", "properties.allow_compat_mode"
	if l.isTrue(force) {
		level := Warning
		if l.opts.Direct {
			level = Error
		}
		l.set(level, force, "every read is done by the CPU, always", "false")
	}
	if l.opts.Direct && !l.isFalse(allow) {
		l.set(Error, allow, "reads may fall back to the CPU without a word, and that is the default; to have a proof it must be false", "false")
	}
}

func (l *linter) sizes() {
	const direct, buffer, cache, pinned = "properties.max_direct_io_size_kb", "properties.per_buffer_cache_size_kb", "properties.max_device_cache_size_kb", "properties.max_device_pinned_mem_size_kb"
	per, most := l.sound(buffer, defaultPerBufferKB), l.sound(direct, defaultDirectKB)
	switch {
	case per > most:
		l.set(Error, direct, fmt.Sprintf("is %d, less than per_buffer_cache_size_kb, %d; libcufile refuses the file", most, per), strconv.FormatInt(per, 10))
	case per > defaultPerBufferKB && l.found[direct] == nil && l.opts.Version < 1019:
		l.set(Error, direct, "must be given where per_buffer_cache_size_kb is more than 1024; libcufile 1.15 refuses the file", strconv.Itoa(defaultDirectKB))
	}
	batch := l.sound("properties.io_batchsize", defaultBatch)
	if have := l.sound(cache, defaultCacheKB); have < per*batch && (l.found[cache] != nil || l.found[buffer] != nil) {
		l.set(Warning, cache, fmt.Sprintf("%d KB make %d buffers of per_buffer_cache_size_kb, fewer than io_batchsize, %d; libcufile then goes back to buffers of 1 MB", have, have/per, batch), strconv.FormatInt(per*batch, 10))
	}
	if have := l.sound(pinned, defaultPinnedKB); l.opts.HBM > 0 && have < l.opts.HBM>>10 {
		message := fmt.Sprintf("%s of %s of the GPU's memory; registering more fails with error 5016", size(have), size(l.opts.HBM>>10))
		if l.found[pinned] == nil {
			message = "is by default " + message
		}
		l.set(Warning, pinned, message, strconv.FormatInt(l.opts.HBM>>10/4*4, 10))
	}
	const slabs = "properties.gpu_bounce_buffer_slab_config"
	if m := l.found[slabs]; m != nil && l.opts.Version >= 1017 {
		for _, legacy := range []string{cache, buffer} {
			if l.found[legacy] != nil {
				l.report(l.found[legacy].name().StartOffset, Warning, legacy, "does nothing beside gpu_bounce_buffer_slab_config", "remove it")
			}
		}
	}
}

// slabs looks at two arrays that go together.
func (l *linter) slabs(sizesPath, countsPath string, ordered bool) {
	sizes, okSizes := l.integers(sizesPath)
	counts, okCounts := l.integers(countsPath)
	if okSizes && okCounts && len(sizes) != len(counts) {
		n := min(len(sizes), len(counts))
		longer, values := sizesPath, sizes
		if len(counts) > n {
			longer, values = countsPath, counts
		}
		l.set(Error, longer, fmt.Sprintf("has %d entries, and its partner %d; libcufile refuses or ignores both", len(values), n), array(values[:n]))
		return
	}
	if okSizes && ordered && !slices.IsSorted(sizes) {
		l.report(l.found[sizesPath].value().StartOffset, Error, sizesPath, "must be in ascending order; libcufile ignores all of them otherwise", array(slices.Sorted(slices.Values(sizes))))
	}
	const byDefault = 3 // entries of either array of the POSIX pool
	for _, half := range []struct {
		path, missing string
		have, alone   bool
		n             int
	}{{sizesPath, countsPath, okSizes, l.found[countsPath] == nil, len(sizes)}, {countsPath, sizesPath, okCounts, l.found[sizesPath] == nil, len(counts)}} {
		if half.have && half.alone && (ordered || half.n != byDefault) {
			l.report(l.found[half.path].name().StartOffset, Error, half.path, "needs "+half.missing[strings.LastIndexByte(half.missing, '.')+1:]+" beside it, with as many entries", "remove it")
		}
	}
}

func array(values []int64) string {
	var words []string
	for _, n := range values {
		words = append(words, strconv.FormatInt(n, 10))
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// integers is the value of an array, false where it is not there or has anything else in it, which was reported.
func (l *linter) integers(path string) ([]int64, bool) {
	m := l.found[path]
	if m == nil {
		return nil, false
	}
	elements, ok := m.value().Value.(*hujson.Array)
	if !ok {
		return nil, false
	}
	var values []int64
	for _, e := range elements.Elements {
		literal, _ := e.Value.(hujson.Literal)
		n, err := strconv.ParseInt(string(literal), 10, 64)
		if err != nil {
			return nil, false
		}
		values = append(values, n)
	}
	return values, true
}

// network looks for the settings that filesystems over RDMA need.
func (l *linter) network() {
	global := l.addresses("properties")
	if l.isTrue("properties.rdma_dynamic_routing") && !global {
		l.report(l.found["properties.rdma_dynamic_routing"].value().StartOffset, Warning, "properties.rdma_dynamic_routing", "does nothing without addresses in properties.rdma_dev_addr_list", "")
	}
	section := map[string]string{"nfs": "nfs", "nfs4": "nfs", "lustre": "lustre", "beegfs": "beegfs", "wekafs": "weka", "gpfs": "gpfs"}[l.opts.Filesystem]
	if section == "" || global || l.addresses("fs."+section) || l.found["fs."+section+".mount_table"] != nil || section == "lustre" || section == "gpfs" {
		return
	}
	l.report(l.place("properties.rdma_dev_addr_list"), Warning, "properties.rdma_dev_addr_list",
		"is empty, and the data is on "+l.opts.Filesystem+": list the addresses of this machine's RDMA interfaces (rdma link; ip -br addr)", "")
}

func (l *linter) addresses(section string) bool {
	m := l.found[section+".rdma_dev_addr_list"]
	if m == nil {
		return false
	}
	list, ok := m.value().Value.(*hujson.Array)
	return ok && len(list.Elements) > 0
}

// idle finds settings that do nothing because of another.
func (l *linter) idle() {
	const threads, poll, static = "execution.max_io_threads", "properties.poll_mode_max_size_kb", "miscellaneous.enable_static_routing"
	if l.isTrue("execution.parallel_io") && l.number(threads, 4) == 0 {
		l.set(Warning, threads, "is 0, so parallel_io does nothing", "4")
	}
	const before119 = 32
	if n := l.number(threads, 4); n > before119 && n <= 128 && l.opts.Version < 1019 {
		l.set(Warning, threads, fmt.Sprintf("libcufile 1.15 refuses more than %d", before119), strconv.Itoa(before119))
	}
	if n := l.number(poll, 4); n != 4 && !l.isTrue("properties.use_poll_mode") {
		l.report(l.found[poll].name().StartOffset, Warning, poll, "does nothing, since use_poll_mode is not true", "")
	}
	if l.isTrue(static) && l.found["miscellaneous.static_routing_filepath"] == nil {
		l.report(l.found[static].value().StartOffset, Warning, static, "does nothing without static_routing_filepath", "")
	}
}
