// Package deepspeed checks the settings of a DeepSpeed configuration for reading and writing NVMe: its section aio, and where it
// offloads.
//
// The keys are those of deepspeed/runtime/swap_tensor/constants.py and aio_config.py, DeepSpeed 0.18 and before. DeepSpeed ignores
// keys of aio that it does not know. With use_gds it writes a cufile.json of its own, with compat mode off, and any error of cuFile
// ends the process (csrc/gds/py_lib/deepspeed_py_gds_handle.cpp). So values are judged as cuFile judges them, and a place that
// cannot be read directly is an error.
package deepspeed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// MaxSize is the size in bytes of the largest configuration that is read.
const MaxSize = 4 << 20

// keys of aio, and the kinds of their values
func keys() map[string]byte {
	return map[string]byte{
		"io_backend": '"', "block_size": '0', "queue_depth": '0', "intra_op_parallelism": '0', "thread_count": '0',
		"single_submit": 't', "overlap_events": 't', "use_gds": 't',
	}
}

// linter is one look at a configuration.
type linter struct {
	text     []byte
	findings []Finding
	place    func(path string) (filesystem string, err error)
}

// Lint finds the mistakes. Place tells the type of the filesystem that a directory lies on; its error says why it is no place to
// write to.
func Lint(text []byte, place func(path string) (filesystem string, err error)) []Finding {
	l := &linter{text: text, place: place}
	root, err := hujson.Parse(text)
	switch {
	case len(text) > MaxSize:
		l.report(0, Error, "", "%d bytes are no configuration, at most %d are read", len(text), MaxSize)
	case err != nil:
		at := int64(0)
		var line, column int
		if _, scan := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &column); scan == nil {
			at = offset(text, line, column)
		}
		if inner := errors.Unwrap(err); inner != nil {
			err = inner
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			at, err = int64(len(text)), errors.New("the file ends early")
		}
		l.report(int(at), Error, "", "is no JSON: %v", err)
	case !root.IsStandard():
		l.report(0, Error, "", "has comments or commas too many: Python's json, which DeepSpeed reads it with, refuses both")
	default:
		l.root(&root)
	}
	slices.SortStableFunc(l.findings, func(a, b Finding) int {
		return (a.Line-b.Line)*1000 + a.Column - b.Column
	})
	return l.findings
}

