package files_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// checkViews compares the views of one split with the independent reading.
func checkViews(t *testing.T, m *mounted, e mounttest.Expectation, split string, want mounttest.SplitExpectation) {
	view := func(name string) string { return m.Path(".hbmfs", "views", split, name) }
	if !e.HasTokens(want) {
		for _, name := range []string{"tokens.bin", "tokens.npy", "megatron.bin", "megatron.idx"} {
			mounttest.WantAbsent(t, view(name))
		}
		return
	}
	tokens, err := os.ReadFile(view("tokens.bin"))
	must(t, err)
	if got := mounttest.HexSum(tokens); got != want.TokensSHA256 {
		t.Errorf("tokens.bin has the sha256 %s, want %s", got, want.TokensSHA256)
	}
	if err := mounttest.CompareFile(view("tokens.bin"), tokens); err != nil {
		t.Error(err)
	}
	checkArray(t, view("tokens.npy"), numpyDescr(t, e.DType), tokens)
	if want.DocumentStarts == nil {
		checkMegatron(t, view("megatron"), tokens, nil)
		return
	}
	var starts []byte
	for _, at := range want.DocumentStarts {
		starts = binary.LittleEndian.AppendUint64(starts, uint64(at))
	}
	checkArray(t, view("documents.npy"), "<i8", starts)
	if !checkMegatron(t, view("megatron"), tokens, want.DocumentStarts) {
		t.Error("documents are known, but there is no Megatron pair")
	}
}

// numpyDescr returns how a .npy header names a little-endian type.
func numpyDescr(t *testing.T, dtype string) string {
	t.Helper()
	descr, ok := map[string]string{
		"uint8": "|u1", "int8": "|i1", "uint16": "<u2", "int16": "<i2", "uint32": "<u4", "int32": "<i4",
		"uint64": "<u8", "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "bool": "|b1",
	}[dtype]
	if !ok {
		t.Fatalf("this test does not know the type %q", dtype)
	}
	return descr
}

// checkArray compares a .npy of one dimension with its type and its data.
func checkArray(t *testing.T, path, descr string, want []byte) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	if err := mounttest.CompareFile(path, content); err != nil {
		t.Error(err)
	}
	a, err := parseNPY(content)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	if a.descr != descr || len(a.shape) != 1 || !bytes.Equal(a.data, want) {
		t.Errorf("%s: type %s, shape %v, %d bytes with the sha256 %s; want type %s and %d bytes with %s",
			path, a.descr, a.shape, len(a.data), mounttest.HexSum(a.data), descr, len(want), mounttest.HexSum(want))
	}
}

// array is what a .npy holds.
type array struct {
	descr string
	shape []int
	data  []byte
}

var npyHeader = regexp.MustCompile(`^\{'descr': '([^']+)', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n$`)

// parseNPY reads version 1.0 of the format as numpy/lib/_format_impl.py describes it, and no more than hbmfs writes.
func parseNPY(content []byte) (a array, err error) {
	if len(content) < 10 || string(content[:8]) != "\x93NUMPY\x01\x00" {
		return a, fmt.Errorf("no .npy of version 1.0: %.10q", content)
	}
	begin := 10 + int(binary.LittleEndian.Uint16(content[8:]))
	if begin > len(content) || begin%64 != 0 {
		return a, fmt.Errorf("the data begins at %d of %d, want a multiple of 64", begin, len(content))
	}
	fields := npyHeader.FindSubmatch(content[10:begin])
	if fields == nil {
		return a, fmt.Errorf("header %q", content[10:begin])
	}
	a.descr, a.data = string(fields[1]), content[begin:]
	width, err := strconv.Atoi(a.descr[2:])
	if err != nil {
		return a, err
	}
	want := width
	for _, dim := range strings.FieldsFunc(string(fields[2]), func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(dim)
		if err != nil {
			return a, err
		}
		a.shape, want = append(a.shape, n), want*n
	}
	if len(a.data) != want {
		return a, fmt.Errorf("shape %v of %s needs %d bytes, there are %d", a.shape, a.descr, want, len(a.data))
	}
	return a, nil
}

// checkMegatron compares a Megatron pair with the token stream and, unless nil, with where the documents begin. It
// reports false where there is no pair.
func checkMegatron(t *testing.T, prefix string, tokens []byte, documents []int64) bool {
	t.Helper()
	index, err := os.ReadFile(prefix + ".idx")
	data, dataErr := os.ReadFile(prefix + ".bin")
	if errors.Is(err, fs.ErrNotExist) && errors.Is(dataErr, fs.ErrNotExist) {
		return false
	}
	if err := errors.Join(err, dataErr); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, tokens) {
		t.Errorf("megatron.bin has the sha256 %s, tokens.bin %s", mounttest.HexSum(data), mounttest.HexSum(tokens))
	}
	starts, err := parseMegatron(index, int64(len(data)))
	if err != nil {
		t.Errorf("megatron.idx: %v", err)
	} else if documents != nil && !slices.Equal(starts, documents) {
		t.Errorf("megatron.idx: documents begin at %v, want %v", starts, documents)
	}
	return true
}

