package cufile_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// linkedShards makes n llm.c shards of few bytes, and gives the bytes of their view. The first ones are files of their own, and the others hard
// links to them. ext4 passes over each inode that was freed lately, so after another test thousands of files take seconds.
func linkedShards(t *testing.T, n, files int) (dir string, data []byte) {
	t.Helper()
	dir = t.TempDir()
	tokens := make([][]byte, files)
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("fineweb_train_%06d.bin", i))
		var err error
		if i < files {
			shard := llmcShard(t, 10+i%7, byte(i))
			tokens[i] = shard[1024:]
			err = os.WriteFile(name, shard, 0o644)
		} else {
			err = os.Link(filepath.Join(dir, fmt.Sprintf("fineweb_train_%06d.bin", i%files)), name)
		}
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, tokens[i%files]...)
	}
	return dir, data
}

// A view of many shards streams through few descriptors. HBMFS_SHARDS says how many: 100,000 take half a minute.
func TestStreamAViewOfManyShards(t *testing.T) {
	blackbox.NeedRoot(t)
	shards := 20_000
	if text := os.Getenv("HBMFS_SHARDS"); text != "" {
		var err error
		if shards, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	const bound = 256
	dir, data := linkedShards(t, shards, 2*bound)
	b := blackbox.Given(t)
	m, err := b.Mount(t.Context(), dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	view, err := m.View("tokens.bin")
	if err != nil {
		t.Fatal(err)
	}
	r, err := cufile.New(t.Context(), cufile.Options{Device: cufile.HostDevice, Descriptors: bound, Arena: 16 << 20, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(t.Context(), view)
	if err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	most := watch(t, func() { streamSpans(t, f, data, 256<<10) })
	if most > before+bound+control.MaxObjects+8 { // descriptors on their way get other numbers while they are counted
		t.Errorf("%d descriptors were open, %d before: more than %d for backing files", most, before, bound)
	}
	if err := closed(f, r); err != nil {
		t.Error(err)
	}
}

func streamSpans(t *testing.T, f *cufile.File, data []byte, step int64) {
	t.Helper()
	if f.Size() != int64(len(data)) {
		t.Fatalf("the view has %d bytes, want %d", f.Size(), len(data))
	}
	var plan []cufile.Span
	for at := int64(0); at < f.Size(); at += step {
		plan = append(plan, cufile.Span{Offset: at, Length: min(step, f.Size()-at)})
	}
	s := f.Stream(t.Context(), plan, 3)
	defer s.Close()
	for _, span := range plan {
		v, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if string(v.Bytes()) != string(data[span.Offset:span.Offset+span.Length]) {
			t.Fatalf("wrong bytes in %d at %d", span.Length, span.Offset)
		}
		v.Release()
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the last span: %v, want EOF", err)
	}
}