func offset(text []byte, line, column int) int64 {
	at := 0
	for range line - 1 {
		next := bytes.IndexByte(text[at:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return int64(min(at+column-1, len(text)))
}

func (l *linter) report(at int, level Level, key, format string, args ...any) {
	before := l.text[:min(at, len(l.text))]
	start := bytes.LastIndexByte(before, '\n') + 1
	l.findings = append(l.findings, Finding{
		Line: bytes.Count(before, []byte("\n")) + 1, Column: len([]rune(string(before[start:]))) + 1, Level: level, Key: key, Message: fmt.Sprintf(format, args...),
	})
}

// section is an object of the configuration, by key.
type section map[string]*hujson.Value

func (l *linter) section(v *hujson.Value, key string) section {
	if v == nil {
		return nil
	}
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		l.report(v.StartOffset, Error, key, "must be an object, {...}")
		return nil
	}
	s := section{}
	for i := range object.Members {
		m := &object.Members[i]
		name := m.Name.Value.(hujson.Literal).String() // names are strings
		if s[name] != nil {
			l.report(m.Name.StartOffset, Error, name, "is there twice: DeepSpeed refuses the file")
		}
		s[name] = &m.Value
	}
	return s
}

// literal gives the kind and the text of a value: '"', '0', 't' for both booleans, and 0 for others.
func literal(v *hujson.Value) (kind byte, text string) {
	lit, ok := v.Value.(hujson.Literal)
	if !ok {
		return 0, ""
	}
	switch kind := byte(lit.Kind()); kind {
	case '"':
		return kind, lit.String()
	case 't', 'f':
		return 't', string(lit)
	case '0':
		return kind, string(lit)
	}
	return 0, string(lit)
}

func (l *linter) root(v *hujson.Value) {
	top := l.section(v, "")
	if top == nil {
		return
	}
	for name := range keys() {
		if top[name] != nil {
			l.report(top[name].StartOffset, Error, name, "is ignored here: it belongs in aio")
		}
	}
	paths := l.offloads(l.section(top["zero_optimization"], "zero_optimization"))
	aio := l.section(top["aio"], "aio")
	switch {
	case top["aio"] == nil && len(paths) > 0:
		l.report(0, Warning, "aio", "is not there: DeepSpeed takes block_size 1048576, queue_depth 8, one thread, and no GDS")
	case top["aio"] != nil && len(paths) == 0:
		l.report(top["aio"].StartOffset, Warning, "aio", "has no effect on ZeRO: neither offload_param nor offload_optimizer has the device nvme")
	}
	gds := l.aio(aio)
	for _, p := range paths {
		l.nvme(p, gds)
	}
}

// offload is where ZeRO puts the state that it offloads to NVMe.
type offload struct {
	key  string
	path *hujson.Value
}

func (l *linter) offloads(zero section) (paths []offload) {
	for _, name := range []string{"offload_param", "offload_optimizer"} {
		s := l.section(zero[name], "zero_optimization."+name)
		key := "zero_optimization." + name
		if s["use_gds"] != nil {
			l.report(s["use_gds"].StartOffset, Error, key+".use_gds", "is ignored here: it belongs in aio")
		}
		device := ""
		if s["device"] != nil {
			_, device = literal(s["device"])
		}
		switch path := s["nvme_path"]; {
		case device == "nvme" && path == nil:
			l.report(s["device"].StartOffset, Error, key+".nvme_path", "is not there: the device nvme needs a directory")
		case device == "nvme":
			paths = append(paths, offload{key + ".nvme_path", path})
		case path != nil:
			l.report(path.StartOffset, Warning, key+".nvme_path", "has no effect: the device is not nvme")
		}
	}
	return paths
}

// aio judges the section, and tells whether GDS is asked for.
func (l *linter) aio(aio section) (gds bool) {
	known := keys()
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	good := map[string]string{}
	for name, v := range aio {
		kind, text := literal(v)
		want := known[name]
		switch {
		case want == 0:
			l.report(v.StartOffset, Error, "aio."+name, "is not known, and ignored%s", cli.Suggest(name, "", names))
		case kind != want || kind == '0' && strings.Trim(text, "0123456789") != "":
			l.report(v.StartOffset, Error, "aio."+name, "must be %s", map[byte]string{'"': "a word in quotes", '0': "a whole number of 1 or more", 't': "true or false"}[want])
		default:
			good[name] = text
		}
	}
	gds = good["use_gds"] == "true"
	backend, threads := good["io_backend"], good["intra_op_parallelism"]
	if !slices.Contains([]string{"", "async_io", "aio", "async", "deepnvme", "posix", "sync", "simple"}, strings.ToLower(backend)) {
		l.report(aio["io_backend"].StartOffset, Error, "aio.io_backend", "%q is none of async_io and posix", backend)
	}
	if gds && slices.Contains([]string{"posix", "sync", "simple"}, strings.ToLower(backend)) {
		l.report(aio["use_gds"].StartOffset, Error, "aio.use_gds", "needs io_backend async_io: DeepSpeed refuses %s", backend)
	}
	if one, other := good["thread_count"], threads; one != "" && other != "" && one != other {
		l.report(aio["thread_count"].StartOffset, Error, "aio.thread_count", "is %s, and intra_op_parallelism is %s: newer versions take the latter, older ones know thread_count alone", one, other)
	}
	if threads == "" {
		threads = good["thread_count"]
	}
	l.numbers(aio, good, threads, gds)
	return gds
}

// numbers judges sizes and counts. With GDS they become settings of cuFile, which has ranges of its own.
func (l *linter) numbers(aio section, good map[string]string, threads string, gds bool) {
	threadKey := "thread_count"
	if good["intra_op_parallelism"] != "" {
		threadKey = "intra_op_parallelism"
	}
	for _, name := range []string{"block_size", "queue_depth", threadKey} {
		if n, err := strconv.ParseInt(good[name], 10, 32); good[name] != "" && (err != nil || n < 1) {
			l.report(aio[name].StartOffset, Error, "aio."+name, "must be a whole number from 1 to 2147483647")
			delete(good, name)
		}
	}
	block := number(good["block_size"])
	if block%4096 != 0 {
		l.report(aio["block_size"].StartOffset, Error, "aio.block_size", "%d is no multiple of 4096, which direct I/O needs", block)
	} else if block > 0 && block < 128<<10 && !gds {
		l.report(aio["block_size"].StartOffset, Warning, "aio.block_size", "%d bytes are little for each request of a drive: it is in bytes, and 1048576 is the default", block)
	}
	if !gds {
		return
	}
	for _, c := range []struct {
		name, setting, want string
		refused             bool
	}{
		{"block_size", "properties.max_direct_io_size_kb", "must be a multiple of 64 from 64 to 16384", block > 0 && (block%(64<<10) != 0 || block > 16<<20)},
		{"queue_depth", "execution.max_io_queue_depth", "is at most 256", number(good["queue_depth"]) > 256},
		{threadKey, "execution.max_request_parallelism", "is at most 8", good[threadKey] != "" && number(threads) > 8},
	} {
		if c.refused {
			l.report(aio[c.name].StartOffset, Error, "aio."+c.name, "becomes %s of cuFile, which %s", c.setting, c.want)
		}
	}
}

// number is a whole number that was judged already, 0 where there is none.
func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// nvme judges the place of an offload.
func (l *linter) nvme(p offload, gds bool) {
	kind, path := literal(p.path)
	if kind != '"' || !filepath.IsAbs(path) {
		l.report(p.path.StartOffset, Error, p.key, "must be the path of a directory, from / on")
		return
	}
	filesystem, err := l.place(path)
	local := filesystem == "ext4" || filesystem == "xfs"
	switch {
	case err != nil:
		l.report(p.path.StartOffset, Error, p.key, "%v", err)
	case filesystem == "fuse.hbmfs":
		l.report(p.path.StartOffset, Error, p.key, "%s is a mount of hbmfs, which cannot be written to", path)
	case gds && strings.HasPrefix(filesystem, "fuse"), gds && slices.Contains([]string{"tmpfs", "ramfs", "overlay", "9p", "virtiofs"}, filesystem):
		l.report(p.path.StartOffset, Error, p.key, "%s is on %s, where cuFile is never direct: with use_gds DeepSpeed ends at the first read", path, filesystem)
	case gds && !local:
		l.report(p.path.StartOffset, Warning, p.key, "%s is on %s: hbmfs check %s says whether cuFile is direct there, without which DeepSpeed ends at the first read", path, filesystem, path)
	case filesystem == "tmpfs" || filesystem == "ramfs":
		l.report(p.path.StartOffset, Warning, p.key, "%s is in memory (%s), which offloading is to save", path, filesystem)
	}
}