// parseMegatron reads an index as megatron/core/datasets/indexed_dataset.py does and returns where the documents
// begin, in tokens. It asks that the sequences follow each other and fill the data.
func parseMegatron(index []byte, size int64) (starts []int64, err error) {
	if len(index) < 34 || string(index[:9]) != "MMIDIDX\x00\x00" || binary.LittleEndian.Uint64(index[9:]) != 1 {
		return nil, fmt.Errorf("no index of version 1: %.17q", index)
	}
	sequences, documents := int64(binary.LittleEndian.Uint64(index[18:])), int64(binary.LittleEndian.Uint64(index[26:]))
	arrays := 34 + 12*sequences + 8*documents
	if n := int64(len(index)); n != arrays && n != arrays+sequences { // with sequence modes
		return nil, fmt.Errorf("%d sequences and %d documents in %d bytes", sequences, documents, n)
	}
	int64At := func(off int64) int64 { return int64(binary.LittleEndian.Uint64(index[off:])) }
	begins, total := []int64{0}, int64(0)
	for i := range sequences {
		total += int64(int32(binary.LittleEndian.Uint32(index[34+4*i:])))
		begins = append(begins, total)
	}
	if total == 0 || size%total != 0 {
		return nil, fmt.Errorf("%d tokens in %d bytes", total, size)
	}
	// 6 and 7 are float64 and float32 in Megatron-Core, and the other way round in GPT-NeoX.
	widths := map[byte][]int64{1: {1}, 2: {1}, 3: {2}, 4: {4}, 5: {8}, 6: {8, 4}, 7: {4, 8}, 8: {2}}
	width := size / total
	if !slices.Contains(widths[index[17]], width) {
		return nil, fmt.Errorf("type code %d for elements of %d bytes", index[17], width)
	}
	for i := range sequences {
		if at := int64At(34 + 4*sequences + 8*i); at != begins[i]*width {
			return nil, fmt.Errorf("sequence %d begins at byte %d, want %d", i, at, begins[i]*width)
		}
	}
	for i := range documents {
		first := int64At(34 + 12*sequences + 8*i)
		if first < 0 || first > sequences {
			return nil, fmt.Errorf("document %d begins at sequence %d of %d", i, first, sequences)
		}
		starts = append(starts, begins[first])
	}
	return starts, nil
}

// checkMembers compares the files in members/ with what archive/tar finds.
func checkMembers(t *testing.T, m *mounted) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(m.Source, "*.tar"))
	must(t, err)
	for _, archive := range archives {
		want, err := tarMembers(archive)
		must(t, err)
		checkDirectory(t, m.Path(".hbmfs", "views", "members", filepath.Base(archive)), want)
	}
}

// tarMembers returns the regular files of an archive. Of two with one name the last one counts, as for tar -x.
func tarMembers(archive string) (members map[string][]byte, err error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	members = map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return members, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if members[strings.TrimPrefix(h.Name, "./")], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

// checkTensors compares the files in tensors/ with an independent reading of the format.
func checkTensors(t *testing.T, m *mounted) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(m.Source, "*.safetensors"))
	must(t, err)
	for _, file := range files {
		checkFileOfTensors(t, file, m.Path(".hbmfs", "views", "tensors", filepath.Base(file)))
	}
}

func checkFileOfTensors(t *testing.T, file, dir string) {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	begin := 8 + binary.LittleEndian.Uint64(content)
	var header map[string]struct {
		Shape   []int     `json:"shape"`
		Offsets [2]uint64 `json:"data_offsets"`
	}
	must(t, json.Unmarshal(content[8:begin], &header))
	delete(header, "__metadata__")
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != len(header) {
		t.Errorf("%s: %d files of %d tensors", dir, len(entries), len(header))
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		suffix := filepath.Ext(e.Name())
		name, err := url.PathUnescape(strings.TrimSuffix(e.Name(), suffix))
		must(t, err)
		tensor, ok := header[name]
		if !ok {
			t.Errorf("%s: there is no tensor %q", path, name)
			continue
		}
		got, err := os.ReadFile(path)
		must(t, err)
		if err := mounttest.CompareFile(path, got); err != nil {
			t.Error(err)
		}
		if suffix == ".npy" {
			a, err := parseNPY(got)
			if err != nil || !slices.Equal(a.shape, tensor.Shape) {
				t.Errorf("%s: shape %v (%v), want %v", path, a.shape, err, tensor.Shape)
			}
			got = a.data
		}
		if !bytes.Equal(got, content[begin+tensor.Offsets[0]:begin+tensor.Offsets[1]]) {
			t.Errorf("%s: the bytes are not the tensor's", path)
		}
	}
}

// checkDirectory compares all files below dir with want, by their relative names.
func checkDirectory(t *testing.T, dir string, want map[string][]byte) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, ok := want[name]
		if !ok {
			t.Errorf("%s: should not be there", path)
			return nil
		}
		return mounttest.CompareFile(path, content)
	})
	if err != nil {
		t.Error(err)
	}
	if files != len(want) {
		t.Errorf("%s: %d files, want %d", dir, files, len(want))
	}
}
