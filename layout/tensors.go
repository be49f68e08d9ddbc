package layout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"path"
	"strings"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

// Files of tensors in any format: a directory's are a set, and each has a view with a file for each tensor.

// maxTensors bounds the memory of one file's tensors.
const maxTensors = safetensors.MaxTensors

// tensorHead says why a file's header cannot be believed, "" where it can.
type tensorHead struct{ bad string }

// addTensors makes one set of the files that are members, and of others that are missing. read resolves a file that can be read, and counts
// its tensors.
func (d *directory) addTensors(members []member, missing []*Shard, read func(context.Context, *Object) (int, error)) *Set {
	var shards []*Shard
	counts := make([]int, len(members)) // each written by its own shard's resolve
	for i, m := range members {
		h := newShard(m.object)
		if h.Bad = m.head.(tensorHead).bad; h.Bad != "" {
			d.problem(m.object, 0, "%s", h.Bad)
		}
		h.resolve = func(ctx context.Context, h *Shard) (err error) {
			if h.Bad == "" {
				counts[i], err = read(ctx, m.object)
			}
			return err
		}
		shards = append(shards, h)
	}
	set := d.add("", DTypeUnknown, append(shards, missing...))
	set.summarize = func(s *Set) {
		total := 0
		for _, n := range counts {
			total += n
		}
		s.Notes = append(s.Notes, fmt.Sprintf("%d tensors", total))
	}
	return set
}

// tensorView is a directory with a file for each tensor of a shard.
func tensorView(h *Shard, files func(context.Context, *Object) ([]*File, error)) View {
	object := h.Objects[0]
	return View{
		Path:    path.Join("tensors", baseOf(h.Name)),
		Entries: func(ctx context.Context) ([]*File, error) { return files(ctx, object) },
	}
}

// addTensor adds the file of a tensor, whose bytes lie from begin to end: .npy where NumPy knows type and shape, else .bin, the bytes alone. One
// whose name cannot be a file's has none.
func addTensor(files []*File, o *Object, name string, dtype DType, shape []int64, begin, end int64) []*File {
	name, err := tensorFileName(name)
	if err != nil {
		return files
	}
	f := &File{Name: name + ".bin", ModTime: o.ModTime, DType: dtype, Tokens: -1}
	if dtype != DTypeUnknown {
		f.Tokens = (end - begin) / int64(dtype.Size())
	}
	if dtype.NumPy() != "" && numpyShape(shape, int64(dtype.Size())) {
		f.Body.addWhole(Inline(NPYHeader(dtype, shape...)))
		f.Name = name + ".npy"
	}
	f.Body.Add(o, begin, end-begin)
	return append(files, f)
}

// multiply returns a*b of two numbers that are not negative. ok is false when it does not fit an int64.
func multiply(a, b int64) (product int64, ok bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

// numpyShape reports whether NumPy makes an array of the shape: at most 32 dimensions (64 from version 2). Where one is
// 0, the others must still multiply to fewer than 2^63 bytes.
func numpyShape(shape []int64, width int64) bool {
	ok := len(shape) <= 32
	for i := 0; ok && i < len(shape); i++ {
		width, ok = multiply(width, max(shape[i], 1))
	}
	return ok
}

// maxTensorName leaves room for a suffix in the 255 bytes that Linux allows a name.
const maxTensorName = 200

// tensorFileName makes a file's name of a tensor's, so that different tensors have different names. It writes '/', '%',
// control characters and a leading dot as %2F, %25, ... An empty name, or one that gets longer than 200 bytes, has
// none.
func tensorFileName(name string) (string, error) {
	if name == "" {
		return "", errors.New("its name is empty")
	}
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c == '/' || c == '%' || c < ' ' || c == 0x7f || (c == '.' && i == 0) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
		if b.Len() > maxTensorName {
			return "", fmt.Errorf("the name %.40q... needs more than %d bytes", name, maxTensorName)
		}
	}
	return b.String(), nil
}
